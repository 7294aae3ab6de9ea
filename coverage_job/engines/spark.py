"""Tasks on Spark, one Spark task per item. The only module that imports pyspark.

The DataFrame API alone is used, so that Spark Connect and managed clusters work.
"""

from __future__ import annotations

import importlib.resources
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import uuid
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from coverage_job.config import RankFile
from coverage_job.counting.merge import KEY, Merger
from coverage_job.counting.preload import preload
from coverage_job.counting.task import TASK_OUTPUT
from coverage_job.engines import Done, Task
from coverage_job.engines import preflight as asking
from coverage_job.errors import CorpusError, CoverageJobError, EngineError
from coverage_job.schemas import COUNTS

T = TypeVar("T")

# A plain top-level function of a partition's number and its rows.
TableTask = Callable[[int, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_JAVA_NEEDED = 17
_BATCH_BYTES = 64 << 20
_PACKED = "packed binary"
# Tasks of this machine whose counts the driver sums: it holds the output of all of them at once.
_FEW = 32
# A task's error that a user can mend crosses the JVM as text between these marks.
_MARK = "@coverage_job@"


# Of pyspark's: not for whoever counts, who installed what this package asked for.
warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)


def java_version() -> int | None:
    """The major version of the Java that Spark would start, or None where there is none."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.path.exists(java):
        return None
    try:
        text = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def unavailable() -> str | None:
    """Why Spark's local mode cannot be used here, with the way out; None where it can."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "pyspark is not installed (pip install 'coverage-job[spark]')"
    version = java_version()
    if version is None:
        return (
            f"no Java was found (install Java {_JAVA_NEEDED}, for example Debian's openjdk-17-jre-headless)"
        )
    if version < _JAVA_NEEDED:
        return f"Java {version} was found and Spark needs {_JAVA_NEEDED} (install openjdk-17-jre-headless)"
    return None


def wanted() -> bool:
    """Whether this process was started by spark-submit or has a session already."""
    if "PYSPARK_GATEWAY_PORT" in os.environ or "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return True
    if "pyspark" not in sys.modules:
        return False
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def _run_items(
    task: Task[Any], items: list[bytes], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a Spark task runs: the items whose numbers it was given."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            try:
                yield from task(pickle.loads(zlib.decompress(items[number])))
            except CoverageJobError as error:
                raise RuntimeError(f"{_MARK}{type(error).__name__}: {error}{_MARK}") from None


def _run_packed(
    task: Task[Any], items: list[bytes], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """As `_run_items`, and packed in the same process: one Python stage, of few and large rows."""
    yield from _pack(_run_items(task, items, batches))


def _make_ready(cache_mib: int | None, tokenizer: str | RankFile) -> Iterator[pa.RecordBatch]:
    """A task whose worker process is ready for counting afterwards."""
    preload(tokenizer, cache_mib)
    yield from ()


def _run_table(task: TableTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a Spark task runs over its partition of a table."""
    from pyspark import TaskContext

    context = TaskContext.get()
    number = context.partitionId() if context is not None else 0
    try:
        yield from task(number, batches)
    except CoverageJobError as error:
        raise RuntimeError(f"{_MARK}{type(error).__name__}: {error}{_MARK}") from None


def _answer(
    gather: Callable[[], dict[str, Any]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a Spark task runs when executors are asked for their facts."""
    for _ in batches:
        pass
    yield pa.record_batch([pa.array([json.dumps(gather())])], names=["facts"])


def _pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches as Arrow streams in a binary column: what a driver of any Spark version can collect."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        yield pa.record_batch([pa.array([sink.getvalue().to_pybytes()], pa.binary())], names=["packed"])


def _unpack(rows: list[Any]) -> Iterator[pa.RecordBatch]:
    for row in rows:
        yield from pa.ipc.open_stream(bytes(row[0]))


def _ddl(schema: pa.Schema) -> str:
    names = {
        pa.int32(): "int",
        pa.int64(): "bigint",
        pa.string(): "string",
        pa.binary(): "binary",
        pa.float64(): "double",
        pa.float32(): "float",
        pa.bool_(): "boolean",
    }
    return ", ".join(f"`{f.name}` {names[f.type]}" for f in schema)


class SparkEngine:
    """Runs tasks through `mapInArrow`, in the session that is active or one of its own."""

    name = "spark"

    def __init__(
        self, master: str | None = None, conf: dict[str, str] | None = None, workers: int | None = None
    ) -> None:
        """Raises EngineError where no session can be had, with the way out."""
        try:
            from pyspark.sql import SparkSession
        except ImportError:
            raise EngineError("pyspark is not installed: pip install 'coverage-job[spark]'") from None
        self._owned = False
        self._preparing: threading.Thread | None = None
        self._tag = f"coverage_job-{uuid.uuid4()}"
        active = SparkSession.getActiveSession()
        if active is not None:
            self.session = active
            return
        self.session = _new_session(master, conf or {}, workers)
        self._owned = True

    def __enter__(self) -> SparkEngine:
        return self

    def __exit__(self, *_: object) -> None:
        # A session that was there before is left as it was found; one's own ends with what prepares in it.
        if self._owned:
            self.session.stop()
        else:
            self._stop_preparing()

    @property
    def connect(self) -> bool:
        """Whether the session is one of Spark Connect, whose server is anywhere."""
        return ".connect." in type(self.session).__module__

    @property
    def master(self) -> str:
        return "connect" if self.connect else self.session.conf.get("spark.master", None) or "unknown"

    @property
    def local(self) -> bool:
        """Whether tasks run on this machine."""
        return self.master.startswith("local")

    @property
    def in_driver(self) -> bool:
        """Whether tasks run in the driver's own environment: `local[N]`, not `local-cluster[...]`."""
        return re.match(r"local($|\[)", self.master) is not None

    @property
    def driver_on_cluster(self) -> bool:
        """Whether this process runs on a node of the cluster, whose disk nobody keeps."""
        if self.connect:
            return False
        conf = self.session.conf
        # In a driver's pod spark-submit runs in client mode; the pod has been named by what submitted it.
        return bool(
            conf.get("spark.submit.deployMode", "client") == "cluster"
            or (self.master.startswith("k8s") and conf.get("spark.kubernetes.driver.pod.name", None))
        )

    def describe(self) -> str:
        return f"Spark {self.session.version}, {self.master}"

    def prepare(self, tokenizer: str | RankFile, cache_mib: int | None) -> None:
        """As the local engine's: a first Spark job, beside what the driver does until it counts.

        It starts Python workers, which Spark keeps, and has the JVM load what it plans jobs with: seconds
        that only matter, and only are sure to serve, where executors are this process's own.
        """
        if not self.in_driver:
            return

        def make_ready() -> None:
            # Whatever is wrong, the task that counts meets it too, and says so.
            with suppress(Exception):
                context = self.session.sparkContext
                # Of this thread's jobs alone.
                context.addJobTag(self._tag)
                try:
                    items = [tokenizer] * context.defaultParallelism
                    self._numbered(_run_packed, partial(_make_ready, cache_mib), items, _PACKED).collect()
                finally:
                    context.removeJobTag(self._tag)

        self._preparing = threading.Thread(target=make_ready, daemon=True)
        self._preparing.start()

    def _wait_until_prepared(self) -> None:
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None

    def _stop_preparing(self) -> None:
        """A run that ends before it counts waits for no worker. Again and again: a job may not have begun."""
        while self._preparing is not None and self._preparing.is_alive():
            with suppress(Exception):
                self.session.sparkContext.cancelJobsWithTag(self._tag)
            self._preparing.join(0.1)

    def count(self, task: Task[T], items: Sequence[T], done: Done) -> tuple[pa.Table, list[str]]:
        """Run counting tasks and sum their counts: a table of schema PARTIAL and the tasks' reports."""
        if len(items) > _FEW or not self.in_driver:
            return self._sum(self._numbered(_run_items, task, items, _ddl(TASK_OUTPUT)), len(items), done)
        # So few, of this machine, are summed here sooner than Spark has planned it.
        merger = Merger()
        for batch in self._outputs(task, items, done):
            merger.add(batch)
        return merger.result()

    def _sum(self, output: Any, tasks: int, done: Done) -> tuple[pa.Table, list[str]]:
        from pyspark.sql import functions as F  # noqa: N812

        merger = Merger()
        sums = [F.sum(name).alias(name) for name in COUNTS]
        summed = output.groupBy(*KEY).agg(*sums, F.max("report").alias("report"))
        for batch in self._collect(summed.mapInArrow(_pack, _PACKED), tasks, done):
            merger.add(batch)
        return merger.result()

    def table_schema(self, name: str) -> pa.Schema:
        """The columns of a table, as tasks get them. Raises CorpusError where there is no such table."""
        try:
            packed = self.session.table(name).limit(1).mapInArrow(_pack, _PACKED).collect()
        except Exception as error:
            why = " ".join(str(error).split())[:200]
            raise CorpusError(f"table {name}: cannot be read ({why}); check its name and access") from error
        if not packed:
            raise CorpusError(f"table {name}: has no row")
        return next(_unpack(packed)).schema

    def count_table(
        self, task: TableTask, name: str, columns: Sequence[str], presence: Sequence[str], done: Done
    ) -> tuple[pa.Table, list[str]]:
        """Count a table's rows in one pass, one task per partition; otherwise as `count`.

        columns, presence: of the table's columns those that are read, and those of which a task is only
        told whether they hold anything; names that the table lacks are passed over.
        """
        table = self.session.table(name)
        tests = {"array": "size(`{}`) > 0", "string": "length(`{}`) > 0", "binary": "length(`{}`) > 0"}
        read = [f"`{c}`" for c in columns if c in table.columns]
        for c, kind in table.dtypes:
            if c in presence:
                test = tests.get(kind.partition("<")[0], "`{}` IS NOT NULL")
                read.append(f"{test.format(c)} AS `{c}`")
        frame = table.selectExpr(*read)
        output = frame.mapInArrow(partial(_run_table, task), _ddl(TASK_OUTPUT))
        return self._sum(output, 0, done)

    def map(self, task: Task[T], items: Sequence[T], schema: pa.Schema, done: Done) -> pa.Table:
        """Run tasks and put their output together, in no particular order."""
        return pa.Table.from_batches(self._outputs(task, items, done), schema)

    def preflight(self, question: asking.Question) -> list[str]:
        """One line per way in which executors do not fit the driver; none where they do. One Spark job."""
        from pyspark import cloudpickle

        packages = (*asking.DECIDING, *asking.OTHERS)
        ask = partial(asking.gather, question.files, question.store, question.token, packages)
        try:
            parallel = self.session.sparkContext.defaultParallelism
        except Exception:  # Spark Connect does not tell
            parallel = 8
        tasks = min(max(2 * parallel, 4), 512)
        # As code, not as names to import: coverage_job itself may be what is missing.
        own = sys.modules[__name__], sys.modules[asking.__name__]
        for module in own:
            cloudpickle.register_pickle_by_value(module)
        try:
            frame = self.session.range(0, tasks, 1, numPartitions=tasks)
            rows = frame.mapInArrow(partial(_answer, ask), "facts string").collect()
        except Exception as error:
            why = asking.explain_start(str(error))
            if why is None:
                raise
            return [why]
        finally:
            for module in own:
                cloudpickle.unregister_pickle_by_value(module)
        return asking.problems(question, ask(), [json.loads(row[0]) for row in rows])

    def _outputs(self, task: Task[T], items: Sequence[T], done: Done) -> Iterator[pa.RecordBatch]:
        """What tasks give, in no particular order, not passed through Spark's own rows."""
        if items:
            yield from self._collect(self._numbered(_run_packed, task, items, _PACKED), len(items), done)

    def _numbered(self, run: Callable[..., Any], task: Task[T], items: Sequence[T], ddl: str) -> Any:
        """A frame of what `run` makes of the items, one Spark task each."""
        # Each Spark task unpickles all of what is shipped, but only its own items from it.
        shipped = [zlib.compress(pickle.dumps(item), 1) for item in items]
        numbers = self.session.range(0, len(items), 1, numPartitions=len(items))
        return numbers.mapInArrow(partial(run, task, shipped), ddl)

    def _collect(self, packed: Any, tasks: int, done: Done) -> Iterator[pa.RecordBatch]:
        self._wait_until_prepared()
        with _Watch(self.session, tasks, done):
            try:
                rows = packed.collect()
            except Exception as error:
                raise _translate(error) from error
        yield from _unpack(rows)


def _new_session(master: str | None, conf: dict[str, str], workers: int | None) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("coverage_job")
    if master is not None and master.startswith("sc://"):
        return builder.remote(master).getOrCreate()
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        # Not under spark-submit: whatever it would set is set here.
        why_not = unavailable()
        if why_not is not None:
            raise EngineError(f"Spark cannot start: {why_not}; or use --engine local")
        cores = workers or len(os.sched_getaffinity(0))
        builder = builder.master(master or f"local[{cores}]")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        defaults = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.maxResultSize": "0",
            "spark.sql.shuffle.partitions": str(4 * cores),
        }
        for key, value in (defaults | _quiet(conf)).items():
            builder = builder.config(key, value)
    else:
        for key, value in conf.items():
            builder = builder.config(key, value)
    try:
        with _unhurried():
            session = builder.getOrCreate()
    except Exception as error:
        raise EngineError(f"Spark did not start: {' '.join(str(error).split())[:300]}") from error
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        session.sparkContext.setLogLevel("ERROR")
    _bound_batches(session)
    return session


@contextmanager
def _unhurried() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until a JVM has started, then to end with this process. A second one is heard.

    pyspark deletes the folder that a starting JVM writes to; that one says so, and never ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def remember(number: int, _: object) -> None:
        came.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            # Once it has a JVM pyspark handles Ctrl-C itself.
            if signal.getsignal(number) is remember:
                signal.signal(number, handler or signal.SIG_DFL)

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        restore()
    for number in came:
        signal.raise_signal(number)


def _quiet(conf: dict[str, str]) -> dict[str, str]:
    """Settings under which the driver's JVM logs errors alone, from its first line.

    `setLogLevel` comes too late for what is said at the start. Who has a logging configuration keeps it.
    """
    key = "spark.driver.extraJavaOptions"
    own = conf.get(key, "")
    home = os.environ.get("SPARK_HOME")
    kept = home is not None and os.path.exists(os.path.join(home, "conf", "log4j2.properties"))
    if kept or "SPARK_CONF_DIR" in os.environ or "log4j" in own:
        return conf
    path = importlib.resources.files("coverage_job.engines") / "log4j2.properties"
    # Inside a zip, as an executor may get the package, there is no file to name.
    if not isinstance(path, Path):
        return conf
    return conf | {key: f'{own} "-Dlog4j2.configurationFile={path.as_uri()}"'.strip()}


def _bound_batches(session: Any) -> None:
    """Bound what a worker is handed at once: by bytes where this Spark can, else by few rows.

    A table's documents may be of megabytes each; rows of counts are small.
    """
    by_bytes = "spark.sql.execution.arrow.maxBytesPerBatch"
    try:
        # With a default of our own, `get` would give that back and not Spark's.
        known = session.conf.get(by_bytes) is not None
    except Exception:  # Spark 3.5 knows no such setting, and says so
        known = False
    if known:
        session.conf.set(by_bytes, str(_BATCH_BYTES))
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "65536" if known else "512")


def _translate(error: Exception) -> Exception:
    """A task's own error from the text that Spark made of it."""
    import coverage_job.errors as errors

    match = re.search(f"{_MARK}(\\w+): (.*?){_MARK}", str(error), re.DOTALL)
    if match is None:
        return error
    kind: type[CoverageJobError] = getattr(errors, match[1])
    return kind(match[2])


class _Watch:
    """Tells of finished tasks while an action runs; on Spark Connect there is nothing to ask."""

    def __init__(self, session: Any, tasks: int, done: Done) -> None:
        self._session, self._tasks, self._done = session, tasks, done
        self._told = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        try:
            tracker = self._session.sparkContext.statusTracker()
        except Exception:
            return
        self._thread = threading.Thread(target=self._poll, args=(tracker,), daemon=True)
        self._thread.start()

    def _poll(self, tracker: Any) -> None:
        while not self._stop.wait(0.5):
            finished = 0
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                # The stage of as many tasks as there are items is ours.
                if info is not None and info.numTasks == self._tasks:
                    finished = max(finished, info.numCompletedTasks)
            self._tell(finished)

    def _tell(self, finished: int) -> None:
        while self._told < finished:
            self._done()
            self._told += 1

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if kind is None:
            self._tell(self._tasks)
