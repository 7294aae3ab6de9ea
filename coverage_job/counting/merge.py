"""Sums the output of counting tasks, in any order and in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from coverage_job.schemas import COUNTS, PARTIAL

KEY = ("unit", "language", "group", "token_id")
# Rows gathered before they are summed, about 100 bytes each.
_GATHER_ROWS = 1 << 21


class Merger:
    """Takes batches of the tasks' output; counts of equal keys add, reports are set aside."""

    def __init__(self) -> None:
        self._rows: list[pl.DataFrame] = []
        self._size_at_last_sum = 0
        self._reports: list[str] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch of schema TASK_OUTPUT."""
        if batch.column("report").null_count < len(batch):
            is_report = pc.is_valid(batch.column("report"))
            self._reports += batch.filter(is_report).column("report").to_pylist()
            batch = batch.filter(pc.invert(is_report))
        if len(batch):
            self._rows.append(pl.DataFrame(batch.select(PARTIAL.names)))
        if sum(map(len, self._rows)) > max(_GATHER_ROWS, 2 * self._size_at_last_sum):
            self._sum()

    def _sum(self) -> None:
        if self._rows:
            frame = pl.concat(self._rows).group_by(KEY).agg(pl.col(COUNTS).sum())
            self._rows = [frame]
            self._size_at_last_sum = len(frame)

    def result(self) -> tuple[pa.Table, list[str]]:
        """The counts, schema PARTIAL, a row per key in no particular order; and the reports."""
        self._sum()
        if not self._rows:
            return PARTIAL.empty_table(), self._reports
        return self._rows[0].select(PARTIAL.names).to_arrow().cast(PARTIAL), self._reports


def sum_counts(tables: Sequence[pa.Table], unit: str) -> pa.Table:
    """Tables of schema PARTIAL summed under one unit, in order of key."""
    frame = pl.concat([pl.DataFrame(t.drop_columns("unit")) for t in tables])
    summed = frame.group_by(KEY[1:]).agg(pl.col(COUNTS).sum()).sort(KEY[1:])
    return summed.with_columns(pl.lit(unit).alias("unit")).select(PARTIAL.names).to_arrow().cast(PARTIAL)
