"""A matrix of a checkpoint, read by blocks of rows from where its bytes lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from coverage_job.checkpoint.dtypes import STORED, Float32, decode
from coverage_job.checkpoint.files import Files
from coverage_job.checkpoint.formats import Stored


@dataclass(frozen=True)
class Scale:
    """What float8 values are multiplied by: float32[1, 1], [rows, 1] or one per block of `block` values."""

    values: Float32
    block: tuple[int, int]

    def over(self, rows: npt.NDArray[np.int64], columns: int) -> Float32:
        """float32 that broadcasts against the given rows."""
        down, across = self.block
        picked = self.values[rows // down] if len(self.values) > 1 else self.values
        if self.values.shape[1] > 1:
            picked = np.repeat(picked, across, axis=1)[:, :columns]
        return picked


@dataclass(frozen=True)
class Matrix:
    """A matrix with one row per token id, in one file or cut over several.

    parts: where it lies; they are stacked by rows (axis 0) or side by side (axis 1).
    dtype: safetensors' name of the stored numbers. shape: (rows, columns) of the whole.
    """

    name: str
    dtype: str
    shape: tuple[int, int]
    parts: tuple[Stored, ...]
    axis: int
    scales: tuple[Scale | None, ...]
    files: Files = field(repr=False)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def row_bytes(self) -> int:
        return self.shape[1] * STORED[self.dtype].itemsize

    @property
    def scaled(self) -> bool:
        return any(scale is not None for scale in self.scales)

    def raw(self, start: int, stop: int, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Rows start .. stop as stored: [stop - start, columns] of `STORED[dtype]`, scales not applied.

        out: a buffer of that dtype with at least as many rows, filled and returned as a view.
        """
        if not 0 <= start <= stop <= self.shape[0]:
            raise IndexError(f"rows {start}..{stop} of {self.shape[0]}")
        if out is None:
            out = np.empty((stop - start, self.shape[1]), dtype=STORED[self.dtype])
        out = out[: stop - start]
        if self.axis == 1:
            at = 0
            for part in self.parts:
                piece = np.empty((stop - start, part.shape[1]), dtype=out.dtype)
                self._fill(part, start, piece)
                out[:, at : at + part.shape[1]] = piece
                at += part.shape[1]
            return out
        first = 0
        for part in self.parts:
            low, high = max(start, first), min(stop, first + part.shape[0])
            if low < high:
                self._fill(part, low - first, out[low - start : high - start])
            first += part.shape[0]
        return out

    def _fill(self, part: Stored, row: int, out: npt.NDArray[Any]) -> None:
        width = part.shape[1] * STORED[self.dtype].itemsize
        self.files.read_into(part.path, part.offset + row * width, out.reshape(-1).view(np.uint8))

    def rows(self, start: int, stop: int) -> Float32:
        """Rows start .. stop as float32[stop - start, columns], scales applied."""
        return self.scale(self.raw(start, stop), np.arange(start, stop))

    def rows_of(self, ids: npt.NDArray[np.int64]) -> Float32:
        """Rows of any ids as float32[len(ids), columns], scales applied."""
        return self.scale(self.take(ids), ids)

    def scale(self, block: npt.NDArray[Any], ids: npt.NDArray[np.int64]) -> Float32:
        """float32 of stored rows whose ids are given, scales applied."""
        values = decode(block, self.dtype)
        at = 0
        for part, scale in zip(self.parts, self.scales, strict=True):
            extent = part.shape[self.axis]
            if scale is not None and self.axis == 1:
                values[:, at : at + extent] *= scale.over(ids, extent)
            elif scale is not None:
                inside = (ids >= at) & (ids < at + extent)
                values[inside] *= scale.over(ids[inside] - at, self.shape[1])
            at += extent
        return values

    def take(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Rows of any ids, in that order, as stored; neighbours in the file are fetched together."""
        out = np.empty((len(ids), self.shape[1]), dtype=STORED[self.dtype])
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        # A gap of up to 64 KiB is cheaper read than asked for apart.
        gap = max(1, (64 << 10) // max(1, self.row_bytes))
        longest = max(gap, (8 << 20) // max(1, self.row_bytes))
        at = 0
        while at < len(ordered):
            end = at + 1
            while (
                end < len(ordered)
                and ordered[end] - ordered[end - 1] <= gap
                and ordered[end] - ordered[at] < longest
            ):
                end += 1
            first = int(ordered[at])
            block = self.raw(first, int(ordered[end - 1]) + 1)
            out[order[at:end]] = block[ordered[at:end] - first]
            at = end
        return out

    def describe(self) -> dict[str, Any]:
        """For reports: its name, shape, stored numbers and files."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype + (" with scales" if self.scaled else ""),
            "files": [part.path for part in self.parts],
        }
