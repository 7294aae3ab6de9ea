"""Counting: one pass over every corpus of a plan, on an engine, and what the tasks reported of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from coverage_job.config import Job
from coverage_job.corpus.audit import findings
from coverage_job.corpus.content import content_key
from coverage_job.corpus.formats import position_name
from coverage_job.corpus.plan import Split, make_splits
from coverage_job.corpus.reader import BadRecord
from coverage_job.corpus.template import token_texts
from coverage_job.counting.kept_cuts import cuts_bytes
from coverage_job.counting.merge import sum_counts
from coverage_job.counting.store import (
    Kept,
    StoreSpec,
    folder_name,
    load_kept,
    options_key,
    resume,
    write_snapshot,
)
from coverage_job.counting.tally import PieceReport, Tally
from coverage_job.counting.task import CorpusSpec, CountSpec, count_split, count_table
from coverage_job.coverage import conform
from coverage_job.engines import Engine
from coverage_job.engines.spark import SparkEngine
from coverage_job.errors import BadFileError, CorpusError, EngineError, JobError
from coverage_job.pipeline.plan import CorpusPlan, Plan, prepare_workers, spark_of
from coverage_job.progress import Steps
from coverage_job.schemas import HISTOGRAM, Reachability, Stage
from coverage_job.storage import join
from coverage_job.tokenizer.load import load

# Share of labels that may differ from their own ids before they are taken for shifted ones.
_MOST_SHIFTED = 0.01
_MOST_GROUPS = 1000
# What a corpus that holds the token proves wrong.
OPEN = (Reachability.UNREACHABLE, Reachability.MERGE_INTERMEDIATE)


@dataclass(frozen=True)
class Counted:
    """What counting gave.

    histogram: schema HISTOGRAM. corpora: the list of `run.json`. contexts: a text per token that the
    vocabulary table knew none for. bad: located bad records. mixed: rows of schema MIXED_SCRIPT.
    """

    histogram: pa.Table
    corpora: list[dict[str, Any]]
    contexts: dict[int, str]
    bad: list[BadRecord]
    mixed: list[dict[str, Any]]
    audit: dict[str, Any]
    kernel: dict[str, int]
    peak_bytes: int


def count(plan: Plan, vocabulary: pa.Table, engine: Engine, steps: Steps) -> Counted:
    """One pass over every corpus, on an engine. Raises CorpusError past the job's limits for bad input."""
    spec = count_spec(plan, ids_of(vocabulary, OPEN), steps)
    with steps.step("plan splits", "cut the files into splits"):
        stored = {c.corpus.name: _stored(c, plan, steps) for c in plan.corpora}
    corpora = {name: replace(own, store=stored[name].spec) for name, own in spec.corpora.items()}
    spec = replace(spec, corpora=corpora)
    splits = [s for c in plan.corpora for s in stored[c.corpus.name].splits]
    if plan.job.store is not None and len(splits) > 1:
        prepare_workers(engine, plan.job)
    if splits or any(c.corpus.table is not None for c in plan.corpora):
        compile_here(spec, engine, steps)
    counts, reports = _pass(engine, spec, splits, steps)
    tainted = _tainted(reports)
    if tainted:
        # Of these files something was counted before they turned out bad; their corpora are counted again.
        names = ", ".join(sorted({file for files in tainted.values() for file in files}))
        steps.say(f"warning: counted again without {names}")
        kept = [r for r in reports if r["unit"] not in tainted]
        dropped = [_without_counts(r) for r in reports if r["unit"] in tainted]
        again = [s for split in splits if (s := _without(split, tainted)) is not None]
        more, more_reports = _pass(engine, spec, again, steps)
        counts = pa.concat_tables(
            [counts.filter(pc.invert(pc.is_in(counts["unit"], pa.array(list(tainted))))), more]
        )
        reports = [*kept, *dropped, *more_reports]
    for c in plan.corpora:
        if c.corpus.table is None:
            continue
        with steps.step(f"count {c.corpus.name}") as step:
            task = partial(count_table, spec, c.corpus.name)
            more, texts = spark_of(engine, c.corpus).count_table(
                task, c.corpus.table, c.source.columns, c.source.presence, step.advance
            )
        counts = pa.concat_tables([counts, more])
        reports += map(orjson.loads, texts)
    infos, bad, mixed, tables = [], [], [], []
    contexts: dict[int, str] = {}
    for c in plan.corpora:
        name = c.corpus.name
        own_reports = sorted((r for r in reports if r["unit"] == name), key=lambda r: int(r["split"]))
        own = stored[name]
        tally = _tally(own_reports, own.kept.pieces)
        own_contexts = {int(i): text for r in own_reports for i, text in r["contexts"].items()}
        own_counts = counts.filter(pc.equal(counts["unit"], name))
        if own.folder is not None:
            own_counts = sum_counts([own_counts, *own.kept.counts], name)
            tally.merge(own.kept.tally)
            own_contexts = own.kept.contexts | own_contexts
            read = {key for path, key in own.keys.items() if path not in tally.missing}
            if read:
                write_snapshot(own.folder, read, own_counts, tally, own_contexts)
        _check_limits(c, tally, plan.job)
        infos.append(_corpus_info(c, tally, len(own.kept.files)))
        bad += tally.bad
        mixed += [{"corpus": name, **place} for place in tally.mixed.places]
        tables.append(own_counts)
        contexts = own_contexts | contexts
    return Counted(
        histogram=_histogram(pa.concat_tables(tables), plan.corpora),
        corpora=infos,
        contexts=contexts,
        bad=bad,
        mixed=mixed,
        audit=_sum_audits(reports, steps),
        kernel=dict(sum((Counter(r["kernel"]) for r in reports), Counter())),
        peak_bytes=max((r["peak_bytes"] for r in reports), default=0),
    )


