"""Whether a text exists whose encoding has an id; decided by encoding, and the text is kept.

Texts are tried from the plainest on: the token's own text; every assigned code point, alone and after a
space; the token's bytes completed by code points on either side; its text between other texts. What none of
them shows is `unreachable` (whole text), `merge_intermediate` (part of a character) or `byte_never` (a byte).
That is a search, not a proof: a corpus may still hold a text nobody thought of, and then the run says so.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, product

from tokenizers import Tokenizer

from coverage_job.schemas import Kind, Reachability
from coverage_job.tokenizer.entries import Entry, Family, begun_by, text_of
from coverage_job.tokenizer.load import encode_all

_BATCH = 8192
# What stands left or right of a token's own text in the last attempts: one of each class that the usual
# patterns tell apart. On both sides at once, fewer.
_NEIGHBOURS = (" ", "a", "A", "1", ".", "\n", "'", "/", "\t", "中", "\u0301", "  ", "\r\n")
_BOTH_SIDES = (" ", "a", "1", ".", "\n", "中")
_CONTRACTIONS = ("s", "d", "m", "t", "ll", "re", "ve", "D", "M", "LL", "RE", "VE")
# Tries per token in each round of completing bytes; a token that is found leaves the search.
_ROUNDS = (64, 1024, 8192)
_MOST_TRIES = 600_000
_UNASSIGNED = 4096  # characters per begin of a character


@dataclass(frozen=True)
class Reached:
    """What was found for one id. example: a text whose encoding has it, or None."""

    round_trip: bool
    reachability: Reachability
    example: str | None


class _Search:
    """Ids still sought, and the texts found so far."""

    def __init__(self, tokenizer: Tokenizer, sought: Iterable[int], name: str) -> None:
        self._tokenizer = tokenizer
        self._name = name
        self.open = set(sought)
        self.found: dict[int, str] = {}

    def encode(self, texts: list[str]) -> Iterator[list[int]]:
        return encode_all(self._tokenizer, texts, self._name)

    def look(self, texts: Iterable[str]) -> None:
        """Try texts until they or the ids sought run out."""
        stream = iter(texts)
        while self.open and (batch := list(islice(stream, _BATCH))):
            for text, ids in zip(batch, self.encode(batch), strict=True):
                for i in self.open.intersection(ids):
                    self.found[i] = text
                    self.open.discard(i)


def reach(tokenizer: Tokenizer, of: Family, entries: dict[int, Entry], name: str) -> dict[int, Reached]:
    """For every id that has an entry, whether and how it can be reached.

    name: how the tokenizer is called where it refuses a text (TokenizerError).
    """
    search = _Search(tokenizer, (i for i, entry in entries.items() if entry.kind is not Kind.SPECIAL), name)
    own = _own_texts(tokenizer, of, entries, search)
    round_trips = set(own)
    search.open -= round_trips
    for space in ("", " "):
        search.look(_with_sought_bytes(tokenizer, entries, search, space))
    parts = {i: e.data for i, e in entries.items() if i in search.open and text_of(e.data) is None}
    _complete(search, parts)
    whole = [text_of(entries[i].data) for i in sorted(search.open)]
    search.look(left + text + right for text in whole if text for left, right in _contexts(text))
    result: dict[int, Reached] = {}
    for i, entry in entries.items():
        direct = i in round_trips
        example = own.get(i, search.found.get(i))
        if entry.kind is Kind.SPECIAL:
            state = Reachability.SPECIAL
        elif direct:
            state = Reachability.DIRECT
        elif example is not None:
            state = Reachability.CONTEXTUAL
        elif entry.kind is Kind.BYTE:
            state = Reachability.BYTE_NEVER
        elif text_of(entry.data) is None and of.model == "BPE":
            state = Reachability.MERGE_INTERMEDIATE
        else:
            state = Reachability.UNREACHABLE
        result[i] = Reached(direct, state, example)
    return result


def _with_sought_bytes(
    tokenizer: Tokenizer, entries: dict[int, Entry], search: _Search, space: str
) -> Iterator[str]:
    """Code points after `space`, but those that hold the bytes of no id still sought, whose encoding cannot
    have one: an id's bytes are part of its text, as written or as normalized."""
    normalizer = tokenizer.normalizer
    sought: set[bytes] = set()
    still_open = -1
    for n, c in enumerate(assigned()):
        if n % 1024 == 0 and len(search.open) != still_open:
            still_open = len(search.open)
            sought = {data for i in search.open if _shape(data := entries[i].data) is not None}
            if normalizer is None:
                sought = {data for data in sought if len(data) <= 4 + data.startswith(b" ")}
        text = space + c
        raw = text.encode()
        if normalizer is not None and (normal := normalizer.normalize_str(text)) != text:
            raw += b"\0" + normal.encode()
        if len(sought) < 16:
            if any(data in raw for data in sought):
                yield text
        elif not sought.isdisjoint([raw[a:b] for a in range(len(raw)) for b in range(a + 1, len(raw) + 1)]):
            yield text


def _contexts(text: str) -> Iterator[tuple[str, str]]:
    yield from product(_NEIGHBOURS, ("",))
    yield from product(("",), _NEIGHBOURS)
    yield from product(("", *_BOTH_SIDES), (text,))
    yield from product(_BOTH_SIDES, _BOTH_SIDES)
    if text.endswith("'"):
        yield from product(("",), _CONTRACTIONS)


