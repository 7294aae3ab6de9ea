"""Where a tokenizer's text may be cut: all that the fast kernel knows of a tokenizer, as plain arrays.

Derived once, on the driver, from the tokenizer itself; workers get the arrays. A tokenizer that has a part
for which no exact path is known gets `reason`, and its text the reference path.

Two kinds of cut, both exact (docs/counting.md has the arguments):
- between pre-tokens: found by an automaton that gives the tokenizer's own pre-tokens (patterns.py);
- inside a pre-token: between two characters that no merge's product spans.
"""

from __future__ import annotations

import io
import json
import random
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from coverage_job.counting import patterns
from coverage_job.counting.bpe import MAX_IDS, MAX_MERGES
from coverage_job.counting.patterns import CODE_POINTS, Automaton, Bools, Unsupported
from coverage_job.counting.table import LONG

# Raised whenever what is derived changes; a cached file of another version is derived anew.
FORMAT = 3

# The pattern that ByteLevel(use_regex=True) has built in.
_BYTE_LEVEL_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TRIALS = 3000
_MAX_GROUPS = 4096
# Stand for a group of characters, by their first or last bytes, in the set of spanned pairs.
GROUPS_FROM = CODE_POINTS

SPACE = "▁"  # what SentencePiece writes a space as

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Cuts:
    """What the kernel knows of a tokenizer.

    reason: why it has no fast path; '' where it has one.
    facts: small values: ``family`` (byte_bpe | char_bpe), ``ignore_merges``, ``normal_form`` (or ''), ``prefix``.
    arrays: see `_ARRAYS`.
    """

    reason: str
    facts: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """As a .npz archive without pickles."""
        buffer = io.BytesIO()
        head = json.dumps({"format": FORMAT, "reason": self.reason, "facts": self.facts})
        np.savez_compressed(buffer, head=np.frombuffer(head.encode(), np.uint8), **self.arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Cuts:
        """What `to_bytes` wrote. Raises ValueError where it is of another format version or damaged."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            head = json.loads(arrays.pop("head").tobytes())
        except Exception as error:
            raise ValueError(f"not a file of cuts ({error})") from None
        if head["format"] != FORMAT:
            raise ValueError(f"cuts of format {head['format']}, this is {FORMAT}")
        return cls(head["reason"], head["facts"], arrays)


def derive(tokenizer: Tokenizer) -> Cuts:
    """The cuts of a tokenizer; with `reason` where it has no fast and exact path."""
    try:
        return _derive(tokenizer, json.loads(tokenizer.to_str()))
    except Unsupported as error:
        return Cuts(str(error))


def _derive(tokenizer: Tokenizer, config: dict[str, Any]) -> Cuts:
    model = config["model"]
    if model["type"] == "WordPiece":
        return _derive_words(config, tokenizer)
    if model["type"] != "BPE":
        raise Unsupported(f"its model is {model['type']}")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise Unsupported(f"its model has {key}")
    splits = _flat(config.get("pre_tokenizer"), "pretokenizers")
    normalizers = _flat(config.get("normalizer"), "normalizers")
    if not splits:
        return _derive_characters(config, normalizers, tokenizer)
    if splits[-1]["type"] != "ByteLevel":
        raise Unsupported(f"its pre-tokenizer is {splits[-1]['type']}")
    normal_form = _normal_form(normalizers)
    levels = _levels(splits)
    classes, automata, representatives = _automata(levels)
    _try(tokenizer, classes, automata, representatives)
    arrays: dict[str, Array] = {
        "classes": classes,
        "steps": np.concatenate([a.steps for a in automata]),
        "states": np.array([len(a.steps) for a in automata], np.int64),
    }
    arrays |= _byte_model(model)
    arrays |= _added(config["added_tokens"], tokenizer)
    if normal_form:
        arrays["unsettled"] = _unsettled(normal_form, tokenizer)
    facts = {
        "family": "byte_bpe",
        "ignore_merges": bool(model.get("ignore_merges")),
        "normal_form": normal_form,
        "prefix": False,
    }
    return Cuts("", facts, arrays)


def _derive_characters(
    config: dict[str, Any], normalizers: Sequence[dict[str, Any]], tokenizer: Tokenizer
) -> Cuts:
    """The cuts of a SentencePiece-like BPE: merges of characters, over the whole text."""
    model = config["model"]
    steps = [n["type"] for n in normalizers]
    prefix = normalizers[0]["prepend"] if steps[:1] == ["Prepend"] else ""
    if prefix not in ("", SPACE) or steps[-1:] != ["Replace"] or len(steps) != 1 + bool(prefix):
        raise Unsupported("its normalizer is " + (", ".join(steps) or "none"))
    if normalizers[-1]["pattern"] != {"String": " "} or normalizers[-1]["content"] != SPACE:
        raise Unsupported("its normalizer replaces something else than a space")
    arrays: dict[str, Array] = {
        "classes": np.zeros(CODE_POINTS, np.uint8),
        "steps": np.zeros((0, 2), np.int32),
        "states": np.zeros(0, np.int64),
    }
    arrays |= _character_model(model)
    arrays |= _added(config["added_tokens"], tokenizer, spaces=True)
    return Cuts(
        "", {"family": "char_bpe", "ignore_merges": False, "normal_form": "", "prefix": bool(prefix)}, arrays
    )


def _character_model(model: dict[str, Any]) -> dict[str, Array]:
    vocab = model["vocab"]
    single = np.array([vocab.get(f"<0x{byte:02X}>", -1) for byte in range(256)], np.int32)
    never = {0xC0, 0xC1, *range(0xF5, 0x100)}
    if not model.get("byte_fallback") or any(single[b] < 0 for b in range(256) if b not in never):
        # Unknown characters that stand together become one unknown token, wherever one would cut.
        raise Unsupported("it has no byte fallback")
    if model.get("ignore_merges"):
        raise Unsupported("it takes whole texts from its vocabulary")
    merges = np.array(
        [(vocab[a], vocab[b], vocab[a + b]) for a, b in _merge_pairs(model["merges"])], np.int32
    ).reshape(-1, 3)
    spelled = {i: token for token, i in vocab.items()}
    if np.isin(merges[:, :2], single).any():
        raise Unsupported("it merges fallback bytes")
    # Characters that are written as they are; a space is written as its sign.
    symbols = np.full(CODE_POINTS, -1, np.int32)
    for token, i in vocab.items():
        if len(token) == 1:
            symbols[ord(token)] = i
    symbols[ord(" ")] = symbols[ord(SPACE)]
    if symbols[ord(SPACE)] < 0:
        raise Unsupported("it has no sign for a space")
    widths = np.zeros(max(vocab.values()) + 1, np.int32)
    for i, token in spelled.items():
        widths[i] = len(token)
    spans = widths.copy()
    widths[single[single >= 0]] = 1
    # A fallback byte is a byte of the text, all others so many characters.
    spans[single[single >= 0]] = -1
    if len(widths) > MAX_IDS or len(merges) > MAX_MERGES or widths.max() > LONG:
        raise Unsupported("its vocabulary is too large")
    products = {spelled[i] for i in merges[:, 2].tolist()}
    # Cuts are sought in the text before normalizing, where a space is a space or its sign.
    products |= {p.replace(SPACE, " ") for p in products} | {
        a + b
        for p in products
        for x, y in zip(p, p[1:], strict=False)
        if SPACE in (x, y)
        for a in (x, " " if x == SPACE else x)
        for b in (y, " " if y == SPACE else y)
    }
    return {
        "single": single,
        "symbols": symbols,
        "merges": merges,
        "widths": widths,
        "spans": spans,
        **_word_list("whole", {}),
        **_spanned(p.encode() for p in products),
    }


def _derive_words(config: dict[str, Any], tokenizer: Tokenizer) -> Cuts:
    """The cuts of WordPiece with BERT's normalizer and pre-tokenizer.

    Both work character by character: each is removed, a space, a token of its own, or part of a word, and becomes
    what it becomes alone. The exception are combining marks that normalizing reorders: text with those is left to the
    reference.
    """
    model = config["model"]
    for part, name in (("normalizer", "BertNormalizer"), ("pre_tokenizer", "BertPreTokenizer")):
        if (config.get(part) or {}).get("type") != name:
            raise Unsupported(f"its {part} is not {name}")
    if any(token["normalized"] for token in config["added_tokens"]):
        raise Unsupported("it has added tokens that are looked for in normalized text")
    normalize, split = tokenizer.normalizer.normalize_str, tokenizer.pre_tokenizer.pre_tokenize_str
    kinds = np.zeros(CODE_POINTS, np.uint8)  # 0 part of a word, 1 space, 2 a token of its own
    unsettled = np.zeros(CODE_POINTS, np.bool_)
    places: dict[str, tuple[int, int]] = {"": (0, 0)}
    spelled = bytearray()
    becomes = np.zeros((CODE_POINTS, 2), np.int32)
    isolated: dict[str, bool] = {}
    for c in range(CODE_POINTS):
        if 0xD800 <= c < 0xE000:
            continue
        character = chr(c)
        normal = normalize(character)
        text = normal.strip()
        if (
            any(unicodedata.combining(x) for x in normal)
            or len(text.split()) > 1
            or unicodedata.category(character) == "Cn"
        ):
            unsettled[c] = True
            continue
        if len(text) > len(character.encode()):
            # The kernel reckons with no more tokens than bytes.
            unsettled[c] = True
            continue
        if normal and not text:
            kinds[c] = 1
            continue
        if text and (alone := isolated.get(text)) is None:
            pieces = len(split(f"a{text}a"))
            if pieces not in (1, 3) or (pieces == 3 and len(text) > 1):
                unsettled[c] = True
                continue
            alone = isolated[text] = pieces == 3
        if text and (alone or normal != text):
            if not alone and normal != f" {text} ":
                unsettled[c] = True
                continue
            kinds[c] = 2
        if text not in places:
            data = text.encode()
            places[text] = (len(spelled), len(data))
            spelled += data
        becomes[c] = places[text]
    members = {name: np.arange(3) == k for k, name in enumerate(("word", "space", "alone"))}
    node = patterns.Choice(
        (
            patterns.Repeat(patterns.One("word"), 1, None, False),
            patterns.Repeat(patterns.One("space"), 1, None, False),
            patterns.One("alone"),
        )
    )
    automaton = patterns.compile_pattern(node, members)
    prefix = model["continuing_subword_prefix"]
    begins = {t: i for t, i in model["vocab"].items()}
    goes_on = {t[len(prefix) :]: i for t, i in model["vocab"].items() if t.startswith(prefix) and t != prefix}
    if not prefix or model["unk_token"] not in begins:
        raise Unsupported("its model has no prefix or no unknown token")
    arrays: dict[str, Array] = {
        "classes": kinds,
        "steps": automaton.steps,
        "states": np.array([len(automaton.steps)], np.int64),
        "single": np.zeros(256, np.int32),
        "symbols": np.zeros(0, np.int32),
        "merges": np.zeros((0, 3), np.int32),
        "widths": np.zeros(max(begins.values()) + 1, np.int32),
        "spans": np.zeros(max(begins.values()) + 1, np.int32),
        "becomes": becomes,
        "becomes_bytes": np.frombuffer(bytes(spelled), np.uint8),
        "unsettled": unsettled,
        # Never cut inside a word: every pair counts as spanned.
        "pairs": np.full(1, 0xFF, np.uint8),
        "groups": np.zeros(CODE_POINTS, np.uint32),
        **_word_list("whole", begins),
        **_word_list("inner", goes_on),
        **_added(config["added_tokens"], tokenizer),
    }
    facts = {
        "family": "words",
        "ignore_merges": False,
        "normal_form": "",
        "prefix": False,
        "unknown": begins[model["unk_token"]],
        "most_characters": int(model["max_input_chars_per_word"]),
    }
    return Cuts("", facts, arrays)


def _word_list(name: str, words: dict[str, int]) -> dict[str, Array]:
    listed = [(text.encode(), i) for text, i in sorted(words.items()) if text]
    return {
        f"{name}_ids": np.array([i for _, i in listed], np.int32),
        f"{name}_ends": np.cumsum([0] + [len(d) for d, _ in listed]).astype(np.int64),
        f"{name}_bytes": np.frombuffer(b"".join(d for d, _ in listed), np.uint8),
    }


def _flat(part: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [p for inner in part[key] for p in _flat(inner, key)]
    return [part]


# --- normal forms -----------------------------------------------------------------------------------


def _normal_form(normalizers: Sequence[dict[str, Any]]) -> str:
    if not normalizers:
        return ""
    if len(normalizers) > 1 or normalizers[0]["type"] not in ("NFC", "NFD", "NFKC", "NFKD"):
        raise Unsupported("its normalizer is " + ", ".join(n["type"] for n in normalizers))
    return str(normalizers[0]["type"])


def _unsettled(form: str, tokenizer: Tokenizer) -> Bools:
    """The code points whose presence leaves open whether a text is in normal form: bool[0x110000].

    A text of settled characters alone is in normal form whatever their order: each is a starter, is its own
    normal form, and never composes with what stands before it. The Unicode stability policy keeps this
    true of assigned characters in all versions; those that this Python does not know are unsettled.
    """
    found = np.zeros(CODE_POINTS, np.bool_)
    second = set()
    for c in range(CODE_POINTS):
        decomposition = unicodedata.decomposition(chr(c))
        if decomposition and not decomposition.startswith("<"):
            second.update(int(p, 16) for p in decomposition.split()[1:])
    for c in range(CODE_POINTS):
        character = chr(c)
        found[c] = (
            unicodedata.category(character) in ("Cn", "Cs")
            or unicodedata.combining(character) != 0
            or not unicodedata.is_normalized(form, character)
            or c in second
            or 0x1160 <= c <= 0x11FF  # vowels and finals of Hangul compose by rule
        )
    return found


# --- pre-tokens -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Level:
    """One splitting step. total: text that the pattern does not match would be dropped, so it must match all."""

    pattern: patterns.Pattern
    total: bool


def _levels(splits: Sequence[dict[str, Any]]) -> list[_Level]:
    levels = []
    for split in splits:
        if split["type"] == "ByteLevel":
            if split is not splits[-1]:
                raise Unsupported("it splits after ByteLevel")
            if split.get("add_prefix_space"):
                raise Unsupported("it adds a space before the text")
            if split.get("use_regex", True):
                levels.append(_Level(patterns.parse(_BYTE_LEVEL_PATTERN), False))
        elif split["type"] == "Split":
            behavior, invert = split["behavior"], split["invert"]
            if behavior != "Isolated" and not (behavior == "Removed" and invert):
                raise Unsupported(f"it splits with behaviour {behavior}")
            pattern = split["pattern"]
            text = pattern.get("Regex")
            if text is None:
                text = "".join("\\" + c if not c.isalnum() and c.isascii() else c for c in pattern["String"])
            levels.append(_Level(patterns.parse(text), behavior == "Removed"))
        elif split["type"] == "Digits" and split["individual_digits"]:
            levels.append(_Level(patterns.parse(r"\p{N}"), False))
        else:
            raise Unsupported(f"its pre-tokenizer is {split['type']}")
    return levels


def _automata(levels: Sequence[_Level]) -> tuple[npt.NDArray[np.uint8], list[Automaton], list[str]]:
    """Classes of characters (uint8[0x110000]) that no pattern tells apart, an automaton per level, and per
    class some of its characters."""
    atoms = sorted({atom for level in levels for atom in level.pattern.atoms})
    code = np.zeros(CODE_POINTS, np.int64)
    sets = {}
    for atom in atoms:
        sets[atom] = patterns.ask(atom)
        # Renumbered each time, so that any number of atoms fits.
        code = np.unique(code * 2 + sets[atom], return_inverse=True)[1].astype(np.int64)
    n = int(code.max()) + 1
    if n > 255:
        raise Unsupported(f"its split patterns tell {n} classes of characters apart")
    order = np.argsort(code, kind="stable")
    firsts = order[np.searchsorted(code[order], np.arange(n))]
    automata = [
        patterns.compile_pattern(level.pattern.node, {a: sets[a][firsts] for a in level.pattern.atoms})
        for level in levels
    ]
    for level, automaton in zip(levels, automata, strict=True):
        if level.total and not _matches_all(automaton):
            raise Unsupported("its split pattern may leave out text")
    pick = random.Random(0)
    representatives = []
    for k in range(n):
        members = np.flatnonzero(code == k)
        members = members[(members < 0xD800) | (members > 0xDFFF)]
        chosen = members[:2].tolist() + pick.choices(members.tolist(), k=2) if len(members) else []
        representatives.append("".join(map(chr, chosen)))
    return code.astype(np.uint8), automata, representatives


def _matches_all(automaton: Automaton) -> bool:
    """Whether a match begins at every character, whatever follows (told by its first character)."""
    after = automaton.steps[1, :-1] >> 1
    return bool((automaton.steps[after] & 1).all())


def boundaries(text: str, classes: npt.NDArray[np.uint8], automata: Sequence[Automaton]) -> list[int]:
    """The ends of all pre-tokens of a text, in characters: the slow twin of the compiled loop."""
    marks = classes[[ord(c) for c in text]] if text else classes[:0]
    pieces = [(0, len(text))]
    for automaton in automata:
        smaller = []
        for start, stop in pieces:
            at = gap = start
            while at < stop:
                end = automaton.match(marks, at, stop)
                if end < 0:
                    at += 1
                    continue
                if gap < at:
                    smaller.append((gap, at))
                smaller.append((at, end))
                at = gap = end
            if gap < stop:
                smaller.append((gap, stop))
        pieces = smaller
    return [end for _, end in pieces if end]


def _try(
    tokenizer: Tokenizer,
    classes: npt.NDArray[np.uint8],
    automata: Sequence[Automaton],
    representatives: Sequence[str],
) -> None:
    """Compare with the tokenizer's own pre-tokenizer on random strings: a last guard against its engine
    reading a pattern otherwise than is done here."""
    pick = random.Random(1)
    pool = [r for r in representatives if r]
    for _ in range(_TRIALS):
        # Few classes at a time: what tells patterns apart are runs and what follows them.
        few = pick.choices(pool, k=pick.randint(1, 5))
        text = "".join(pick.choice(pick.choice(few)) for _ in range(pick.randint(1, 12)))
        theirs = [end for _, (_, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        if sorted(set(theirs)) != boundaries(text, classes, automata):
            raise Unsupported(f"its splits differ from their pattern's on {text!r}")


# --- the model --------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level tokenizers write bytes: printable ones stand for themselves, the
    others follow from U+0100 in order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


def _merge_pairs(merges: Iterable[Any]) -> Iterable[tuple[str, str]]:
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right


def _byte_model(model: dict[str, Any]) -> dict[str, Array]:
    alphabet, vocab = _byte_alphabet(), model["vocab"]
    single = np.full(256, -1, np.int32)
    for character, byte in alphabet.items():
        single[byte] = vocab.get(character, -1)
    never = {0xC0, 0xC1, *range(0xF5, 0x100)}
    missing = [b for b in range(256) if single[b] < 0 and b not in never]
    if missing:
        raise Unsupported(f"its vocabulary has no token for the byte 0x{missing[0]:02X}")
    spelled = {}
    for token, i in vocab.items():
        if all(c in alphabet for c in token):
            spelled[i] = bytes(alphabet[c] for c in token)
    merges = np.array(
        [(vocab[a], vocab[b], vocab[a + b]) for a, b in _merge_pairs(model["merges"])], np.int32
    ).reshape(-1, 3)
    # A product spelled outside the alphabet can never arise from text.
    products = {spelled[i] for i in merges[:, 2].tolist() if i in spelled}
    rows = max(vocab.values()) + 1
    widths = np.zeros(rows, np.int32)
    for i, data in spelled.items():
        widths[i] = len(data)
    if len(widths) > MAX_IDS or len(merges) > MAX_MERGES or widths.max() > LONG:
        raise Unsupported("its vocabulary is too large")
    whole = (
        {data.decode(): i for i, data in spelled.items() if _is_text(data)}
        if model.get("ignore_merges")
        else {}
    )
    return {
        "single": single,
        "merges": merges,
        "widths": widths,
        "spans": widths,
        "symbols": np.zeros(0, np.int32),
        **_word_list("whole", whole),
        **_spanned(products),
    }


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _spanned(products: Iterable[bytes]) -> dict[str, Array]:
    """Which pairs of neighbouring characters some product spans.

    A product may begin with the last bytes of a character and end with the first bytes of one. Those ends are
    kept by groups: characters that end (begin) with the same such bytes.

    Returns `pairs`, a Bloom-like set of keys left << 21 | right of one bit each: one wrongly found only
    means a cut less; and `groups` uint32[0x110000]: left group << 16 | right group, 0 where none.
    """
    pairs: set[tuple[int, int]] = set()
    heads: set[tuple[bytes, int]] = set()
    tails: set[tuple[int, bytes]] = set()
    both: set[tuple[bytes, bytes]] = set()
    for data in products:
        first = 0
        while first < len(data) and data[first] & 0xC0 == 0x80:
            first += 1
        head, rest, tail = data[:first], data[first:], b""
        try:
            text = rest.decode()
        except UnicodeDecodeError as error:
            # Only what ends inside its last character can stand in a text.
            if error.end != len(rest) or error.reason != "unexpected end of data":
                continue
            text, tail = rest[: error.start].decode(), rest[error.start :]
        if len(head) > 3:
            continue
        points = list(map(ord, text))
        pairs.update(zip(points, points[1:], strict=False))
        if points and head:
            heads.add((head, points[0]))
        if points and tail:
            tails.add((points[-1], tail))
        if head and tail and not points:
            both.add((head, tail))
    left_bytes = {h for h, _ in heads} | {h for h, _ in both}
    right_bytes = {t for _, t in tails} | {t for _, t in both}
    left_of, left_groups = _groups(left_bytes, ends=True)
    right_of, right_groups = _groups(right_bytes, ends=False)
    heads_by: dict[bytes, list[int]] = {}
    for h, c in heads:
        heads_by.setdefault(h, []).append(c)
    tails_by: dict[bytes, list[int]] = {}
    for c, t in tails:
        tails_by.setdefault(t, []).append(c)
    keys = set(pairs)
    for g, members in enumerate(left_groups, 1):
        keys.update((GROUPS_FROM + g, c) for h in members for c in heads_by.get(h, ()))
        for k, others in enumerate(right_groups, 1):
            if any((h, t) in both for h in members for t in others):
                keys.add((GROUPS_FROM + g, GROUPS_FROM + k))
    for k, others in enumerate(right_groups, 1):
        keys.update((c, GROUPS_FROM + k) for t in others for c in tails_by.get(t, ()))
    return {"pairs": _bits(keys), "groups": left_of << np.uint32(16) | right_of}


def _groups(parts: set[bytes], ends: bool) -> tuple[npt.NDArray[np.uint32], list[frozenset[bytes]]]:
    """Characters by which of `parts` they end (begin) with, as proper parts: a group per code point (0 where
    none), and the parts of each group from 1 on."""
    of = np.zeros(CODE_POINTS, np.uint32)
    numbers: dict[frozenset[bytes], int] = {}
    if parts:
        for c in range(0x80, CODE_POINTS):
            if 0xD800 <= c < 0xE000:
                continue
            data = chr(c).encode()
            found = frozenset(
                p for n in range(1, len(data)) if (p := data[-n:] if ends else data[:n]) in parts
            )
            if found:
                of[c] = numbers.setdefault(found, len(numbers) + 1)
    if len(numbers) >= _MAX_GROUPS:
        raise Unsupported("its merges end inside characters in too many ways")
    return of, list(numbers)


def _bits(keys: set[tuple[int, int]]) -> npt.NDArray[np.uint8]:
    table = np.array(sorted(keys), np.uint64).reshape(-1, 2)
    size = 16
    while 1 << size < 24 * len(table):
        size += 1
    size = min(size, 26)
    h = ((table[:, 0] << np.uint64(21)) | table[:, 1]) * np.uint64(0x9E3779B97F4A7C15)
    h >>= np.uint64(64 - size)
    bits = np.zeros(1 << size, np.bool_)
    bits[h.astype(np.int64)] = True
    return np.packbits(bits, bitorder="little")


# --- added tokens -----------------------------------------------------------------------------------


def _added(added: Sequence[dict[str, Any]], tokenizer: Tokenizer, spaces: bool = False) -> dict[str, Array]:
    """Added tokens as tries of bytes: `raw_*`, looked for in the text as it is, and `normal_*`, looked for in what is
    left, normalized. Those with flags of white space or words are found, not encoded: -2.

    spaces: normalizing changes spaces, so that what is looked for in normalized text would be missed in the text. A
    text that holds such a token without its spaces, which it must to hold it at all, is found by `suspect_*`.
    """
    tries: dict[str, dict[bytes, int]] = {"raw": {}, "normal": {}, "suspect": {}}
    for token in added:
        content = token["content"]
        if token["normalized"] and spaces:
            tries["suspect"][content.replace(SPACE, "").replace(" ", "").encode()] = -2
            continue
        if token["normalized"] and tokenizer.normalizer is not None:
            content = tokenizer.normalizer.normalize_str(content)
        flagged = token["lstrip"] or token["rstrip"] or token["single_word"]
        if content:
            kind = "normal" if token["normalized"] else "raw"
            tries[kind][content.encode()] = -2 if flagged else token["id"]
    if b"" in tries["suspect"]:
        raise Unsupported("it has an added token of spaces")
    arrays: dict[str, Array] = {}
    for name, literals in tries.items():
        nodes, first = _trie(literals)
        arrays |= {f"{name}_nodes": nodes, f"{name}_first": first}
    return arrays


def _trie(literals: dict[bytes, int]) -> tuple[Array, Array]:
    """int32[n, 4] of (byte, first child, next sibling, id or -1), row 0 unused; and the node of each first
    byte (int32[256], 0 where none)."""
    nodes: list[list[int]] = [[0, 0, 0, -1]]
    first = np.zeros(256, np.int32)
    for data, i in sorted(literals.items()):
        parent = 0
        for depth, byte in enumerate(data):
            at = int(first[byte]) if depth == 0 else nodes[parent][1]
            while at and nodes[at][0] != byte:
                at = nodes[at][2]
            if not at:
                nodes.append([byte, 0, 0 if depth == 0 else nodes[parent][1], -1])
                at = len(nodes) - 1
                if depth == 0:
                    first[byte] = at
                else:
                    nodes[parent][1] = at
            parent = at
        nodes[parent][3] = i
    return np.array(nodes, np.int32), first
