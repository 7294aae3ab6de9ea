"""Text in which a token survives encoding as itself, found by encoding.

A *unit* is the shortest text found that gives a token: mostly the token's own text; for a token that
is a part of a character, or one that its own text never gives, a piece of the vocabulary table's
example. Some units hold only behind something (a WordPiece suffix, a SentencePiece piece without its
word mark); `left` is a text behind which they were seen to hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl
from tokenizers import Tokenizer

from coverage_job.schemas import Kind, Reachability
from coverage_job.tokenizer.load import encode_all

# Tried in order; "" first because it costs nothing. A newline absorbs SentencePiece's word mark,
# letters carry WordPiece suffixes, the rest is for what merges with those.
LEFTS: tuple[str, ...] = ("", "\n", "a", "x", ".", "1", "。", " a", "\na")


# What text can reach; the others are exempt, or the template's business.
BY_TEXT = (Reachability.DIRECT.value, Reachability.CONTEXTUAL.value)


@dataclass(frozen=True, slots=True)
class Unit:
    """A text that gives a token.

    token_id: what it is for. text: never empty. ids: what `text` encodes to behind `left`.
    """

    token_id: int
    text: str
    ids: tuple[int, ...]
    left: str


@dataclass(frozen=True, slots=True)
class Missing:
    """A token for which no unit was found, and why."""

    token_id: int
    reason: str


_REASONS = {
    Reachability.SPECIAL.value: "special: only the chat template writes it",
    Reachability.UNUSED.value: "unused: no token has this row",
    Reachability.UNREACHABLE.value: "unreachable: no text gives it",
    Reachability.MERGE_INTERMEDIATE.value: "merge_intermediate: always merged further",
    Reachability.BYTE_NEVER.value: "byte_never: no UTF-8 text leaves this byte standing",
}


def find_units(
    coverage: pl.DataFrame, tokenizer: Tokenizer, forbidden: Iterable[str] = ()
) -> tuple[list[Unit], list[Missing]]:
    """One unit per token of `coverage` that some text reaches, in order of id; and the rest with reasons.

    coverage: columns token_id, token_bytes, kind, decodable, reachability, example of the tokens wanted.
    forbidden: special-token texts, which never enter plain text.
    """
    lefts = [(left, tuple(ids)) for left, ids in zip(LEFTS, encode_all(tokenizer, LEFTS), strict=True)]
    if _marks_start(tokenizer):
        # What holds at a text's start alone is no help in its middle.
        lefts = lefts[1:] + lefts[:1]
    banned = tuple(forbidden)
    missing: list[Missing] = []
    surfaces: dict[int, str] = {}
    examples: dict[int, str] = {}
    rows = coverage.select("token_id", "token_bytes", "kind", "reachability", "example").sort("token_id")
    for token_id, token_bytes, kind, reachability, example in rows.iter_rows():
        if reachability not in BY_TEXT or kind == Kind.SPECIAL.value:
            missing.append(Missing(token_id, _REASONS.get(reachability, "special: no plain text gives it")))
            continue
        try:
            surface = token_bytes.decode("utf-8")
        except UnicodeDecodeError:
            surface = ""
        if surface and not any(text in surface for text in banned):
            surfaces[token_id] = surface
        if example and not any(text in example for text in banned):
            examples[token_id] = example

    found: dict[int, Unit] = {}
    for left, left_ids in lefts:
        for mark in ("", " "):
            rest = ((v, mark + text) for v, text in surfaces.items() if v not in found)
            _try(tokenizer, left, left_ids, rest, found, 1)
    pending = {v: t for v, t in examples.items() if v not in found}
    forms = {v: _pieces(tokenizer, v, text) for v, text in pending.items()}
    for place in range(max(map(len, forms.values()), default=0)):
        for left, left_ids in lefts:
            rest = ((v, f[place]) for v, f in forms.items() if place < len(f) and v not in found)
            _try(tokenizer, left, left_ids, rest, found, None)

    wanted = set(surfaces) | set(examples)
    for token_id in rows["token_id"].to_list():
        if token_id in wanted and token_id not in found:
            missing.append(Missing(token_id, "no text was found whose encoding keeps it"))
    known = {m.token_id for m in missing} | set(found)
    missing += [
        Missing(v, "its only text is a special token's") for v in rows["token_id"].to_list() if v not in known
    ]
    return [found[v] for v in sorted(found)], sorted(missing, key=lambda m: m.token_id)


def _marks_start(tokenizer: Tokenizer) -> bool:
    """Whether the start of a text is encoded as if a space stood before it (SentencePiece)."""
    alone, after = encode_all(tokenizer, ["a", "\na"])
    return after[-len(alone) :] != alone


def _try(
    tokenizer: Tokenizer,
    left: str,
    left_ids: tuple[int, ...],
    wanted: Iterable[tuple[int, str]],
    found: dict[int, Unit],
    most: int | None,
) -> None:
    # Keep each text that, behind `left`, adds the token to what `left` gives (and at most `most` ids).
    pairs = list(wanted)
    n = len(left_ids)
    for (token_id, text), ids in zip(
        pairs, encode_all(tokenizer, [left + text for _, text in pairs]), strict=True
    ):
        own = tuple(ids[n:])
        if tuple(ids[:n]) == left_ids and token_id in own and (most is None or len(own) <= most):
            found[token_id] = Unit(token_id, text, own, left)


def _pieces(tokenizer: Tokenizer, token_id: int, example: str) -> list[str]:
    # The example cut down around the token, shortest first.
    encoding = tokenizer.encode(example, add_special_tokens=False)
    if token_id not in encoding.ids:
        return []
    start, end = encoding.offsets[encoding.ids.index(token_id)]
    pieces = (example[start:end], example[start:], example[:end], example)
    return list(dict.fromkeys(p for p in pieces if p))
