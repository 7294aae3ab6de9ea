"""The main job: job -> plan -> counts -> coverage -> manifest -> the files of a run directory."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import polars as pl
import pyarrow as pa
from rich.console import RenderableType

from coverage_job import __version__
from coverage_job.checks import Facts, evaluate
from coverage_job.config import DriftOptions, Job
from coverage_job.corpus.documents import Int64
from coverage_job.corpus.reader import BadRecord
from coverage_job.coverage import Weight, conform, coverage_table, join_counts, judge, summarise, unmatched
from coverage_job.drift.command import DriftResult, Scored, analyse, score_checkpoints
from coverage_job.pipeline.counts import OPEN, Counted, count, ids_of
from coverage_job.pipeline.history import baseline_among, earlier_runs, trend
from coverage_job.pipeline.plan import Plan, make_plan, open_engine
from coverage_job.pipeline.preflight import preflight, refuse_lost_output
from coverage_job.pipeline.tokenizers import compare_with_pretraining
from coverage_job.progress import Steps
from coverage_job.remedies.manifest import actions, manifest
from coverage_job.report import tables
from coverage_job.report.page import PageData, page
from coverage_job.schemas import BAD_RECORDS, MIXED_SCRIPT, VOCABULARY, Stage
from coverage_job.storage import RunWriter, mask_settings, mask_text, mask_urls, refuse_existing
from coverage_job.tokenizer.compare import row_map
from coverage_job.tokenizer.labels import with_counted_languages
from coverage_job.tokenizer.load import describe, load
from coverage_job.tokenizer.vocabulary import raise_contextual, vocabulary_table


@dataclass(frozen=True)
class Result:
    """What `run` leaves: its directory, what to print, and whether a check failed."""

    path: str
    printed: RenderableType
    failed: bool


def count_only(job: Job, engine_name: str, directory: str | None, steps: Steps) -> Result:
    """Histograms alone, in a new run directory."""
    with open_engine(engine_name, job, steps) as engine:
        refuse_lost_output(job, directory, engine)
        plan = make_plan(job, engine, steps)
        preflight(plan, engine, steps)
        vocabulary = vocabulary_table(plan.tokenizer, job.model_vocab_size)
        counted = count(plan, vocabulary, engine, steps)
        info = _run_info(plan, counted, engine.describe(), steps)
    writer = RunWriter.create(job.output, directory)
    writer.write_table("histogram.parquet", counted.histogram)
    writer.write_table("bad_records.parquet", _bad_table(counted.bad))
    writer.finish(info)
    return Result(writer.path, tables.counted(counted.corpora), failed=False)


def run(job: Job, engine_name: str, directory: str | None, steps: Steps) -> Result:
    """The main job: counts, coverage, manifest, summaries, checks and the page, in a new run directory."""
    scoring: Future[Scored] | None = None
    if directory is not None:
        refuse_existing(directory)
    with open_engine(engine_name, job, steps) as engine:
        refuse_lost_output(job, directory, engine)
        plan = make_plan(job, engine, steps)
        other = compare_with_pretraining(plan, steps)
        preflight(plan, engine, steps)
        with steps.step("vocabulary", "explain the vocabulary (kept for the next run)"):
            vocabulary = vocabulary_table(plan.tokenizer, job.model_vocab_size, job.labels)
        # The driver scores checkpoints while the executors count.
        with ThreadPoolExecutor(1) as pool:
            if job.drift is not None:
                scoring = pool.submit(_score, job.drift, _moved(plan))
            counted = count(plan, vocabulary, engine, steps)
        engine_text = engine.describe()
    with steps.step("cover", "join counts and vocabulary"):
        vocabulary = _counted_languages(_raise_seen(vocabulary, counted, plan), counted.histogram)
        judged = judge(
            join_counts(vocabulary, counted.histogram, _weights(job)), job.coverage, _template_ids(plan)
        )
        action = actions(judged, job.remedies)
        coverage = coverage_table(judged, action)
        needs = manifest(judged, action, job.coverage)
        summary = summarise(coverage, counted.histogram)
    drift: DriftResult | None = None
    if scoring is not None and job.drift is not None:
        with steps.step("drift"):
            drift = analyse(scoring.result(), coverage, neighbours=job.drift.neighbours)
            coverage = drift.coverage if drift.coverage is not None else coverage
    runs = earlier_runs(job.output, plan.tokenizer.sha256)
    results = evaluate(
        job.checks,
        Facts(summary.to_pylist(), counted.corpora, drift.report if drift is not None else None),
        baseline_among(runs),
    )
    checked = [r.to_dict() for r in results]
    bad = _bad_table(counted.bad)
    info = _run_info(plan, counted, engine_text, steps) | {
        "totals": _totals(summary),
        "pretraining_tokenizer": other,
        "warnings": _warnings(job, judged),
    }
    writer = RunWriter.create(job.output, directory)
    name = writer.path.rstrip("/").rsplit("/", 1)[-1]
    data = PageData(
        name=name,
        info=info,
        coverage=coverage,
        histogram=counted.histogram,
        manifest=needs,
        summary=summary,
        checks=checked,
        bad_records=bad,
        drift=drift.table if drift is not None else None,
        history=[*trend(runs), {"run": name, "time": info["started"], **info["totals"]}],
    )
    with steps.step("write"):
        writer.write_table("histogram.parquet", counted.histogram)
        writer.write_table("coverage.parquet", coverage)
        writer.write_table("manifest.parquet", needs)
        writer.write_table("summary.parquet", summary)
        writer.write_json("summary.json", _summary_json(summary, counted.corpora))
        writer.write_table("bad_records.parquet", bad)
        writer.write_table("mixed_script.parquet", pa.Table.from_pylist(counted.mixed, MIXED_SCRIPT))
        writer.write_json("checks.json", checked)
        if drift is not None:
            writer.write_table("drift.parquet", drift.table)
            writer.write_json("drift.json", drift.report)
        writer.write("report.html", page(data))
        writer.finish(info)
    printed = tables.run_report(info, coverage, summary, results, writer.path)
    return Result(writer.path, printed, any(r.verdict == "fail" for r in results))


def _moved(plan: Plan) -> Int64 | None:
    """Where the base's tokenizer is another one: its row of each token."""
    before = plan.job.pretraining_tokenizer
    return None if before is None else row_map(describe(before), plan.tokenizer)


