"""The counts' definition: the tokenizer's own encoding, piece by piece; what every fast path is held to."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from tokenizers import Tokenizer

from coverage_job.corpus.documents import Int32, Int64, TextBatch, TokenBatch, UInt8
from coverage_job.counting.plain import Encoded, encode_plain

# The tokenizer's result objects take some hundred bytes a token, so they live for little text at a time.
_SLICE_BYTES = 1 << 20


class ReferenceKernel:
    """Encodes with ``encode(piece, add_special_tokens=False)``, as a trainer would."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, batch: TextBatch) -> TokenBatch:
        """The ids of every document, with the supervised mask where the batch has spans.

        A token is supervised where it overlaps a supervised span by at least one byte; a token of no
        bytes (a prefix that the normalizer added) counts as the byte that follows it.
        """
        blob = np.ascontiguousarray(batch.text).data
        lengths: list[int] = []
        ids: list[Int32] = []
        masks: list[UInt8] = []
        seams: list[int] = []
        for first, last in _slices(batch.pieces):
            texts = [
                str(blob[start:end], "utf-8")
                for start, end in zip(
                    batch.pieces[first:last].tolist(),
                    batch.pieces[first + 1 : last + 1].tolist(),
                    strict=True,
                )
            ]
            if batch.plain is not None:
                for piece, text in enumerate(texts, first):
                    start, end = int(batch.pieces[piece]), int(batch.pieces[piece + 1])
                    found, offsets = self._encode_plain(text, batch, start, end)
                    lengths.append(len(found))
                    ids.append(np.array(found, np.int32))
                    if batch.spans is not None:
                        ranges = byte_ranges(text, batch.text[start:end], offsets) + start
                        mask, straddling = supervise(ranges, batch.spans)
                        masks.append(mask)
                        seams.append(straddling)
                continue
            if batch.spans is None:
                for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False):
                    lengths.append(len(encoding))
                    ids.append(np.array(encoding.ids, np.int32))
                continue
            encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
            for piece, (text, encoding) in enumerate(zip(texts, encodings, strict=True), first):
                lengths.append(len(encoding))
                ids.append(np.array(encoding.ids, np.int32))
                start, end = int(batch.pieces[piece]), int(batch.pieces[piece + 1])
                ranges = byte_ranges(text, batch.text[start:end], encoding.offsets) + start
                mask, straddling = supervise(ranges, batch.spans)
                masks.append(mask)
                seams.append(straddling)
        ends = np.fromiter(accumulate(lengths, initial=0), np.int64, len(lengths) + 1)
        return TokenBatch(
            ids=np.concatenate(ids) if ids else np.empty(0, np.int32),
            documents=ends[batch.documents],
            supervised=None if batch.spans is None else np.concatenate([np.empty(0, np.uint8), *masks]),
            seams=None if batch.spans is None else _per_document(seams, batch.documents),
            keys=batch.keys,
        )

    def _encode_plain(self, text: str, batch: TextBatch, start: int, end: int) -> Encoded:
        plain = batch.plain
        assert plain is not None
        plain = plain[(plain[:, 0] >= start) & (plain[:, 1] <= end)] - start
        if not len(plain):
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
            return encoding.ids, encoding.offsets
        if len(text) < end - start:
            starts = np.flatnonzero((batch.text[start:end] & 0xC0) != 0x80)
            plain = np.searchsorted(starts, plain)
        return encode_plain(text, [(a, b) for a, b in plain.tolist()], self._tokenizer)


def _slices(pieces: Int64) -> list[tuple[int, int]]:
    """Runs of pieces of about `_SLICE_BYTES` each, as (first, last + 1)."""
    slices, first, n = [], 0, len(pieces) - 1
    while first < n:
        last = int(np.searchsorted(pieces, pieces[first] + _SLICE_BYTES, side="right")) - 1
        last = min(max(last, first + 1), n)
        slices.append((first, last))
        first = last
    return slices


def _per_document(values: list[int], documents: Int64) -> Int32:
    sums = np.concatenate([[0], np.cumsum(np.array(values, np.int64))])
    result: Int32 = (sums[documents[1:]] - sums[documents[:-1]]).astype(np.int32)
    return result


def byte_ranges(text: str, data: UInt8, offsets: list[tuple[int, int]]) -> Int64:
    """Token offsets in characters of `text` as byte ranges of `data`, its UTF-8: int64[tokens, 2]."""
    ranges = np.array(offsets, np.int64).reshape(-1, 2)
    if len(text) == len(data):
        return ranges
    starts = np.append(np.flatnonzero((data & 0xC0) != 0x80), len(data))
    converted: Int64 = starts[ranges]
    return converted


def supervise(ranges: Int64, spans: Int64) -> tuple[UInt8, int]:
    """The supervised mask of tokens at byte `ranges`, and how many straddle a span's border.

    >>> mask, seams = supervise(np.array([[0, 2], [2, 5], [5, 6]]), np.array([[3, 6]]))
    >>> mask.tolist(), seams
    ([0, 1, 1], 1)
    """
    if len(spans) == 0 or len(ranges) == 0:
        return np.zeros(len(ranges), np.uint8), 0
    starts, ends = ranges[:, 0], np.maximum(ranges[:, 1], ranges[:, 0] + 1)
    nearest = np.searchsorted(spans[:, 1], starts, side="right")
    inside = nearest < len(spans)
    nearest = np.minimum(nearest, len(spans) - 1)
    mask = inside & (spans[nearest, 0] < ends)
    whole = (spans[nearest, 0] <= starts) & (ends <= spans[nearest, 1])
    return mask.astype(np.uint8), int((mask & ~whole).sum())