@dataclass(frozen=True)
class _Stored:
    """What the store holds of a corpus, and what is left to count."""

    folder: str | None
    keys: dict[str, str]
    kept: Kept
    splits: list[Split]
    spec: StoreSpec | None


def _stored(c: CorpusPlan, plan: Plan, steps: Steps) -> _Stored:
    job = plan.job
    if job.store is None or c.corpus.table is not None:
        return _Stored(None, {}, Kept(), c.splits, None)
    options = _options(c, plan)
    folder = join(job.store, f"{folder_name(c.corpus.name)}-{options_key(options)}")
    keys = {info.path: content_key(info, job.verify) for info in c.files}
    kept = load_kept(folder, keys, {info.path: info.size for info in c.files})
    for line in kept.torn:
        steps.say(f"  warning: {line}; counted again")
    left = [info for info in c.files if info.path not in kept.files]
    steps.say(f"  {c.corpus.name}: {len(kept.files)} files are in the store, {len(left)} are left to count")
    splits = resume(kept, make_splits(c.corpus.name, left, c.source, job.engine.split_bytes), keys)
    return _Stored(folder, keys, kept, splits, StoreSpec(folder, {i.path: keys[i.path] for i in left}))


def _options(c: CorpusPlan, plan: Plan) -> dict[str, Any]:
    """Everything that changes a count of the corpus."""
    spec = _corpus_spec(c, plan, ())
    source = asdict(c.source)
    for name in ("corpus", "on_bad_record", "on_bad_file", "max_bad_fraction", "decided", "warnings"):
        del source[name]
    return {
        "tokenizer": plan.tokenizer.sha256,
        "source": source,
        "bos": spec.bos,
        "eos": spec.eos,
        "template": spec.template.sha256 if spec.template is not None else None,
        # A template may write the date.
        "date": plan.started.date().isoformat()
        if spec.template is not None and "strftime_now" in spec.template.text
        else None,
        "train_end_of_turn": spec.train_end_of_turn,
        "split_special_tokens": spec.split_special_tokens,
        "max_length": spec.max_length,
        "truncation_side": spec.truncation_side,
    }


