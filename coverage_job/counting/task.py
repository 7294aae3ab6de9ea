"""Split -> partial histogram: the one function that every engine runs.

A task gives batches of schema TASK_OUTPUT: rows of counts, and one row whose `report` is the task's
report as JSON. Rows of equal keys add, so an engine sums them in any order; a report's key is its own.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from coverage_job.corpus.documents import TextBatch, TokenBatch, insert_ids
from coverage_job.corpus.plan import Split
from coverage_job.corpus.reader import BadRecord, PieceReader, PieceStats, Reader
from coverage_job.corpus.source import Source
from coverage_job.counting.audit import Audit
from coverage_job.counting.contexts import Contexts
from coverage_job.counting.histogram import Histogram
from coverage_job.counting.reference import ReferenceKernel
from coverage_job.errors import BadFileError
from coverage_job.schemas import PARTIAL
from coverage_job.tokenizer.load import TokenizerSpec, load

# A report travels beside the counts, under an id that no count has.
REPORT_ID = -1
TASK_OUTPUT = pa.schema([*PARTIAL, pa.field("report", pa.string())])


@dataclass(frozen=True)
class CountSpec:
    """All that a worker needs to count a corpus; small, and the same for all its splits.

    unit: what the counts are summed under. rows: of the model's matrix. watched: ids for which a text
    is sought. bos, eos: ids put around each document. audit_every: one document in so many is encoded
    again by the reference.
    """

    tokenizer: TokenizerSpec
    source: Source
    unit: str
    rows: int
    audit_every: int
    watched: tuple[int, ...] = ()
    bos: int | None = None
    eos: int | None = None


@dataclass(frozen=True)
class CountItem:
    """One task's work."""

    spec: CountSpec
    split: Split


@dataclass
class TaskReport:
    """What a task says of itself, beside its counts.

    pieces: per piece what was read, and the error that ended it ('' where it ended well).
    early: whether counts of a piece were handed over before its end (a huge piece of many groups).
    """

    unit: str
    split: int
    pieces: list[tuple[PieceStats, str]] = field(default_factory=list)
    bad: list[BadRecord] = field(default_factory=list)
    tokens: int = 0
    supervised_tokens: int = 0
    seam_tokens: int = 0
    audit: dict[str, Any] = field(default_factory=dict)
    contexts: dict[int, str] = field(default_factory=dict)
    early: bool = False
    seconds: float = 0.0
    peak_bytes: int = 0

    def to_json(self) -> str:
        return orjson.dumps(
            asdict(self), default=_plain, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
        ).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(type(value))


def count_split(item: CountItem) -> Iterator[pa.RecordBatch]:
    """Count one split: batches of schema TASK_OUTPUT, the report last.

    A file that ends badly leaves no counts, and its error in the report. Raises TokenIdError,
    CorpusError or TokenizerError for what ends the run.
    """
    reader = Reader(item.spec.source, rows=item.spec.rows)
    pieces = (reader.open(piece) for piece in item.split.pieces)
    yield from _count(item.spec, item.split.index, reader, pieces)


def count_table(spec: CountSpec, number: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count the rows of a table that something else reads; otherwise as `count_split`."""
    reader = Reader(spec.source, rows=spec.rows)
    name = f"{spec.source.corpus} (partition {number})"
    yield from _count(spec, number, reader, iter([reader.open_table(batches, name)]))


def _count(
    spec: CountSpec, number: int, reader: Reader, pieces: Iterator[PieceReader]
) -> Iterator[pa.RecordBatch]:
    start = time.perf_counter()
    report = TaskReport(spec.unit, number)
    counter = _Counter(spec, report)
    for piece in pieces:
        error = ""
        try:
            for batch in piece.batches():
                counter.add(batch)
                if counter.histogram.full:
                    report.early = True
                    counter.histogram.keep()
                    yield from _counts(counter.histogram, spec.unit, reader)
            counter.keep()
        except BadFileError as fault:
            counter.drop()
            error = str(fault)
        report.pieces.append((piece.stats, error))
        report.bad += piece.bad
    yield from _counts(counter.histogram, spec.unit, reader)
    report.audit = asdict(counter.audit)
    report.contexts = counter.contexts.found if counter.contexts is not None else {}
    report.seconds = time.perf_counter() - start
    report.peak_bytes = peak_memory()
    yield _report_batch(report)


def _counts(histogram: Histogram, unit: str, reader: Reader) -> Iterator[pa.RecordBatch]:
    for batch in histogram.drain(unit, reader.keys):
        yield pa.record_batch([*batch.columns, pa.nulls(len(batch), pa.string())], schema=TASK_OUTPUT)


def _report_batch(report: TaskReport) -> pa.RecordBatch:
    row = {
        "unit": report.unit,
        "language": "",
        "group": str(report.split),
        "token_id": REPORT_ID,
        "occurrences": 0,
        "documents": 0,
        "supervised_occurrences": 0,
        "supervised_documents": 0,
        "report": report.to_json(),
    }
    return pa.RecordBatch.from_pylist([row], TASK_OUTPUT)


class _Counter:
    """Encodes batches and counts them, piece by piece."""

    def __init__(self, spec: CountSpec, report: TaskReport) -> None:
        self.histogram = Histogram(spec.rows)
        self.audit = Audit(spec.audit_every)
        self.contexts: Contexts | None = None
        self._spec, self._report = spec, report
        self._kernel: ReferenceKernel | None = None
        self._tokens = np.zeros(3, np.int64)

    def add(self, batch: TextBatch | TokenBatch) -> None:
        encoded = self._encode(batch) if isinstance(batch, TextBatch) else batch
        encoded = insert_ids(encoded, self._spec.bos, self._spec.eos)
        self.histogram.add(encoded)
        supervised = len(encoded.ids) if encoded.supervised is None else int(encoded.supervised.sum())
        seams = 0 if encoded.seams is None else int(encoded.seams.sum())
        self._tokens += (len(encoded.ids), supervised, seams)

    def keep(self) -> None:
        self.histogram.keep()
        report = self._report
        tokens, supervised, seams = self._tokens.tolist()
        report.tokens += tokens
        report.supervised_tokens += supervised
        report.seam_tokens += seams
        self._tokens[:] = 0

    def drop(self) -> None:
        self.histogram.drop()
        self._tokens[:] = 0

    def _encode(self, batch: TextBatch) -> TokenBatch:
        if self._kernel is None:
            tokenizer = load(self._spec.tokenizer)
            self._kernel = ReferenceKernel(tokenizer)
            watched = np.array(self._spec.watched, np.int32)
            self.contexts = Contexts(tokenizer, watched, self._spec.rows)
        encoded = self._kernel.encode(batch)
        if self.contexts is not None:
            self.contexts.look(batch, encoded)
        return encoded


def peak_memory() -> int:
    """The largest resident memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
