"""How far each row moved between two matrices, streamed by blocks of rows.

Values are float32 or better. On the CPU each thread reads a block small enough to stay in its cache and
sums it there; on a GPU larger blocks are summed by torch. Either way cosines are within `COSINE_TOLERANCE`
of a float64 reference, and lengths within `LENGTH_TOLERANCE` of themselves.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coverage_job.checkpoint.dtypes import STORED
from coverage_job.checkpoint.matrix import Matrix
from coverage_job.errors import CheckpointError, JobError
from coverage_job.storage import is_local

if TYPE_CHECKING:
    import torch

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Progress = Callable[[str, int, int], None]

COSINE_TOLERANCE = 1e-6
LENGTH_TOLERANCE = 1e-5

# Squared norms below it may have lost values whose squares float32 cannot hold.
_TINY = 1e-24

# A request to a store costs as much as a megabyte; a block from the page cache should stay in the L2 cache.
_LOCAL_BLOCK, _REMOTE_BLOCK, _DEVICE_BLOCK = 1 << 20, 16 << 20, 64 << 20
_REMOTE_THREADS = 8


@dataclass(frozen=True)
class RowScores:
    """One value per row of the after matrix; NaN where it is not defined.

    cosine: of the row before and after; undefined where either is zero or has no counterpart.
    l2: length of the difference. relative_l2: l2 over the length before.
    norm_before, norm_after: lengths. All are undefined where a value of the row is NaN or infinite.
    compared: bool, whether the row has a counterpart.
    faults: ids of after rows by what is wrong with them: zero_before, nan_before, inf_before, zero_after, ...
    """

    cosine: Float64
    l2: Float64
    relative_l2: Float64
    norm_before: Float64
    norm_after: Float64
    compared: npt.NDArray[np.bool_]
    faults: dict[str, list[int]] = field(default_factory=dict)

    def rank(self) -> npt.NDArray[np.int32]:
        """1 for the lowest cosine (of equal ones the lowest id), 0 where there is no cosine."""
        rank = np.zeros(len(self.cosine), dtype=np.int32)
        order = np.argsort(self.cosine, kind="stable")  # NaN comes last
        known = order[: int(np.count_nonzero(~np.isnan(self.cosine)))]
        rank[known] = np.arange(1, len(known) + 1)
        return rank


def resolve_device(device: str) -> str:
    """``cpu`` or ``cuda``, also for ``auto``. Raises JobError where there is no such device."""
    if device == "cpu":
        return "cpu"
    try:
        import torch

        available = torch.cuda.is_available()
    except ImportError:
        available = False
    if device == "cuda" and not available:
        raise JobError("--device cuda: torch sees no CUDA device; use --device cpu")
    return "cuda" if available else "cpu"


def check_comparable(before: Matrix, after: Matrix, row_map: Int64 | None) -> None:
    """Raises CheckpointError where rows of the two cannot be held against each other."""
    if before.shape[1] != after.shape[1]:
        raise CheckpointError(
            f"{before.name} has rows of {before.shape[1]} values and {after.name} of {after.shape[1]}: "
            "not two checkpoints of one model; name the matrices with --lm-head and --embedding"
        )
    if row_map is not None and (
        len(row_map) != after.shape[0] or (len(row_map) and int(row_map.max()) >= before.shape[0])
    ):
        raise CheckpointError(
            f"the id map has {len(row_map)} entries up to {int(row_map.max(initial=-1))} for {after.name} of "
            f"{after.shape[0]} rows and {before.name} of {before.shape[0]}; compare the tokenizers of "
            "these two"
        )


def fitted(row_map: Int64 | None, rows: int) -> Int64 | None:
    """A map of a tokenizer's rows as one of a matrix: rows past the tokenizer's hold no token."""
    if row_map is None or len(row_map) >= rows:
        return row_map
    padded = np.full(rows, -1, np.int64)
    padded[: len(row_map)] = row_map
    return padded


def score_rows(
    before: Matrix | None,
    after: Matrix,
    *,
    row_map: Int64 | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> RowScores:
    """Scores of every row of `after`.

    before: None gives `norm_after` alone. row_map: int64[after rows], the row of `before` that holds the same
    token, -1 for none; without it rows of one id belong together, as far as both matrices have them.
    device: ``cpu`` or ``cuda``. Raises CheckpointError where the matrices do not fit each other.
    """
    if before is not None:
        check_comparable(before, after, row_map)
    rows = after.shape[0]
    if row_map is not None:
        compared = row_map >= 0
    else:
        compared = np.arange(rows) < (before.shape[0] if before is not None else 0)
    sums = np.full((rows, 4), np.nan)
    work = _Work(before, after, row_map, compared, sums, device)
    done = 0
    for count in work.run():
        done += count
        if progress is not None:
            progress(after.name, done, rows)
    return _finish(work)


class _Work:
    """The sums of all rows (dot, before², after², difference²), by blocks over threads."""

    def __init__(
        self,
        before: Matrix | None,
        after: Matrix,
        row_map: Int64 | None,
        compared: npt.NDArray[np.bool_],
        sums: Float64,
        device: str,
    ) -> None:
        self.before, self.after, self.row_map, self.compared = before, after, row_map, compared
        self.sums, self.device = sums, device
        self.faults: dict[str, list[int]] = {}
        self._own = threading.local()
        self._lock = threading.Lock()
        local = all(is_local(m.parts[0].path) for m in (before, after) if m is not None)
        block = _LOCAL_BLOCK if local else _REMOTE_BLOCK
        self.threads = _cpus() if local else max(_cpus(), _REMOTE_THREADS)
        if device != "cpu":
            block, self.threads = _DEVICE_BLOCK, 4
        self.block_rows = max(1, block // after.row_bytes)

    def run(self) -> Iterator[int]:
        """Does the work; gives the number of rows of each block as it ends."""
        rows = self.after.shape[0]
        spans = [(s, min(rows, s + self.block_rows)) for s in range(0, rows, self.block_rows)]
        with ThreadPoolExecutor(self.threads) as pool:
            futures: list[Future[int]] = [pool.submit(self._block, *span) for span in spans]
            try:
                for future in futures:
                    yield future.result()
            finally:
                for future in futures:
                    future.cancel()

    def _buffer(self, name: str, matrix: Matrix) -> npt.NDArray[Any]:
        if not hasattr(self._own, name):
            shape = (self.block_rows, matrix.shape[1])
            setattr(self._own, name, np.empty(shape, dtype=STORED[matrix.dtype]))
        buffer: npt.NDArray[Any] = getattr(self._own, name)
        return buffer

    def _block(self, start: int, stop: int) -> int:
        after = self.after.raw(start, stop, self._buffer("after", self.after))
        ids = np.arange(start, stop)
        paired = self.compared[start:stop]
        if self.before is not None and paired.any():
            before, matching = self._pair(start, after, paired)
            self._score(ids[paired], matching, before)
        if not paired.all():
            self._score(ids[~paired], after[~paired], None)
        return stop - start

    def _score(self, ids: Int64, after: npt.NDArray[Any], before: npt.NDArray[Any] | None) -> None:
        """The sums of some rows of a block; those without a counterpart have only after²."""
        if before is not None and self.before is not None:
            sums = self._sums(before, self.before, after, ids)
            decided = np.isfinite(sums).all(axis=1) & (sums[:, 1] >= _TINY)
        else:
            sums = self._sums(after, self.after, after, ids)
            sums[:, [0, 1, 3]] = np.nan
            decided = np.isfinite(sums[:, 2])
        # What float32 sums cannot decide is looked at again: zeros, NaN, infinities, overflow.
        for i in np.flatnonzero(~(decided & (sums[:, 2] >= _TINY))).tolist():
            one = slice(i, i + 1)
            y = self._values(self.after, after[one], ids[one])[0].astype(np.float64)
            x = None
            if before is not None and self.before is not None:
                x = self._values(self.before, before[one], ids[one])[0].astype(np.float64)
            sums[i] = self._exact(int(ids[i]), x, y)
        self.sums[ids] = sums

    def _exact(self, row: int, x: Float64 | None, y: Float64) -> list[float]:
        found = [(s, _fault(v)) for s, v in (("before", x), ("after", y)) if v is not None]
        with self._lock:
            for side, fault in found:
                if fault is not None:
                    self.faults.setdefault(f"{fault}_{side}", []).append(row)
        if any(fault in ("nan", "inf") for _, fault in found):
            return [np.nan] * 4
        if x is None:
            return [np.nan, np.nan, float(y @ y), np.nan]
        return [float(x @ y), float(x @ x), float(y @ y), float((y - x) @ (y - x))]

    def _pair(
        self, start: int, after: npt.NDArray[Any], paired: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """(rows of before, rows of after) of a block's paired rows, as stored."""
        assert self.before is not None
        if self.row_map is not None:
            sources = self.row_map[start : start + len(after)][paired]
            return self.before.take(sources), after[paired]
        # Without a map the rows with a counterpart are the first ones.
        count = int(paired.sum())
        return self.before.raw(start, start + count, self._buffer("before", self.before)), after[:count]

    def _sums(self, a: npt.NDArray[Any], before: Matrix, b: npt.NDArray[Any], ids: Int64) -> Float64:
        from coverage_job.drift import kernels

        if self.device != "cpu":
            return self._sums_torch(a, before, b, ids)
        out = np.empty((len(ids), 4))
        if before.dtype == self.after.dtype == "BF16" and not (before.scaled or self.after.scaled):
            kernels.sums_bfloat16(a, b, out)
        else:
            kernels.sums_float32(self._values(before, a, ids), self._values(self.after, b, ids), out)
        return out

    def _values(self, matrix: Matrix, block: npt.NDArray[Any], ids: Int64) -> npt.NDArray[np.float32]:
        if matrix.scaled and matrix is self.before and self.row_map is not None:
            return matrix.scale(block, self.row_map[ids])
        return matrix.scale(block, ids)

    def _sums_torch(self, a: npt.NDArray[Any], before: Matrix, b: npt.NDArray[Any], ids: Int64) -> Float64:
        import torch

        def on_device(matrix: Matrix, block: npt.NDArray[Any]) -> torch.Tensor:
            if matrix.dtype == "BF16" and not matrix.scaled:
                # Half the bytes to move.
                return torch.from_numpy(block.view(np.int16)).view(torch.bfloat16).to(self.device).float()
            return torch.from_numpy(self._values(matrix, block, ids)).to(self.device)

        sums = sums_torch(on_device(before, a), on_device(self.after, b))
        return np.asarray(sums.cpu().numpy(), dtype=np.float64)


