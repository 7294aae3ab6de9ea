"""Tasks on the processes of this machine: no JVM, the same functions."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import islice
from multiprocessing import forkserver
from typing import TypeVar

import pyarrow as pa

from coverage_job.config import RankFile
from coverage_job.counting.merge import Merger
from coverage_job.counting.preload import announced
from coverage_job.engines import Done, Task
from coverage_job.errors import EngineError

T = TypeVar("T")

# Modules the fork server loads once; workers forked from it start with them in place, and, since it has
# used no thread pool, cannot inherit a lock that nobody will release.
_PRELOAD = ["coverage_job.counting.preload"]


def _run(task: Task[T], item: T) -> bytes:
    """One task's output as an Arrow stream."""
    sink = pa.BufferOutputStream()
    writer: pa.ipc.RecordBatchStreamWriter | None = None
    for batch in task(item):
        if writer is None:
            writer = pa.ipc.new_stream(sink, batch.schema)
        writer.write_batch(batch)
    if writer is None:
        return b""
    writer.close()
    result: bytes = sink.getvalue().to_pybytes()
    return result


def _submit(pool: ProcessPoolExecutor, task: Task[T], item: T) -> Future[bytes]:
    try:
        return pool.submit(_run, task, item)
    except (EOFError, ConnectionError) as error:
        # The fork server, which starts workers, was killed. A task's own errors come with its result.
        raise BrokenProcessPool(str(error)) from None


def _start_fork_server() -> None:
    """Start it, where none runs, deaf to Ctrl-C: of the processes of a terminal the driver alone answers.

    Workers inherit that, and print no traceback of their own, not even while they are still importing.
    """
    forkserver.set_forkserver_preload(_PRELOAD)
    if threading.current_thread() is not threading.main_thread():
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    except OSError as error:
        # Such as a TMPDIR too long for the name of a socket.
        raise EngineError(
            f"worker processes cannot be started ({error}); set TMPDIR to a short path or engine.workers to 1"
        ) from None
    finally:
        signal.signal(signal.SIGINT, before)


def _end_with_parent() -> None:
    """A worker's first act: to end when its driver does, however that was ended."""
    parent = multiprocessing.parent_process()

    def wait_for_end() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()


def _read(stream: bytes) -> Iterator[pa.RecordBatch]:
    if stream:
        yield from pa.ipc.open_stream(stream)


class LocalEngine:
    """Runs tasks in `workers` processes; with one worker, in this one."""

    name = "local"

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def describe(self) -> str:
        return f"local, {self.workers} process{'' if self.workers == 1 else 'es'}"

    def prepare(self, tokenizer: str | RankFile, cache_mib: int | None) -> None:
        """Start what starts workers, with the tokenizer and its kernel in place."""
        if self.workers > 1:
            # Where none can be started, that is an error of the tasks that need one: a single one does not.
            with announced(tokenizer, cache_mib), suppress(EngineError):
                _start_fork_server()

    def count(self, task: Task[T], items: Sequence[T], done: Done) -> tuple[pa.Table, list[str]]:
        """Run counting tasks and sum their counts: a table of schema PARTIAL and the tasks' reports."""
        merger = Merger()
        for batches in self._outputs(task, items, done):
            for batch in batches:
                merger.add(batch)
        return merger.result()

    def map(self, task: Task[T], items: Sequence[T], schema: pa.Schema, done: Done) -> pa.Table:
        """Run tasks and put their output together, in no particular order."""
        batches = [batch for output in self._outputs(task, items, done) for batch in output]
        return pa.Table.from_batches(batches, schema)

    def _outputs(self, task: Task[T], items: Sequence[T], done: Done) -> Iterator[Iterator[pa.RecordBatch]]:
        if self.workers == 1 or len(items) <= 1:
            for item in items:
                yield task(item)
                done()
            return
        context = multiprocessing.get_context("forkserver")
        _start_fork_server()
        pool = ProcessPoolExecutor(
            min(self.workers, len(items)), mp_context=context, initializer=_end_with_parent
        )
        others = set(multiprocessing.active_children())
        waiting: set[Future[bytes]] = set()
        queue = iter(items)
        try:
            while True:
                # Few tasks in flight, so that finished output never piles up.
                for item in islice(queue, 2 * self.workers - len(waiting)):
                    waiting.add(_submit(pool, task, item))
                if not waiting:
                    return
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    waiting.discard(future)
                    yield _read(future.result())
                    done()
        except BrokenProcessPool:
            raise EngineError(
                "a worker process was killed, most likely for memory: use fewer --set engine.workers, "
                "or a smaller engine.split_bytes or engine.cache_mib"
            ) from None
        except (KeyboardInterrupt, SystemExit):
            # Whoever stops a run does not wait for the tasks at hand.
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
