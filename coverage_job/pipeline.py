"""Composes the stages: the only place where they meet.

job -> plan -> counts (on an engine) -> coverage -> manifest -> the files of a run directory.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
from rich.console import RenderableType

from coverage_job import __version__
from coverage_job.checks import Facts, evaluate
from coverage_job.config import Corpus, Job
from coverage_job.corpus.audit import MaskAudit, findings
from coverage_job.corpus.plan import FileInfo, Split, list_files, make_splits
from coverage_job.corpus.reader import BadRecord, PieceStats, locate
from coverage_job.corpus.source import Source, resolve
from coverage_job.corpus.template import TemplateSpec, load_template, token_texts
from coverage_job.counting.kept_cuts import cuts_bytes
from coverage_job.counting.task import CorpusSpec, CountSpec, count_split
from coverage_job.coverage import Weight, conform, coverage_table, join_counts, judge, summarise
from coverage_job.engines import Engine
from coverage_job.engines.local import LocalEngine
from coverage_job.errors import BadFileError, CorpusError, EngineError, JobError
from coverage_job.progress import Steps
from coverage_job.remedies.manifest import actions, manifest
from coverage_job.report import tables
from coverage_job.schemas import BAD_RECORDS, HISTOGRAM, Reachability, Stage
from coverage_job.storage import RunWriter
from coverage_job.tokenizer.load import TokenizerSpec, describe, load
from coverage_job.tokenizer.vocabulary import raise_contextual, vocabulary_table


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


@dataclass(frozen=True)
class Counted:
    """What counting gave.

    histogram: schema HISTOGRAM. corpora: the list of `run.json`. contexts: a text per token that the
    vocabulary table knew none for. bad: located bad records.
    """

    histogram: pa.Table
    corpora: list[dict[str, Any]]
    contexts: dict[int, str]
    bad: list[BadRecord]
    audit: dict[str, Any]
    peak_bytes: int


@dataclass(frozen=True)
class Result:
    """What `run` leaves: its directory, what to print, and whether a check failed."""

    path: str
    printed: RenderableType
    failed: bool


def open_engine(name: str, job: Job) -> Engine:
    """The engine by name: ``auto``, ``local`` or ``spark``. Raises EngineError with the way out."""
    from coverage_job.engines import spark

    options = job.engine
    tables_ = [c.name for c in job.corpora if c.table is not None]
    if name == "auto":
        asked = bool(tables_) or options.master is not None or spark.wanted()
        name = "spark" if asked or spark.unavailable() is None else "local"
    if name == "local":
        if tables_:
            raise EngineError(f"corpus {tables_[0]} is a Spark table: use --engine spark")
        return LocalEngine(options.workers)
    return spark.SparkEngine(options.master, options.conf, options.workers)


def make_plan(job: Job, steps: Steps) -> Plan:
    """Find the tokenizer and the files, decide how they are read. Raises for whatever cannot be found."""
    with steps.step("plan"):
        tokenizer = describe(job.tokenizer)
        rows = max(tokenizer.rows, job.model_vocab_size or 0)
        corpora = []
        for corpus in job.corpora:
            files = list_files(corpus)
            source = resolve(corpus, job, files)
            splits = make_splits(corpus.name, files, source, job.engine.split_bytes)
            template = None
            if source.dialogues:
                template = load_template(tokenizer.path, corpus.chat_template or job.chat_template)
            corpora.append(CorpusPlan(corpus, files, source, splits, template))
            how = f", template {template.source}" if template is not None else ""
            steps.say(f"  {corpus.name}: {len(files)} files, {source.decided}{how}")
            for warning in source.warnings:
                steps.say(f"  {corpus.name}: warning: {warning}")
    return Plan(job, tokenizer, rows, corpora, datetime.now(timezone.utc))


def preview(plan: Plan) -> RenderableType:
    """What a run would read."""
    return tables.plan_report(
        [
            (c.corpus.name, c.corpus.stage.value, len(c.files), c.bytes, len(c.splits), c.source.decided)
            for c in plan.corpora
        ]
    )


def count(plan: Plan, vocabulary: pa.Table, engine: Engine, steps: Steps) -> Counted:
    """One pass over every corpus, on an engine. Raises CorpusError past the job's limits for bad input."""
    options = plan.job.engine
    with steps.step("cuts"):
        cuts = b"" if options.kernel == "reference" else cuts_bytes(plan.tokenizer)
    open_ids = _ids(vocabulary, [Reachability.UNREACHABLE, Reachability.MERGE_INTERMEDIATE])
    spec = CountSpec(
        tokenizer=plan.tokenizer,
        rows=plan.rows,
        cuts=cuts,
        cache_mib=options.cache_mib,
        audit_every=options.audit_every,
        corpora={c.corpus.name: _corpus_spec(c, plan, open_ids) for c in plan.corpora},
    )
    # The longest tasks first, so that none is left over at the end.
    splits = sorted((s for c in plan.corpora for s in c.splits), key=lambda s: -s.bytes)
    with steps.step("count", f"count on {engine.describe()}", total=len(splits), unit="splits") as step:
        partial_counts, texts = engine.count(partial(count_split, spec), splits, step.advance)
    reports = [orjson.loads(text) for text in texts]
    if len(reports) != len(splits):
        raise EngineError(f"{len(splits)} tasks were given out and {len(reports)} reported; run again")
    infos, bad = [], []
    for c in plan.corpora:
        info, bad_of_corpus = _corpus_info(c, plan.job, [r for r in reports if r["unit"] == c.corpus.name])
        infos.append(info)
        bad += bad_of_corpus
    contexts: dict[int, str] = {}
    for report in sorted(reports, key=lambda r: (r["unit"], r["split"])):
        for token_id, text in report["contexts"].items():
            contexts.setdefault(int(token_id), text)
    return Counted(
        histogram=_histogram(partial_counts, plan.corpora),
        corpora=infos,
        contexts=contexts,
        bad=bad,
        audit=_sum_audits(reports),
        peak_bytes=max((r["peak_bytes"] for r in reports), default=0),
    )