def _own_texts(
    tokenizer: Tokenizer, of: Family, entries: dict[int, Entry], search: _Search
) -> dict[int, str]:
    """The ids that their own text encodes to alone, with the text.

    Where the tokenizer puts a space before a text, the text is given without the one it has, or after an
    anchor that no other entry spans; a piece from inside a word always stands after an anchor.
    """
    own: dict[int, str] = {}

    def keep(candidates: dict[int, str], before: list[int]) -> None:
        ids, texts = list(candidates), list(candidates.values())
        for i, got in zip(ids, search.encode(texts), strict=True):
            if got == [*before, i]:
                own[i] = candidates[i]

    texts = {i: text for i, e in entries.items() if (text := text_of(e.data)) is not None and text}
    # A byte entry is reached by falling back, never by the text that another entry holds.
    keep({i: text for i, text in texts.items() if not entries[i].continues}, [])
    if of.adds_prefix:
        keep({i: t[1:] for i, t in texts.items() if i not in own and t[0] == " " and len(t) > 1}, [])
    if of.adds_prefix or of.continuing_prefix:
        for anchor in _anchors(entries, of):
            (before,) = search.encode([anchor])
            inside = bool(of.continuing_prefix)
            keep(
                {
                    i: anchor + t
                    for i, t in texts.items()
                    if i not in own and entries[i].continues == inside and entries[i].kind is not Kind.SPECIAL
                },
                before,
            )
    return own


def _anchors(entries: dict[int, Entry], of: Family) -> list[str]:
    """Characters after which another piece can be read alone."""
    if of.continuing_prefix:
        # A word begins with the longest entry that fits: letters that begin few others.
        begins: dict[str, int] = {}
        for e in entries.values():
            if e.kind is Kind.BASE and not e.continues:
                begins[e.content[:1]] = begins.get(e.content[:1], 0) + 1
        letters = [e.content for e in entries.values() if len(e.content) == 1 and e.content.isalpha()]
        return sorted(letters, key=lambda c: (begins.get(c, 0), c))[:12]
    inner = {c for e in entries.values() if e.kind is Kind.BASE for c in (text_of(e.data) or "")[:-1]}
    for candidate in chain("«|~^", assigned()):
        if candidate not in inner and not candidate.isspace():
            return [candidate]
    return []


@lru_cache(maxsize=1)
def assigned() -> tuple[str, ...]:
    """Every assigned code point but those of private use, in order."""
    return tuple(
        chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")
    )


def _complete(search: _Search, parts: dict[int, bytes]) -> None:
    """Try texts made of a token's bytes and the code points that complete them."""
    shapes = {i: shape for i, data in parts.items() if (shape := _shape(data)) is not None}

    def texts(i: int) -> Iterator[str]:
        left, middle, right = shapes[i]
        lefts, rights = _ending(left) if left else ("",), _beginning(right) if right else ("",)
        for a, b in _pairs(lefts, rights):
            yield a + middle + b
        for context in _NEIGHBOURS:
            for a, b in _pairs(lefts, rights):
                yield context + a + middle + b
                yield a + middle + b + context
        if not middle and not right:
            # Bytes from the inside of one character, between others.
            for c, context, after in product(assigned(), _NEIGHBOURS, ("", "a", "中")):
                if left in c.encode():
                    yield context + c + after

    streams = {i: texts(i) for i in shapes}
    tries = 0
    for size in _ROUNDS:
        for i in sorted(search.open & streams.keys()):
            if tries > _MOST_TRIES:
                return
            batch = list(islice(streams[i], size))
            tries += len(batch)
            if i in search.open:
                search.look(batch)


@lru_cache(maxsize=1024)
def _beginning(head: bytes) -> tuple[str, ...]:
    """Characters that begin with some bytes: the assigned ones, then others, which are text too."""
    named: list[str] = []
    others: list[str] = []
    for c in map(chr, begun_by(head)):
        category = unicodedata.category(c)
        if category in ("Cn", "Co"):
            if len(others) < _UNASSIGNED:
                others.append(c)
        elif category != "Cs":
            named.append(c)
    return (*named, *others)


@lru_cache(maxsize=1024)
def _ending(tail: bytes) -> tuple[str, ...]:
    """Assigned characters that end with some bytes, all of them continuation bytes."""
    low = 0
    for byte in tail:
        low = low << 6 | byte & 0x3F
    codes = range(low, sys.maxunicode + 1, 1 << 6 * len(tail))
    found = (chr(c) for c in codes if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co"))
    return tuple(c for c in found if len(c.encode()) > len(tail))


def _shape(data: bytes) -> tuple[bytes, str, bytes] | None:
    """Bytes as (end of a character, whole characters, begin of a character); None where no text has them.

    >>> _shape("嘉祺".encode()[1:-1])
    (b'\\x98\\x89', '', b'\\xe7\\xa5')
    """
    start = 0
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    if start > 3:
        return None
    for stop in range(len(data), max(start, len(data) - 3) - 1, -1):
        middle = text_of(data[start:stop])
        if middle is not None:
            rest = data[stop:]
            return (data[:start], middle, rest) if not rest or 0xC2 <= rest[0] <= 0xF4 else None
    return None


def _pairs(lefts: Sequence[str], rights: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pairs of both, those of one block of code points first."""
    if len(lefts) == 1 or len(rights) == 1:
        yield from product(lefts, rights)
        return
    by_block: dict[int, list[str]] = {}
    for b in rights:
        by_block.setdefault(ord(b) >> 8, []).append(b)
    for a in lefts:
        for b in by_block.get(ord(a) >> 8, ()):
            yield a, b
    for n in range(max(len(lefts), len(rights))):
        yield lefts[n % len(lefts)], rights[n % len(rights)]
