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
from datetime import datetime
from typing import Any, Literal

import numpy as np
import orjson
import pyarrow as pa
from tokenizers import Tokenizer

from coverage_job.corpus.audit import MaskAudit
from coverage_job.corpus.documents import Key, TextBatch, TokenBatch, insert_ids
from coverage_job.corpus.mixed import MixedScripts
from coverage_job.corpus.plan import Split, changed
from coverage_job.corpus.reader import PieceReader, Reader
from coverage_job.corpus.shapes import Dialogue, PlainRenderer
from coverage_job.corpus.source import Source
from coverage_job.corpus.template import TemplateSpec
from coverage_job.corpus.templated import (
    TemplateRenderer,
    audit_without_template,
    special_pattern,
    template_renderer,
)
from coverage_job.counting.audit import Audit
from coverage_job.counting.contexts import Contexts
from coverage_job.counting.cuts import Cuts
from coverage_job.counting.histogram import Histogram, warm_up
from coverage_job.counting.kernel import FastKernel
from coverage_job.counting.reference import ReferenceKernel
from coverage_job.counting.store import StoreSpec
from coverage_job.counting.supervision import Watched, audit_tokens, truncate
from coverage_job.counting.tally import PieceReport
from coverage_job.errors import BadFileError, EngineError
from coverage_job.schemas import PARTIAL
from coverage_job.tokenizer.load import TokenizerSpec, load

# A report travels beside the counts, under an id that no count has.
REPORT_ID = -1
TASK_OUTPUT = pa.schema([*PARTIAL, pa.field("report", pa.string())])


@dataclass(frozen=True)
class CorpusSpec:
    """What a worker needs to know of a corpus.

    sought: ids for which a text is sought. bos, eos: ids put around each document. template: of
    dialogues; without one each message is encoded alone. now: what the template's clock says.
    max_length: tokens a rendered dialogue is cut to, and the side that is cut off. store: where what was
    counted is kept, by file.
    """

    source: Source
    sought: tuple[int, ...] = ()
    bos: int | None = None
    eos: int | None = None
    template: TemplateSpec | None = None
    train_end_of_turn: bool = True
    split_special_tokens: bool = False
    now: datetime | None = None
    max_length: int | None = None
    truncation_side: Literal["right", "left"] = "right"
    store: StoreSpec | None = None


@dataclass(frozen=True)
class CountSpec:
    """All that a worker needs to count the splits of a job's corpora; the same for all of them.

    rows: of the model's matrix. cuts: what `Cuts.to_bytes` gave, or b"" to count by the reference.
    cache_mib: limit of the kernel's table. audit_every: one document in so many is encoded again by
    the reference.
    """

    tokenizer: TokenizerSpec
    rows: int
    cuts: bytes
    cache_mib: int
    audit_every: int
    corpora: dict[str, CorpusSpec]

    def kernel(self) -> FastKernel | ReferenceKernel:
        return kernel_of(self.tokenizer, self.cuts, self.cache_mib)


@dataclass
class TaskReport:
    """What a task says of itself, beside its counts.

    early: whether counts of a piece were handed over before its end (a huge piece of many groups).
    recounted: whether the audit found a difference, so that the reference counted.
    """

    unit: str
    split: int
    pieces: list[PieceReport] = field(default_factory=list)
    audit: dict[str, Any] = field(default_factory=dict)
    contexts: dict[int, str] = field(default_factory=dict)
    kernel: dict[str, float] = field(default_factory=dict)
    early: bool = False
    recounted: bool = False
    seconds: float = 0.0
    peak_bytes: int = 0

    def to_json(self) -> str:
        return orjson.dumps(
            self, default=_plain, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
        ).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(type(value))


class _Differs(Exception):
    """The kernel's encoding of an audited document is not the reference's."""


def count_split(spec: CountSpec, split: Split) -> Iterator[pa.RecordBatch]:
    """Count one split: batches of schema TASK_OUTPUT, the report last.

    A file that ends badly leaves no counts, and its error in the report. Where the audit finds a
    difference the split is counted again by the reference. Raises TokenIdError, CorpusError or
    TokenizerError for what ends the run.
    """
    counter = _Counter(spec, split.corpus, split.index, spec.kernel())
    reader = counter.reader
    try:
        yield from counter.run((reader.open(piece) for piece in split.pieces), split)
    except _Differs:
        if counter.report.early:
            raise EngineError(
                f"corpus {split.corpus}: the fast kernel differs from the reference after counts were handed "
                "over; run with --set engine.kernel=reference, and report it"
            ) from None
        audit = counter.audit
        counter = _Counter(spec, split.corpus, split.index, ReferenceKernel(load(spec.tokenizer)))
        counter.audit, counter.report.recounted = audit, True
        reader = counter.reader
        yield from counter.run((reader.open(piece) for piece in split.pieces), split)