def _pass(
    engine: Engine, spec: CountSpec, splits: Sequence[Split], steps: Steps
) -> tuple[pa.Table, list[dict[str, Any]]]:
    """One pass over splits: counts of schema PARTIAL, and the tasks' reports."""
    # The longest tasks first, so that none is left over at the end.
    ordered = sorted(splits, key=lambda s: -s.bytes)
    with steps.step("count", f"count on {engine.describe()}", total=len(ordered), unit="splits") as step:
        counts, texts = engine.count(partial(count_split, spec), ordered, step.advance)
    if len(texts) != len(ordered):
        raise EngineError(f"{len(ordered)} tasks were given out and {len(texts)} reported; run again")
    return counts, [orjson.loads(text) for text in texts]


def _tally(reports: Sequence[dict[str, Any]], kept: Sequence[PieceReport]) -> Tally:
    tally = Tally()
    tally.add([*kept, *(PieceReport.from_dict(piece) for r in reports for piece in r["pieces"])])
    tally.seconds = sum(r["seconds"] for r in reports)
    return tally


def _tainted(reports: Iterable[dict[str, Any]]) -> dict[str, set[str]]:
    """By corpus, the bad files of which counts were handed over all the same.

    A task drops a bad file's counts; those of the file's other pieces, and those handed over early, stand.
    """
    read: set[tuple[str, str]] = set()
    failed: set[tuple[str, str]] = set()
    for r in reports:
        for piece in r["pieces"]:
            (failed if piece["error"] else read).add((r["unit"], piece["stats"]["file"]))
            if piece["error"] and r["early"]:
                read.add((r["unit"], piece["stats"]["file"]))
    tainted: dict[str, set[str]] = {}
    for unit, file in read & failed:
        tainted.setdefault(unit, set()).add(file)
    return tainted


def _without(split: Split, tainted: dict[str, set[str]]) -> Split | None:
    if split.corpus not in tainted:
        return None
    pieces = tuple(p for p in split.pieces if p.path not in tainted[split.corpus])
    return replace(split, pieces=pieces) if pieces else None


def _without_counts(report: dict[str, Any]) -> dict[str, Any]:
    """A report whose counts were thrown away: what failed in it is still to be told."""
    return {**report, "pieces": [p for p in report["pieces"] if p["error"]], "contexts": {}}


def count_spec(plan: Plan, sought: tuple[int, ...], steps: Steps) -> CountSpec:
    """What workers need to count the corpora of a plan. sought: ids for which a text is sought."""
    options = plan.job.engine
    with steps.step("cuts", "learn where text may be cut (kept for the next run)"):
        cuts = b"" if options.kernel == "reference" else cuts_bytes(plan.tokenizer)
    return CountSpec(
        tokenizer=plan.tokenizer,
        rows=plan.rows,
        cuts=cuts,
        cache_mib=options.cache_mib,
        audit_every=options.audit_every,
        corpora={c.corpus.name: _corpus_spec(c, plan, sought) for c in plan.corpora},
    )


def compile_here(spec: CountSpec, engine: Engine, steps: Steps) -> None:
    """Compile the kernel once in this process: workers of this machine then find it in the cache."""
    if not isinstance(engine, SparkEngine) or engine.local:
        with steps.step("compile", "compile the counting code (kept for the next run)"):
            spec.kernel()


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


def _check_limits(c: CorpusPlan, tally: Tally, job: Job) -> None:
    """Raises past the job's limits for bad input."""
    policy = job.policy(c.corpus)
    name = c.corpus.name
    sums = tally.sums
    if tally.missing and policy.on_bad_file == "fail":
        raise BadFileError(next(iter(tally.missing.values())))
    if sums["records"] != sums["documents"] + sums["bad_records"]:
        raise CorpusError(f"corpus {name}: records do not add up ({sums}); this is a fault of the reader")
    if sums["documents"] == 0:
        why = "check its path, format and fields"
        if tally.bad:
            why = f"all {sums['records']:,} records are bad; the first: {_place(c, tally.bad[0])}"
        raise CorpusError(f"corpus {name}: no document could be read; {why}")
    if sums["bad_records"] > policy.max_bad_fraction * sums["records"]:
        raise CorpusError(
            f"corpus {name}: {sums['bad_records']:,} of {sums['records']:,} records are bad, "
            f"max_bad_fraction is {policy.max_bad_fraction:g}; the first: {_place(c, tally.bad[0])}"
        )
    if sums["shifted_labels"] > _MOST_SHIFTED * sums["labelled"]:
        raise CorpusError(
            f"corpus {name}: {sums['shifted_labels']:,} of {sums['labelled']:,} labels are other ids than "
            "their own position's: labels are unshifted here; give those that are not shifted by one"
        )