def sums_torch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """float64[rows, 4]: what the kernels compute, of two float32 blocks on any device."""
    import torch

    z = y - x
    return torch.stack([(p * q).sum(1, dtype=torch.float64) for p, q in ((x, y), (x, x), (y, y), (z, z))], 1)


def _finish(work: _Work) -> RowScores:
    sums = work.sums
    with np.errstate(invalid="ignore", divide="ignore"):
        norm_before, norm_after, l2 = np.sqrt(sums[:, 1]), np.sqrt(sums[:, 2]), np.sqrt(sums[:, 3])
        # The root of the product, not the product of the roots: an unmoved row then has exactly 1.
        cosine = np.clip(sums[:, 0] / np.sqrt(sums[:, 1] * sums[:, 2]), -1.0, 1.0)
        relative = l2 / norm_before
    # Of a zero row there is no direction.
    cosine[(norm_before == 0) | (norm_after == 0)] = np.nan
    relative[norm_before == 0] = np.nan
    faults = {name: sorted(rows) for name, rows in work.faults.items()}
    return RowScores(cosine, l2, relative, norm_before, norm_after, work.compared, faults)


def _fault(values: Float64) -> str | None:
    if np.isnan(values).any():
        return "nan"
    if np.isinf(values).any():
        return "inf"
    return None if values.any() else "zero"


def _cpus() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