def _corpus_spec(c: CorpusPlan, plan: Plan, open_ids: tuple[int, ...]) -> CorpusSpec:
    corpus = c.corpus
    return CorpusSpec(
        source=c.source,
        # A token corpus may hold ids that no text has; it proves nothing of them.
        sought=() if c.source.shape == "tokens" else open_ids,
        bos=_edge_id(corpus.add_bos, "bos_token", c, plan),
        eos=_edge_id(corpus.add_eos, "eos_token", c, plan),
        template=c.template,
        train_end_of_turn=corpus.train_end_of_turn,
        split_special_tokens=corpus.split_special_tokens,
        now=plan.started,
        max_length=corpus.max_length,
        truncation_side=corpus.truncation_side,
    )


def _edge_id(wanted: bool | str, name: str, c: CorpusPlan, plan: Plan) -> int | None:
    """The id that the trainer puts before or after each document of a text corpus."""
    if wanted is False:
        return None
    key = f"add_{name[:3]}"
    if c.source.shape != "text":
        raise JobError(f"corpus {c.corpus.name}: {key} is for text corpora; a chat template writes its own")
    text = wanted if isinstance(wanted, str) else token_texts(plan.tokenizer.path).get(name)
    if text is None:
        raise JobError(
            f"corpus {c.corpus.name}: {key} is set and the tokenizer's folder names no {name}; "
            f'write the token: {key}: "<s>"'
        )
    token_id = load(plan.tokenizer).token_to_id(text)
    if token_id is None:
        raise JobError(f"corpus {c.corpus.name}: {key}: the tokenizer has no token {text!r}")
    return int(token_id)


def _ids(vocabulary: pa.Table, reachabilities: Iterable[Reachability]) -> tuple[int, ...]:
    wanted = [r.value for r in reachabilities]
    frame = pl.DataFrame(vocabulary.select(["token_id", "reachability"]))
    return tuple(frame.filter(pl.col("reachability").is_in(wanted))["token_id"].to_list())


