"""The mergeable state: counts per (language, group, token).

Kept sparse, because a corpus of many languages has few tokens of each: a batch is counted in dense
scratch arrays, one key after the other, and what it touched is appended as rows. Rows of one key
and token add, so the state of two histograms is the state of both one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coverage_job.corpus.documents import Int64, Key, TokenBatch
from coverage_job.counting.compiled import compiled, get, get_from, put, put_to
from coverage_job.schemas import PARTIAL

# Rows appended before they are summed; a row takes 40 bytes.
_COMPACT_ROWS = 1 << 21
# Rows past which a task hands over what it has, and begins anew.
_FULL_ROWS = 1 << 23
_OUTPUT_ROWS = 1 << 16

_Rows = tuple[Int64, npt.NDArray[np.int64]]  # codes (key << 32 | token_id), counts int64[n, 4]

# Columns of the two scratch arrays, of what stands in any place and of targets: what is counted of a token
# under one key, and the last document that had it. A batch is bounded by bytes, so that its counts fit 32
# bits; a row of 16 bytes never crosses a cache line.
_OCCURRENCES, _DOCUMENTS, _SEEN = range(3)
_WIDTH = 4


@compiled
def _count(ids, documents, supervised, order, lo, hi, scratch, targets, touched):  # type: ignore[no-untyped-def]
    """Counts documents order[lo:hi] into `scratch` and `targets`, all zeros before; returns how many tokens
    were `touched`.

    Without branches: whether a document has had a token is as good as random. `touched` has room for one
    more than there are tokens.
    """
    n = 0
    has_mask = len(supervised) > 0
    for i in range(lo, hi):
        document = order[i]
        stamp = np.int32(i - lo + 1)
        for t in range(documents[document], documents[document + 1]):
            token = get(ids, t)
            put(touched, n, token)
            occurrences = get_from(scratch, token, _OCCURRENCES)
            n += occurrences == 0
            put_to(scratch, token, _OCCURRENCES, occurrences + 1)
            new = get_from(scratch, token, _SEEN) != stamp
            put_to(scratch, token, _DOCUMENTS, get_from(scratch, token, _DOCUMENTS) + new)
            put_to(scratch, token, _SEEN, stamp)
            if has_mask:
                target = get(supervised, t) != 0
                last = get_from(targets, token, _SEEN)
                put_to(targets, token, _OCCURRENCES, get_from(targets, token, _OCCURRENCES) + target)
                counted = get_from(targets, token, _DOCUMENTS) + (target & (last != stamp))
                put_to(targets, token, _DOCUMENTS, counted)
                put_to(targets, token, _SEEN, stamp if target else last)
    return n


def warm_up() -> None:
    """Compile what counts, or load what was compiled; the first batch would else pay for it."""
    one = np.array([0, 1], np.int64)
    Histogram(1).add(TokenBatch(np.zeros(1, np.int32), one, None, None, np.zeros(1, np.int32)))


def _compact(blocks: list[_Rows]) -> list[_Rows]:
    if len(blocks) < 2:
        return blocks
    codes = np.concatenate([b[0] for b in blocks])
    counts = np.concatenate([b[1] for b in blocks])
    if len(codes) == 0:
        return []
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    first = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    return [(codes[first], np.add.reduceat(counts[order], first, axis=0))]


class Histogram:
    """Counts of a task. Batches are added to an open piece, which is kept or dropped as a whole.

    rows: highest id + 1; the caller has checked that no id is beyond it.
    """

    def __init__(self, rows: int) -> None:
        self._scratch, self._targets = np.zeros((2, rows, _WIDTH), np.int32)
        self._touched = np.empty(rows + 1, np.int32)
        self._kept: list[_Rows] = []
        self._open: list[_Rows] = []
        self._size_at_last_sum = 0

    def add(self, batch: TokenBatch) -> None:
        """Add a batch to the open piece."""
        if len(batch) == 0:
            return
        order = np.argsort(batch.keys, kind="stable")
        keys = batch.keys[order]
        borders = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1], [True]]))
        mask = np.empty(0, np.uint8) if batch.supervised is None else batch.supervised
        scratch, targets = self._scratch, self._targets
        for lo, hi in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
            n = _count(batch.ids, batch.documents, mask, order, lo, hi, scratch, targets, self._touched)
            touched = self._touched[:n]
            counts = np.empty((n, 4), np.int64)
            counts[:, :2] = scratch[touched, :_SEEN]
            scratch[touched] = 0
            if batch.supervised is None:
                counts[:, 2:] = counts[:, :2]
            else:
                counts[:, 2:] = targets[touched, :_SEEN]
                targets[touched] = 0
            self._open.append(((np.int64(keys[lo]) << 32) | touched.astype(np.int64), counts))
        size = sum(len(codes) for codes, _ in self._open)
        if size > max(_COMPACT_ROWS, 2 * self._size_at_last_sum):
            self._open = _compact(self._open)
            self._size_at_last_sum = sum(len(codes) for codes, _ in self._open)

    def keep(self) -> None:
        """End the open piece: its counts stand."""
        self._kept += self._open
        self._open = []
        self._size_at_last_sum = 0
        if sum(len(codes) for codes, _ in self._kept) > 2 * _COMPACT_ROWS:
            self._kept = _compact(self._kept)

    def drop(self) -> None:
        """Forget the open piece (its file turned out bad)."""
        self._open = []
        self._size_at_last_sum = 0

    @property
    def full(self) -> bool:
        """Whether the state, kept and open, should be handed over to bound memory."""
        return sum(len(codes) for codes, _ in self._kept + self._open) > _FULL_ROWS

    def drain(self, unit: str, keys: Sequence[Key]) -> Iterator[pa.RecordBatch]:
        """Hand over all kept counts as batches of schema PARTIAL, in order of key and token; begin anew."""
        rows = _compact(self._kept)
        self._kept = []
        if not rows:
            return
        codes, counts = rows[0]
        order = np.argsort(codes, kind="stable")
        codes, counts = codes[order], counts[order]
        for start in range(0, len(codes), _OUTPUT_ROWS):
            part, columns = codes[start : start + _OUTPUT_ROWS], counts[start : start + _OUTPUT_ROWS]
            which = (part >> 32).astype(np.int32)
            languages = pa.array([k.language for k in keys]).take(pa.array(which))
            groups = pa.array([k.group for k in keys]).take(pa.array(which))
            yield pa.record_batch(
                [
                    pa.array([unit] * len(part), pa.string()),
                    languages.cast(pa.string()),
                    groups.cast(pa.string()),
                    pa.array((part & 0xFFFFFFFF).astype(np.int32)),
                    *[pa.array(np.ascontiguousarray(columns[:, i])) for i in range(4)],
                ],
                schema=PARTIAL,
            )
