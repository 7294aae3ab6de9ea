"""Which tokens bear loss, once a batch is encoded: the reference encoding, truncation, and token audits.

All of it is on flat arrays (`corpus/documents.py`). `encode` is the reference that a faster kernel has
to equal; the other functions do not care who encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from coverage_job.corpus.audit import MaskAudit
from coverage_job.corpus.documents import Int32, Int64, TextBatch, TokenBatch, UInt8

Bool = npt.NDArray[np.bool_]


def mask_of_spans(starts: Int64, ends: Int64, spans: Int64) -> tuple[UInt8, Bool]:
    """(supervised, seam) per token.

    starts, ends: int64[t], the token's bytes. spans: int64[s, 2], sorted and disjoint.
    A token is supervised where it overlaps a span by at least one byte; a token without bytes (a prefix
    that a tokenizer puts in) where it stands inside one. It is a seam where it also reaches outside.
    """
    if not len(spans):
        return np.zeros(len(starts), np.uint8), np.zeros(len(starts), np.bool_)
    at = np.searchsorted(spans[:, 1], starts, side="right")
    inside = at < len(spans)
    at = np.minimum(at, len(spans) - 1)
    supervised = inside & (spans[at, 0] < ends)
    seams = supervised & ((starts < spans[at, 0]) | (ends > spans[at, 1]))
    return supervised.astype(np.uint8), seams


def encode(batch: TextBatch, tokenizer: Tokenizer) -> TokenBatch:
    """The reference: each piece whole, as `encode(text, add_special_tokens=False)`, with exact borders.

    Special-token text in `batch.plain` is encoded as plain text: the stretch between the control tokens
    around it is encoded by itself with special tokens off. The tokenizer must be this function's alone
    while it runs.
    """
    # Byte-level post-processing trims white space off a token's borders, never off its ids.
    processor = tokenizer.post_processor
    tokenizer.post_processor = None
    try:
        pieces = [_encode_piece(batch, j, tokenizer) for j in range(len(batch.pieces) - 1)]
    finally:
        tokenizer.post_processor = processor
    counts = np.array([len(ids) for ids, _ in pieces], np.int64)
    borders = np.concatenate([[0], np.cumsum(counts)])
    documents = borders[batch.documents].astype(np.int64)
    ids = np.concatenate([np.zeros(0, np.int32), *(ids for ids, _ in pieces)]).astype(np.int32)
    if batch.spans is None:
        return TokenBatch(ids, documents, None, None, batch.keys)
    ranges = np.concatenate([np.zeros((0, 2), np.int64), *(ranges for _, ranges in pieces)])
    supervised, seams = mask_of_spans(ranges[:, 0], ranges[:, 1], batch.spans)
    per_document = _sums(seams, documents).astype(np.int32)
    return TokenBatch(ids, documents, supervised, per_document, batch.keys)


def _encode_piece(batch: TextBatch, piece: int, tokenizer: Tokenizer) -> tuple[Int32, Int64]:
    """(ids, their byte ranges in the batch's text) of one piece."""
    start, end = int(batch.pieces[piece]), int(batch.pieces[piece + 1])
    data = batch.text[start:end]
    # First byte of each character, and the end; `tokenizers` counts characters.
    byte_of = np.append(np.flatnonzero((data & 0xC0) != 0x80), len(data)).astype(np.int64) + start
    text = data.tobytes().decode("utf-8")
    plain = np.zeros((0, 2), np.int64)
    if batch.plain is not None:
        plain = batch.plain[(batch.plain[:, 0] >= start) & (batch.plain[:, 1] <= end)]
    if len(plain):
        at = np.searchsorted(byte_of, plain)
        ids, ranges = _encode_with_plain(text, at, tokenizer)
    else:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        ids, ranges = encoding.ids, encoding.offsets
    offsets = np.array(ranges, np.int64).reshape(-1, 2)
    return np.array(ids, np.int32), byte_of[offsets]


def _encode_with_plain(
    text: str, plain: Int64, tokenizer: Tokenizer
) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids and character ranges of a text in which the ranges `plain` are no control tokens.

    The text is cut at control tokens, which every tokenizer splits off before anything else.
    """
    special = sorted(
        (t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special), key=len, reverse=True
    )
    ids: list[int] = []
    ranges: list[tuple[int, int]] = []

    def add(start: int, end: int, as_text: bool) -> None:
        if start == end:
            return
        tokenizer.encode_special_tokens = as_text
        try:
            encoding = tokenizer.encode(text[start:end], add_special_tokens=False)
        finally:
            tokenizer.encode_special_tokens = False
        ids.extend(encoding.ids)
        ranges.extend((a + start, b + start) for a, b in encoding.offsets)

    # Walk from one control token to the next; `low` is where the open stretch began.
    low, at, next_plain, holds_plain = 0, 0, 0, False
    while at < len(text):
        if next_plain < len(plain) and at == plain[next_plain, 0]:
            at, next_plain, holds_plain = int(plain[next_plain, 1]), next_plain + 1, True
            continue
        token = next((t for t in special if text.startswith(t, at)), None)
        if token is None:
            at += 1
            continue
        add(low, at, holds_plain)
        add(at, at + len(token), False)
        low = at = at + len(token)
        holds_plain = False
    add(low, len(text), holds_plain)
    return ids, ranges


def truncate(
    batch: TokenBatch, max_length: int, side: Literal["right", "left"] = "right"
) -> tuple[TokenBatch, Bool, Bool]:
    """(the batch with each document cut to `max_length` tokens, cut, answer cut) per document.

    side: the side that is cut off. An answer is cut where at least one supervised token is. Seams keep
    the count of the whole document: they are facts of the text.
    """
    lengths = np.diff(batch.documents)
    kept = np.minimum(lengths, max_length)
    cut = lengths > max_length
    if not cut.any():
        return batch, cut, cut
    first = batch.documents[:-1] if side == "right" else batch.documents[1:] - kept
    documents = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    take = np.arange(documents[-1]) + np.repeat(first - documents[:-1], kept)
    supervised = batch.supervised[take] if batch.supervised is not None else None
    if batch.supervised is None or supervised is None:
        answer_cut = cut
    else:
        answer_cut = _sums(batch.supervised, batch.documents) > _sums(supervised, documents)
    out = TokenBatch(batch.ids[take], documents, supervised, batch.seams, batch.keys)
    return out, cut, answer_cut


@dataclass(frozen=True, slots=True)
class Watched:
    """Ids that the audit looks for. bos: of BOS, None where there is none. ends: id -> its text."""

    bos: int | None
    ends: Mapping[int, str]


def audit_tokens(
    audit: MaskAudit,
    batch: TokenBatch,
    watched: Watched,
    cut: Bool | None = None,
    answer_cut: Bool | None = None,
) -> Bool:
    """Adds a batch to `audit`; returns which documents have no target, bool[n].

    batch: after truncation. cut, answer_cut: what `truncate` said.
    """
    audit.records += len(batch)
    audit.tokens += len(batch.ids)
    supervised = batch.supervised if batch.supervised is not None else np.ones(len(batch.ids), np.uint8)
    audit.supervised_tokens += int(np.count_nonzero(supervised))
    empty: Bool = np.equal(_sums(supervised, batch.documents), 0)
    audit.without_target += int(empty.sum())
    if batch.seams is not None:
        audit.seam_tokens += int(batch.seams.sum())
        audit.with_seams += int(np.count_nonzero(batch.seams))
    if watched.bos is not None:
        audit.with_two_bos += int((_sums(batch.ids == watched.bos, batch.documents) > 1).sum())
    for token, text in watched.ends.items():
        here = batch.ids == token
        pair = audit.end_of_turn.setdefault(text, [0, 0])
        pair[0] += int(np.count_nonzero(here))
        pair[1] += int(np.count_nonzero(here & (supervised != 0)))
    if cut is not None:
        audit.truncated += int(cut.sum())
    if answer_cut is not None:
        audit.truncated_answers += int(answer_cut.sum())
    return empty


def _sums(values: npt.NDArray[np.generic], documents: Int64) -> Int64:
    """Sum of non-negative `values` per document; 0 for an empty one."""
    total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    return np.asarray(total[documents[1:]] - total[documents[:-1]], np.int64)