def _corpus_info(
    c: CorpusPlan, job: Job, reports: list[dict[str, Any]]
) -> tuple[dict[str, Any], list[BadRecord]]:
    """A corpus' entry in `run.json` and its located bad records. Raises past the job's limits."""
    policy = job.policy(c.corpus)
    name = c.corpus.name
    pieces = [(PieceStats(**stats), error) for r in reports for stats, error in r["pieces"]]
    missing = sorted({stats.file for stats, error in pieces if error})
    if missing and policy.on_bad_file == "fail":
        raise BadFileError(next(error for _, error in pieces if error))
    read = [stats for stats, error in pieces if not error]
    total = {
        key: sum(getattr(stats, key) for stats in read)
        for key in ("records", "documents", "bad_records", "empty_documents", "bytes", "without_target")
    }
    if total["records"] != total["documents"] + total["bad_records"]:
        raise CorpusError(f"corpus {name}: records do not add up ({total}); this is a fault of the reader")
    if total["documents"] == 0:
        raise CorpusError(f"corpus {name}: no document could be read; check its path, format and fields")
    if total["bad_records"] > policy.max_bad_fraction * total["records"]:
        first = next(b for r in reports for b in r["bad"])
        raise CorpusError(
            f"corpus {name}: {total['bad_records']} of {total['records']} records are bad, "
            f"max_bad_fraction is {policy.max_bad_fraction:g}; the first: {first['file']}: {first['reason']}"
        )
    bad = [
        BadRecord(**{**b, "first_bytes": bytes.fromhex(b["first_bytes"])}) for r in reports for b in r["bad"]
    ]
    info = {
        "name": name,
        "stage": c.corpus.stage.value,
        "read_as": c.source.decided,
        "files": len(c.files),
        "files_counted": len({s.file for s in read}),
        "files_reused": 0,
        "files_missing": missing,
        **total,
        "tokens": sum(r["tokens"] for r in reports),
        "supervised_tokens": sum(r["supervised_tokens"] for r in reports),
        "seconds": round(sum(r["seconds"] for r in reports), 3),
        "warnings": list(c.source.warnings),
    }
    if c.corpus.stage is Stage.POSTTRAINING:
        audit = MaskAudit()
        for report in reports:
            audit = audit.merge(MaskAudit.from_dict(report["mask_audit"]))
        info["mask_audit"] = audit.to_dict()
        info["mask_findings"] = [asdict(f) for f in findings(audit)]
    return info, locate(bad, [stats for stats, _ in pieces])


