"""Counting: one pass over every corpus of a plan, on an engine, and what the tasks reported of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from coverage_job.config import Job
from coverage_job.corpus.audit import MaskAudit, findings
from coverage_job.corpus.reader import BadRecord, PieceStats, locate
from coverage_job.corpus.template import token_texts
from coverage_job.counting.kept_cuts import cuts_bytes
from coverage_job.counting.task import CorpusSpec, CountSpec, count_split, count_table, kernel_of
from coverage_job.coverage import conform
from coverage_job.engines import Engine
from coverage_job.engines.spark import SparkEngine
from coverage_job.errors import BadFileError, CorpusError, EngineError, JobError
from coverage_job.pipeline.plan import CorpusPlan, Plan, spark_of
from coverage_job.progress import Steps
from coverage_job.schemas import HISTOGRAM, Reachability, Stage
from coverage_job.tokenizer.load import load

# What a corpus that holds the token proves wrong.
OPEN = (Reachability.UNREACHABLE, Reachability.MERGE_INTERMEDIATE)


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


def count(plan: Plan, vocabulary: pa.Table, engine: Engine, steps: Steps) -> Counted:
    """One pass over every corpus, on an engine. Raises CorpusError past the job's limits for bad input."""
    options = plan.job.engine
    with steps.step("cuts"):
        cuts = b"" if options.kernel == "reference" else cuts_bytes(plan.tokenizer)
    open_ids = ids_of(vocabulary, OPEN)
    spec = CountSpec(
        tokenizer=plan.tokenizer,
        rows=plan.rows,
        cuts=cuts,
        cache_mib=options.cache_mib,
        audit_every=options.audit_every,
        corpora={c.corpus.name: _corpus_spec(c, plan, open_ids) for c in plan.corpora},
    )
    if not isinstance(engine, SparkEngine) or engine.local:
        # Compiled once here, what workers of this machine run is found in the cache by all of them.
        with steps.step("compile"):
            kernel_of(spec)
    # The longest tasks first, so that none is left over at the end.
    splits = sorted((s for c in plan.corpora for s in c.splits), key=lambda s: -s.bytes)
    with steps.step("count", f"count on {engine.describe()}", total=len(splits), unit="splits") as step:
        counts, texts = engine.count(partial(count_split, spec), splits, step.advance)
    if len(texts) != len(splits):
        raise EngineError(f"{len(splits)} tasks were given out and {len(texts)} reported; run again")
    for c in plan.corpora:
        if c.corpus.table is None:
            continue
        with steps.step(f"count {c.corpus.name}") as step:
            task = partial(count_table, spec, c.corpus.name)
            more, more_texts = spark_of(engine, c.corpus).count_table(
                task, c.corpus.table, c.source.columns, step.advance
            )
        counts, texts = pa.concat_tables([counts, more]), texts + more_texts
    reports = [orjson.loads(text) for text in texts]
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
        histogram=_histogram(counts, plan.corpora),
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


def ids_of(vocabulary: pa.Table, reachabilities: Iterable[Reachability]) -> tuple[int, ...]:
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
