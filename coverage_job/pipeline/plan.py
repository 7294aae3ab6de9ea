"""A job made ready: its engine, its tokenizer, its corpora and their splits."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone

from rich.console import RenderableType

from coverage_job.config import Corpus, Job
from coverage_job.corpus.plan import FileInfo, Split, list_files, make_splits
from coverage_job.corpus.source import Source, fields_of_schema, resolve, resolve_fields
from coverage_job.corpus.template import TemplateSpec, load_template
from coverage_job.engines import Engine
from coverage_job.engines import spark as spark_engine
from coverage_job.engines.local import LocalEngine
from coverage_job.engines.spark import SparkEngine
from coverage_job.errors import EngineError, JobError
from coverage_job.progress import Steps
from coverage_job.report import tables
from coverage_job.tokenizer.load import TokenizerSpec, describe


@dataclass(frozen=True)
class CorpusPlan:
    """A corpus with its files, how they are read, and the splits they are read in."""

    corpus: Corpus
    files: list[FileInfo]
    source: Source
    splits: list[Split]
    template: TemplateSpec | None

    @property
    def bytes(self) -> int:
        return sum(split.bytes for split in self.splits)


@dataclass(frozen=True)
class Plan:
    """A job made ready; nothing of its corpora was read but their first records.

    rows: of the model's matrix: the tokenizer's highest id + 1, or `model_vocab_size` where that is more.
    """

    job: Job
    tokenizer: TokenizerSpec
    rows: int
    corpora: list[CorpusPlan]
    started: datetime


def open_engine(name: str, job: Job, steps: Steps) -> Engine:
    """The engine by name: ``auto``, ``local`` or ``spark``. Raises EngineError with the way out.

    ``auto`` is Spark where the job or the process asks for it, else Spark's local mode where it can
    start, else local processes.
    """
    options = job.engine
    if name == "auto":
        asked = any(c.table is not None for c in job.corpora) or options.master or spark_engine.wanted()
        why_not = None if asked else spark_engine.unavailable()
        if why_not is not None:
            steps.say(f"Spark is not used: {why_not}; counting on processes of this machine")
        name = "spark" if why_not is None else "local"
    if name == "local":
        return LocalEngine(options.workers)
    with steps.step("session", "start or find a Spark session"):
        return SparkEngine(options.master, options.conf, options.workers)


def open_to_look(name: str, job: Job, steps: Steps) -> AbstractContextManager[Engine | None]:
    """What planning alone needs: a Spark session where the job names a table of one, else no engine."""
    if any(c.table is not None for c in job.corpora):
        return open_engine(name, job, steps)
    return nullcontext()


def make_plan(job: Job, engine: Engine | None, steps: Steps) -> Plan:
    """Find the tokenizer and the files, decide how they are read. Raises for whatever cannot be found."""
    if engine is not None:
        steps.say(f"engine: {engine.describe()}")
    # With a store it may turn out that nothing is left to count.
    if job.store is None:
        prepare_workers(engine, job)
    with steps.step("plan"):
        tokenizer = describe(job.tokenizer)
        rows = job.model_vocab_size or tokenizer.rows
        if rows < tokenizer.rows:
            raise JobError(
                f"model_vocab_size: {rows:,} is under the tokenizer's {tokenizer.rows:,} rows (its highest "
                "id + 1); give the rows of the model's matrix, or leave the key out"
            )
        corpora = []
        for corpus in job.corpora:
            if corpus.document_end is not None and not 0 <= corpus.document_end < rows:
                raise JobError(
                    f"corpus {corpus.name}: document_end: {corpus.document_end} is outside the model's "
                    f"{rows:,} rows, so no document would end; give the id that ends one"
                )
            if corpus.table is not None:
                fields = fields_of_schema(spark_of(engine, corpus).table_schema(corpus.table))
                files, source, splits = [], resolve_fields(corpus, job, "table", fields), []
            else:
                files = list_files(corpus)
                source = resolve(corpus, job, files)
                splits = make_splits(corpus.name, files, source, job.engine.split_bytes)
            choice = corpus.chat_template or job.chat_template
            template = None
            # A file that is named is opened even where no dialogue asks for it: a wrong path is an error.
            if source.dialogues or choice not in ("auto", "none"):
                template = load_template(tokenizer.path, choice)
            if not source.dialogues:
                template = None
            corpora.append(CorpusPlan(corpus, files, source, splits, template))
            how = f", template {template.source}" if template is not None else ""
            what = f"{len(files)} files" if corpus.table is None else f"table {corpus.table}"
            steps.say(f"  {corpus.name}: {what}, {source.decided}{how}")
            for warning in source.warnings:
                steps.say(f"  {corpus.name}: warning: {warning}")
    return Plan(job, tokenizer, rows, corpora, datetime.now(timezone.utc))


def prepare_workers(engine: Engine | None, job: Job) -> None:
    """Let worker processes start beside what is done before they are needed."""
    if engine is not None:
        engine.prepare(job.tokenizer, job.engine.cache_mib if job.engine.kernel == "fast" else None)


def spark_of(engine: Engine | None, corpus: Corpus) -> SparkEngine:
    if not isinstance(engine, SparkEngine):
        raise EngineError(f"corpus {corpus.name} is a Spark table: use --engine spark")
    return engine


def preview(plan: Plan) -> RenderableType:
    """What a run would read."""
    return tables.plan_report(
        [
            (c.corpus.name, c.corpus.stage.value, len(c.files), c.bytes, len(c.splits), c.source.decided)
            for c in plan.corpora
        ]
    )