def _sum_audits(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    audits = [r["audit"] for r in reports]
    total: dict[str, Any] = {
        key: sum(a[key] for a in audits) for key in ("documents", "bytes", "differing", "oversize")
    }
    total["examples"] = [text for a in audits for text in a["examples"]][:3]
    return total


def _histogram(counts: pa.Table, corpora: Sequence[CorpusPlan]) -> pa.Table:
    """Counts by unit as schema HISTOGRAM, in the job's order of corpora."""
    order = {c.corpus.name: i for i, c in enumerate(corpora)}
    stage = {c.corpus.name: c.corpus.stage.value for c in corpora}
    frame = (
        pl.DataFrame(counts)
        .rename({"unit": "corpus"})
        .with_columns(pl.col("corpus").replace_strict(stage, return_dtype=pl.String).alias("stage"))
        .sort(pl.col("corpus").replace_strict(order, return_dtype=pl.Int32), "language", "group", "token_id")
    )
    return conform(frame, HISTOGRAM)


def run(job: Job, engine_name: str, directory: str | None, steps: Steps) -> Result:
    """The main job: counts, coverage, manifest, summaries, checks, all in a new run directory."""
    plan = make_plan(job, steps)
    with steps.step("vocabulary"):
        vocabulary = vocabulary_table(plan.tokenizer, job.model_vocab_size)
    with open_engine(engine_name, job) as engine:
        counted = count(plan, vocabulary, engine, steps)
        engine_text = engine.describe()
    with steps.step("cover"):
        vocabulary = _raise_seen(vocabulary, counted, plan)
        judged = judge(
            join_counts(vocabulary, counted.histogram, _weights(job)), job.coverage, _template_ids(plan)
        )
        action = actions(judged, job.remedies)
        coverage = coverage_table(judged, action)
        needs = manifest(judged, action, job.coverage)
        summary = summarise(coverage, counted.histogram)
    writer = RunWriter.create(job.output, directory)
    with steps.step("write"):
        facts = Facts(summary.to_pylist(), counted.corpora)
        results = evaluate(job.checks, facts, lambda name: _baseline(name, job.output))
        writer.write_table("histogram.parquet", counted.histogram)
        writer.write_table("coverage.parquet", coverage)
        writer.write_table("manifest.parquet", needs)
        writer.write_table("summary.parquet", summary)
        writer.write_json("summary.json", _summary_json(summary, counted.corpora))
        writer.write_table("bad_records.parquet", _bad_table(counted.bad))
        writer.write_json("checks.json", [r.to_dict() for r in results])
        info = _run_info(plan, counted, engine_text, steps)
        writer.finish(info)
    printed = tables.run_report(info, coverage, summary, results, writer.path)
    return Result(writer.path, printed, any(r.verdict == "fail" for r in results))


def _template_ids(plan: Plan) -> set[int]:
    """The special tokens that the chat templates write, by their text or by a variable that names them."""
    special = {t.content: i for i, t in load(plan.tokenizer).get_added_tokens_decoder().items() if t.special}
    found = set()
    for c in plan.corpora:
        if c.template is None:
            continue
        source = c.template.text + (c.template.tools_text or "")
        named = [text for variable, text in c.template.tokens if variable in source]
        found |= {i for text, i in special.items() if text in source or text in named}
    return found


def _weights(job: Job) -> list[Weight]:
    return [
        Weight(c.name, c.stage, c.mixed_in if c.stage is Stage.PRETRAINING else c.epochs) for c in job.corpora
    ]


def _raise_seen(vocabulary: pa.Table, counted: Counted, plan: Plan) -> pa.Table:
    """What a text corpus holds can be reached: such tokens become contextual, with the text found."""
    texts = [c.corpus.name for c in plan.corpora if c.source.shape != "tokens"]
    seen = pl.DataFrame(counted.histogram).filter(pl.col("corpus").is_in(texts))["token_id"].unique()
    open_ids = _ids(vocabulary, [Reachability.UNREACHABLE, Reachability.MERGE_INTERMEDIATE])
    return raise_contextual(
        vocabulary, {i: counted.contexts.get(i) for i in sorted(set(open_ids) & set(seen.to_list()))}
    )


def _summary_json(summary: pa.Table, corpora: list[dict[str, Any]]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for row in summary.to_pylist():
        nested.setdefault(row.pop("by"), {})[row.pop("value")] = row
    return {**nested, "corpora": corpora}


def _bad_table(bad: Sequence[BadRecord]) -> pa.Table:
    rows = [{name: getattr(b, name) for name in BAD_RECORDS.names} for b in bad]
    return pa.Table.from_pylist(rows, BAD_RECORDS)


def _baseline(name: str, output: str) -> Facts | None:
    return None


def _run_info(plan: Plan, counted: Counted, engine: str, steps: Steps) -> dict[str, Any]:
    return {
        "started": plan.started.isoformat(timespec="seconds"),
        "job": plan.job.model_dump(mode="json"),
        "engine": engine,
        "versions": _versions(),
        "tokenizer": {**asdict(plan.tokenizer), "matrix_rows": plan.rows},
        "corpora": counted.corpora,
        "audit": counted.audit,
        "peak_bytes": counted.peak_bytes,
        "seconds": steps.seconds,
    }


def _versions() -> dict[str, str]:
    found = {"coverage_job": __version__, "python": platform.python_version()}
    for package in ("tokenizers", "pyarrow", "polars", "numpy", "numba", "pyspark"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