def count_table(
    spec: CountSpec, corpus: str, number: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Count the rows of a table that something else reads; otherwise as `count_split`."""
    counter = _Counter(spec, corpus, number, spec.kernel())
    name = f"{corpus} (partition {number})"
    try:
        yield from counter.run(iter([counter.reader.open_table(batches, name)]))
    except _Differs:
        raise EngineError(
            f"corpus {corpus}: the fast kernel differs from the reference; "
            "run with --set engine.kernel=reference, and report it"
        ) from None


# The kernel's table of chunks serves all tasks of a process.
_KERNELS: dict[tuple[str, int], FastKernel] = {}


def kernel_of(spec: TokenizerSpec, cuts: bytes, cache_mib: int) -> FastKernel | ReferenceKernel:
    """The kernel of this process for a tokenizer; compiled, or loaded, when it is first asked for."""
    tokenizer = load(spec)
    if not cuts:
        return ReferenceKernel(tokenizer)
    key = (spec.sha256, cache_mib)
    if key not in _KERNELS:
        _KERNELS.clear()
        _KERNELS[key] = FastKernel(tokenizer, Cuts.from_bytes(cuts), cache_mib)
        warm_up()
    return _KERNELS[key]


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
    """Counts one task: batches are encoded and counted, piece by piece."""

    def __init__(
        self, spec: CountSpec, corpus: str, number: int, kernel: FastKernel | ReferenceKernel
    ) -> None:
        own = spec.corpora[corpus]
        tokenizer = load(spec.tokenizer)
        self.report = TaskReport(corpus, number)
        self.audit = Audit(spec.audit_every)
        self._own = own
        self._templated = _templated(own, tokenizer)
        self._special = special_pattern(tokenizer)
        renderer = self._templated or PlainRenderer(
            own.source.train_on, self._special if own.split_special_tokens else None
        )
        self.reader = Reader(own.source, renderer=renderer, rows=spec.rows)
        if own.source.dialogues and not own.source.pretraining:
            self.reader.observe = self._observe
        self._watched = _watched(self._templated, tokenizer)
        self._kernel = kernel
        # What the store will keep: counts by file.
        self._stored: list[pa.RecordBatch] = []
        self._reference = ReferenceKernel(tokenizer)
        self._histogram = Histogram(spec.rows)
        self._contexts = Contexts(tokenizer, np.array(own.sought, np.int32), spec.rows)
        self._begin()

    def run(self, pieces: Iterator[PieceReader], split: Split | None = None) -> Iterator[pa.RecordBatch]:
        """split: of the pieces, whose counts the store keeps."""
        start = time.perf_counter()
        store = self._own.store
        report = self.report
        before = _kernel_figures(self._kernel)
        for piece in pieces:
            entry = PieceReport(piece.stats)
            try:
                for batch in piece.batches():
                    self._add(batch)
                    if self._histogram.full:
                        report.early = True
                        self._histogram.keep()
                        yield from self._drain(piece.piece.path)
                if why := changed(piece.piece):
                    raise BadFileError(why)
                self._keep(entry)
            except BadFileError as fault:
                self._drop()
                # What a file's change made of it, such as an early end, is no fault of the file's.
                entry.error = changed(piece.piece) or str(fault)
            entry.bad = piece.bad
            report.pieces.append(entry)
            if store is not None:
                yield from self._drain(piece.piece.path)
        yield from self._drain("")
        if store is not None and split is not None:
            store.write_part(split, report.pieces, self._contexts.found, self._stored)
        report.audit = asdict(self.audit)
        report.contexts = self._contexts.found
        report.kernel = {k: v - before.get(k, 0) for k, v in _kernel_figures(self._kernel).items()}
        report.seconds = time.perf_counter() - start
        report.peak_bytes = peak_memory()
        yield _report_batch(report)

    def _drain(self, file: str) -> Iterator[pa.RecordBatch]:
        for batch in self._histogram.drain(self.report.unit, self.reader.keys):
            if self._own.store is not None:
                files = pa.array([file] * len(batch), pa.string())
                self._stored.append(pa.record_batch([files, *batch.columns[1:]], schema=PARTIAL))
            yield pa.record_batch([*batch.columns, pa.nulls(len(batch), pa.string())], schema=TASK_OUTPUT)

    def _add(self, batch: TextBatch | TokenBatch) -> None:
        if isinstance(batch, TextBatch):
            encoded = self._kernel.encode(batch)
            fast = not isinstance(self._kernel, ReferenceKernel)
            if fast and not self.audit.check(batch, encoded, self._reference):
                raise _Differs
            self._contexts.look(batch, encoded)
        else:
            encoded = batch
        own = self._own
        encoded = insert_ids(encoded, own.bos, own.eos)
        cut = answer_cut = None
        if own.max_length is not None:
            encoded, cut, answer_cut = truncate(encoded, own.max_length, own.truncation_side)
        if not own.source.pretraining:
            audit_tokens(self._mask_audit, encoded, self._watched, cut, answer_cut)
        self._histogram.add(encoded)
        supervised = len(encoded.ids) if encoded.supervised is None else int(encoded.supervised.sum())
        self._tokens += (len(encoded.ids), supervised)

    def _keep(self, entry: PieceReport) -> None:
        self._histogram.keep()
        entry.tokens, entry.supervised_tokens = self._tokens.tolist()
        source = self._own.source
        if not source.pretraining:
            if source.shape == "tokens":
                stats = entry.stats
                self._mask_audit.add_labels(stats.labelled, stats.shifted_labels, stats.file)
                if not (source.labels or source.loss_mask):
                    self._mask_audit.add_unlabelled(stats.documents, stats.file)
            entry.mask_audit = self._mask_audit.to_dict()
            entry.mixed = self._mixed.to_dict()
        self._begin()

    def _observe(self, dialogue: Dialogue, key: Key, place: str) -> None:
        if self._templated is None:
            audit_without_template(self._mask_audit, dialogue, self._special, place)
        self._mixed.look(dialogue, key.language, self._own.source.train_on, place)

    def _drop(self) -> None:
        self._histogram.drop()
        self._begin()

    def _begin(self) -> None:
        self._tokens = np.zeros(2, np.int64)
        # What rendering finds and what the tokens show go into one audit.
        self._mask_audit = MaskAudit()
        self._mixed = MixedScripts()
        if self._templated is not None:
            self._templated.audit = self._mask_audit


def _templated(own: CorpusSpec, tokenizer: Tokenizer) -> TemplateRenderer | None:
    if own.template is None or own.now is None or not own.source.dialogues:
        return None
    return template_renderer(
        own.template,
        tokenizer,
        train_on=own.source.train_on,
        train_end_of_turn=own.train_end_of_turn,
        split_special_tokens=own.split_special_tokens,
        now=own.now,
    )


def _watched(templated: TemplateRenderer | None, tokenizer: Tokenizer) -> Watched:
    """The ids whose place in dialogues the mask audit holds to account."""
    if templated is None:
        return Watched(None, {})
    variables = templated.renderer.template.variables
    bos, eos = variables.get("bos_token"), variables.get("eos_token")
    # A model stops at its end of turn or at its EOS; one that is never a target, it never learns to write.
    texts = dict.fromkeys([*templated.renderer.end_of_turn(), *([eos] if eos else [])])
    ends = ((tokenizer.token_to_id(text), text) for text in texts)
    return Watched(
        tokenizer.token_to_id(bos) if bos else None, {i: text for i, text in ends if i is not None}
    )


def _kernel_figures(kernel: FastKernel | ReferenceKernel) -> dict[str, float]:
    """Bytes by the path they took; those of the reference path by its reason."""
    if isinstance(kernel, ReferenceKernel):
        return {}
    counters = kernel.counters
    slow = {f"reference: {reason}": n for reason, n in counters.reference_bytes.items()}
    return {"bytes": counters.bytes, **slow}


def peak_memory() -> int:
    """The largest resident memory of this process so far, in bytes."""
    try:
        # The kernel's own mark; getrusage's survives a fork, and would tell of the parent.
        with open("/proc/self/status", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
