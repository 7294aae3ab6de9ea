"""Small tasks that workers can import."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from coverage_job.counting import task
from coverage_job.counting.task import TASK_OUTPUT
from coverage_job.errors import CorpusError
from coverage_job.tokenizer import load


def row(token_id: int, report: str | None = None) -> pa.RecordBatch:
    count = 0 if report else 1
    values = ["u", "", report or "", token_id, count, count, count, count, report]
    return pa.RecordBatch.from_pylist([dict(zip(TASK_OUTPUT.names, values, strict=True))], TASK_OUTPUT)


def count_to(n: int) -> Iterator[pa.RecordBatch]:
    """Ids 0 to n - 1 once each, in a batch each, and a report."""
    for i in range(n):
        yield row(i)
    yield row(-1, f"report {n}")


def fail(n: int) -> Iterator[pa.RecordBatch]:
    yield row(n)
    raise CorpusError(f"corpus x: item {n} is bad; mend it")


def lose_connection(n: int) -> Iterator[pa.RecordBatch]:
    yield row(n)
    raise ConnectionResetError(f"the store of item {n} hung up")


def crash(n: int) -> Iterator[pa.RecordBatch]:
    yield row(n)
    raise ValueError("a fault of ours")


def die(n: int) -> Iterator[pa.RecordBatch]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield row(n)


def tell_and_wait(file: str) -> Iterator[pa.RecordBatch]:
    """Writes its process id to a file, and ends by itself only after minutes."""
    Path(file).write_text(str(os.getpid()))
    time.sleep(300)
    yield row(0)


def rows_of_each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch([pa.array([batch.num_rows], pa.int64())], names=["rows"])


def held(n: int) -> Iterator[pa.RecordBatch]:
    """What this process has loaded."""
    yield row(-1, f"{len(load._LOADED)} tokenizers, {len(task._KERNELS)} kernels")