def _score(options: DriftOptions, rows: Int64 | None) -> Scored:
    return score_checkpoints(
        options.before,
        options.after,
        lm_head=options.lm_head,
        embedding=options.embedding,
        device=options.device,
        row_map=rows,
    )


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


def _warnings(job: Job, tokens: pl.DataFrame) -> list[str]:
    """What the job asks for and the run cannot give: lines for whoever wrote it.

    tokens: columns of schema VOCABULARY.
    """
    said = []
    mixed = [c.name for c in job.corpora if c.mixed_in]
    if mixed and job.coverage.measure != "expected_updates":
        said.append(
            f"mixed_in of {', '.join(mixed)} lifts no status under coverage.measure: {job.coverage.measure}; "
            "expected_updates counts it"
        )
    for key, options in (
        ("coverage.exempt", job.coverage.exempt),
        ("remedies.exclude", job.remedies.exclude),
    ):
        if lost := unmatched(options, tokens):
            more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
            said.append(f"{key}: no token has {', '.join(lost[:5])}{more}")
    texts = [t for t in job.labels.seo_spam if t]
    if texts:
        held = tokens["token_bytes"].to_list()
        if lost := [repr(t) for t in texts if not any(t.encode() in data for data in held)]:
            said.append(f"labels.seo_spam: no token holds {', '.join(lost[:5])}")
    return said


def _weights(job: Job) -> list[Weight]:
    return [
        Weight(c.name, c.stage, c.mixed_in if c.stage is Stage.PRETRAINING else c.epochs) for c in job.corpora
    ]


def _raise_seen(vocabulary: pa.Table, counted: Counted, plan: Plan) -> pa.Table:
    """What a text corpus holds can be reached: such tokens become contextual, with the text found."""
    texts = [c.corpus.name for c in plan.corpora if c.source.shape != "tokens"]
    seen = pl.DataFrame(counted.histogram).filter(pl.col("corpus").is_in(texts))["token_id"].unique()
    open_ids = ids_of(vocabulary, OPEN)
    return raise_contextual(
        vocabulary, {i: counted.contexts.get(i) for i in sorted(set(open_ids) & set(seen.to_list()))}
    )


def _counted_languages(vocabulary: pa.Table, histogram: pa.Table) -> pa.Table:
    """Languages told by the counts of pre-training text whose language is known, where letters only guess."""
    counts = (
        pl.DataFrame(histogram)
        .filter((pl.col("stage") == Stage.PRETRAINING.value) & (pl.col("language") != ""))
        .group_by("token_id", "language")
        .agg(pl.col("occurrences").sum())
    )
    if len(counts) == 0:
        return vocabulary
    return conform(with_counted_languages(pl.DataFrame(vocabulary), counts), VOCABULARY)


def _summary_json(summary: pa.Table, corpora: list[dict[str, Any]]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for row in summary.to_pylist():
        nested.setdefault(row.pop("by"), {})[row.pop("value")] = row
    return {**nested, "corpora": corpora}


def _bad_table(bad: Sequence[BadRecord]) -> pa.Table:
    rows = [{name: getattr(b, name) for name in BAD_RECORDS.names} | {"file": mask_text(b.file)} for b in bad]
    return pa.Table.from_pylist(rows, BAD_RECORDS)


def _run_info(plan: Plan, counted: Counted, engine: str, steps: Steps) -> dict[str, Any]:
    info = {
        "started": plan.started.isoformat(timespec="seconds"),
        "job": plan.job.model_dump(mode="json"),
        "engine": engine,
        "versions": _versions(),
        "tokenizer": {**asdict(plan.tokenizer), "matrix_rows": plan.rows},
        "corpora": counted.corpora,
        "audit": counted.audit,
        # Bytes encoded, and of them those that took the tokenizer's own path, by reason.
        "kernel": counted.kernel,
        "peak_bytes": counted.peak_bytes,
        "seconds": steps.seconds,
    }
    # Where it is written down, no URL shows its secrets.
    masked: dict[str, Any] = mask_urls(info)
    masked["job"]["engine"]["conf"] = mask_settings(plan.job.engine.conf)
    return masked


def _totals(summary: pa.Table) -> dict[str, int]:
    """The vocabulary's tallies as a whole."""
    rows = [r for r in summary.to_pylist() if r["by"] == "kind"]
    names = {"tokens": "tokens", "covered": "covered", "under": "flagged", "critical": "critical"}
    names |= {"absent": "absent", "exempt": "exempt"}
    return {label: sum(r[name] for r in rows) for name, label in names.items()}


def _versions() -> dict[str, str]:
    found = {"coverage_job": __version__, "python": platform.python_version()}
    for package in ("tokenizers", "pyarrow", "polars", "numpy", "numba", "pyspark"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