def _place(c: CorpusPlan, bad: BadRecord) -> str:
    return f"{bad.file}, {position_name(c.source.format)} {bad.position}: {bad.reason}"


def _corpus_info(c: CorpusPlan, tally: Tally, reused: int) -> dict[str, Any]:
    """A corpus' entry in `run.json`."""
    info: dict[str, Any] = {
        "name": c.corpus.name,
        "stage": c.corpus.stage.value,
        "read_as": c.source.decided,
        "files": len(c.files),
        "files_counted": len(c.files) - reused - len(tally.missing),
        "files_reused": reused,
        "files_missing": sorted(tally.missing),
        **tally.sums,
        "tokens": tally.tokens,
        "supervised_tokens": tally.supervised_tokens,
        "seconds": round(tally.seconds, 3),
        "bad_reasons": dict(tally.reasons),
        "notes": dict(tally.notes),
        "warnings": list(c.source.warnings),
    }
    if c.corpus.stage is Stage.POSTTRAINING:
        info["mask_audit"] = tally.mask_audit.to_dict()
        info["mixed_script"] = {
            "documents": sum(tally.mixed.documents.values()),
            "mixed": sum(tally.mixed.mixed.values()),
            "by_language": {
                language: {"documents": n, "mixed": tally.mixed.mixed.get(language, 0)}
                for language, n in sorted(tally.mixed.documents.items())
            },
        }
        info["mask_findings"] = [asdict(f) for f in findings(tally.mask_audit)]
    return info


def _sum_audits(reports: Sequence[dict[str, Any]], steps: Steps) -> dict[str, Any]:
    """The audits of all tasks; a difference is said, and the splits that the reference counted again."""
    audits = [r["audit"] for r in reports]
    total: dict[str, Any] = {
        key: sum(a[key] for a in audits) for key in ("documents", "bytes", "differing", "oversize")
    }
    total["recounted_splits"] = sum(r["recounted"] for r in reports)
    if total["differing"]:
        steps.say(
            f"warning: the fast kernel differed from the tokenizer on {total['differing']:,} documents of "
            f"the audit; {total['recounted_splits']:,} splits were counted again by it. Please report it."
        )
    total["examples"] = [text for a in audits for text in a["examples"]][:3]
    return total


def _histogram(counts: pa.Table, corpora: Sequence[CorpusPlan]) -> pa.Table:
    """Counts by unit as schema HISTOGRAM, in the job's order of corpora."""
    order = {c.corpus.name: i for i, c in enumerate(corpora)}
    stage = {c.corpus.name: c.corpus.stage.value for c in corpora}
    groups = pl.DataFrame(counts).group_by("unit").agg(pl.col("group").n_unique())
    for name, number in groups.iter_rows():
        if number > _MOST_GROUPS:
            field = next(c.corpus.group_by for c in corpora if c.corpus.name == name)
            raise CorpusError(
                f"corpus {name}: {number:,} values of group_by: {field}; over {_MOST_GROUPS:,} are an error"
            )
    frame = (
        pl.DataFrame(counts)
        .rename({"unit": "corpus"})
        .with_columns(pl.col("corpus").replace_strict(stage, return_dtype=pl.String).alias("stage"))
        .sort(pl.col("corpus").replace_strict(order, return_dtype=pl.Int32), "language", "group", "token_id")
    )
    return conform(frame, HISTOGRAM)
