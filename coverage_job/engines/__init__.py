"""Where tasks run. An engine knows nothing of what a task does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from coverage_job.config import RankFile

T = TypeVar("T")

# A plain top-level function of one item, which travels to where it runs.
Task = Callable[[T], Iterator[pa.RecordBatch]]
# Called once after each task; which one has ended is not told.
Done = Callable[[], None]


class Engine(Protocol):
    """What `engines.local` and `engines.spark` offer; a context manager that leaves nothing running."""

    name: str

    def describe(self) -> str: ...

    def prepare(self, tokenizer: str | RankFile, cache_mib: int | None) -> None:
        """Let workers load what they begin with beside whatever the driver does until it counts.

        tokenizer: as a job names it. cache_mib: of its fast kernel; None where the reference counts.
        """
        ...

    def count(self, task: Task[Any], items: Sequence[Any], done: Done) -> tuple[pa.Table, list[str]]:
        """Run counting tasks; their counts summed (schema PARTIAL), and the tasks' reports."""
        ...

    def map(self, task: Task[Any], items: Sequence[Any], schema: pa.Schema, done: Done) -> pa.Table:
        """Run tasks and put their output together, in no particular order."""
        ...

    def __enter__(self) -> Engine: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
