"""Two checkpoints in, a drift directory out: composes scoring, neighbours, indicators and explanation.

Scoring needs the checkpoints alone, so a run can do it while its executors count; the rest joins the
vocabulary or the coverage table.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from coverage_job import storage
from coverage_job.checkpoint.matrix import Matrix
from coverage_job.checkpoint.read import Checkpoint, open_checkpoint
from coverage_job.coverage import conform
from coverage_job.drift import explain
from coverage_job.drift.diagnose import Group, diagnose, sum_of_learning_rates
from coverage_job.drift.indicators import candidates, unused_indicators
from coverage_job.drift.neighbours import nearest, overlap
from coverage_job.drift.score import (
    Float64,
    Int64,
    Progress,
    RowScores,
    fitted,
    resolve_device,
    score_rows,
)
from coverage_job.drift.summary import COSINE_NOTE, new_neighbours, summarize
from coverage_job.errors import CheckpointError, JobError, StorageError
from coverage_job.schemas import DRIFT, DRIFT_COLUMNS, FORMAT_VERSION, Kind, Reachability

ROLES = ("lm_head", "embedding")
DRIFTED = 0.95
SUPERVISED = "posttraining_supervised_occurrences"
_COVERED = 20
_NAMED = 20


@dataclass
class Scored:
    """Checkpoints whose rows were scored.

    scores: by role; of tied matrices both roles hold the same object. notes: what a reader must know.
    """

    before: Checkpoint | None
    after: Checkpoint
    scores: dict[str, RowScores]
    row_map: Int64 | None
    device: str
    notes: list[str]
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return next(len(s.cosine) for s in self.scores.values())

    def distinct(self) -> list[str]:
        """The roles with a matrix of their own."""
        roles = [role for role in ROLES if role in self.scores]
        return roles[:1] if len(roles) == 2 and self.scores["lm_head"] is self.scores["embedding"] else roles


@dataclass(frozen=True)
class DriftResult:
    """table: schema DRIFT. report: what `drift.json` holds. coverage: the run's table, drift filled in."""

    table: pa.Table
    report: dict[str, Any]
    coverage: pa.Table | None

    def write(self, directory: str) -> None:
        """Into a new directory, `drift.json` last. Raises StorageError where it exists."""
        if storage.exists(directory):
            raise StorageError(f"{directory}: exists already; name a directory that does not")
        storage.write_parquet(storage.join(directory, "drift.parquet"), self.table)
        if self.coverage is not None:
            storage.write_parquet(storage.join(directory, "coverage.parquet"), self.coverage)
        storage.write_bytes(storage.join(directory, "drift.json"), storage.dump_json(self.report))


def run_drift(
    before: str | Sequence[str] | None,
    after: str | Sequence[str],
    output: str,
    *,
    vocabulary: pa.Table | None = None,
    run_directory: str | None = None,
    lm_head: str | None = None,
    embedding: str | None = None,
    neighbours: str = "drifted",
    k: int = 10,
    target: float = 0.01,
    device: str = "auto",
    row_map: Int64 | None = None,
    progress: Progress | None = None,
) -> DriftResult:
    """Score two checkpoints, or one; write `drift.parquet`, `drift.json` and, with a run, `coverage.parquet`.

    vocabulary: schema VOCABULARY; not needed with `run_directory`, whose coverage table has it.
    neighbours: `drifted` (rows under cosine 0.95; of one checkpoint its under-trained ones), `all`, `none`.
    target: the share of drifted rows that the calibrated minimum keeps below.
    row_map: int64[up to the after rows], the row of `before` with the same token, -1 for none; default: the
    same id.
    Raises CheckpointError, RunDirectoryError, StorageError or JobError with the way out.
    """
    if storage.exists(output):
        raise StorageError(f"{output}: exists already; name a directory that does not")
    coverage = storage.Run(run_directory).table("coverage.parquet") if run_directory is not None else None
    table = coverage if coverage is not None else vocabulary
    if table is None:
        raise JobError("drift: needs the tokenizer's vocabulary; give --tokenizer or --run")
    scored = score_checkpoints(
        before, after, lm_head=lm_head, embedding=embedding, device=device, row_map=row_map, progress=progress
    )
    result = analyse(scored, table, neighbours=neighbours, k=k, target=target, progress=progress)
    result.write(output)
    return result


def score_checkpoints(
    before: str | Sequence[str] | None,
    after: str | Sequence[str],
    *,
    lm_head: str | None = None,
    embedding: str | None = None,
    device: str = "auto",
    row_map: Int64 | None = None,
    progress: Progress | None = None,
) -> Scored:
    """Open both checkpoints and score the matrices that both have; tied matrices once."""
    device = resolve_device(device)
    start = time.perf_counter()
    new = open_checkpoint(after, lm_head, embedding)
    old = open_checkpoint(before, lm_head, embedding) if before is not None else None
    notes: list[str] = []
    scores: dict[str, RowScores] = {}
    row_map = fitted(row_map, max((m.shape[0] for r in ROLES if (m := new.matrix(r)) is not None), default=0))
    for role in ROLES:
        matrix, base = new.matrix(role), old.matrix(role) if old is not None else None
        if matrix is None or (old is not None and base is None):
            notes.append(
                f"{role}: not in {'both checkpoints' if old is not None else 'the checkpoint'}, not scored"
            )
        elif role == "embedding" and new.tied and (old is None or old.tied) and "lm_head" in scores:
            scores[role] = scores["lm_head"]
            notes.append(f"tied: lm_head and embedding are one matrix ({new.tied}), scored once")
        else:
            scores[role] = score_rows(base, matrix, row_map=row_map, device=device, progress=progress)
            if base is not None and base.shape[0] != matrix.shape[0] and row_map is None:
                notes.append(
                    f"{role}: {base.shape[0]} rows before and {matrix.shape[0]} after; the first "
                    f"{min(base.shape[0], matrix.shape[0])} are compared"
                )
    if not scores:
        raise CheckpointError(
            f"checkpoints {old.source if old else ''} and {new.source}: have no matrix in common; "
            "name them with --lm-head and --embedding"
        )
    if old is not None and bool(old.tied) != bool(new.tied):
        notes.append("one checkpoint's matrices are tied and the other's are not")
    scored = Scored(old, new, scores, row_map, device, notes)
    if row_map is not None:
        notes.append(
            f"rows matched by token: {int((row_map >= 0).sum())} of {scored.rows} have a counterpart"
        )
    scored.seconds["score"] = time.perf_counter() - start
    return scored


def analyse(
    scored: Scored,
    table: pa.Table,
    *,
    neighbours: str = "drifted",
    k: int = 10,
    target: float = 0.01,
    progress: Progress | None = None,
) -> DriftResult:
    """Everything that joins the scores with a table of schema VOCABULARY or COVERAGE."""
    if neighbours not in ("drifted", "all", "none"):
        raise JobError(f"--neighbours {neighbours}: is drifted, all or none")
    labels = _labels(table, scored)
    columns: dict[str, Any] = {name: labels[name] for name in ("token_id", "token", "language", "category")}
    report: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "before": _describe(scored.before),
        "after": _describe(scored.after),
        "tied": scored.after.tied,
        "device": scored.device,
        "rows": scored.rows,
        "notes": scored.notes,
    }
    for role, scores in scored.scores.items():
        columns |= _score_columns(role, scores)
        report[role] = {
            **summarize(scores.cosine, labels),
            "not_scored": {
                name: {"count": len(ids), "first": ids[:_NAMED]}
                for name, ids in sorted(scores.faults.items())
            },
        }
    report["cosine_note"] = COSINE_NOTE
    with _Timer(scored, "indicators"):
        under_trained = _indicators(scored, labels, columns)
    report["under_trained"] = {
        "rule": "shortest embeddings" if not scored.after.tied else "nearest to the mean of unused rows",
        "count": int(under_trained.sum()) if under_trained is not None else None,
    }
    with _Timer(scored, "neighbours"):
        found = _neighbours(scored, labels, columns, neighbours, k, under_trained, progress)
    if found:
        report["neighbours"] = {"k": k, "rows": neighbours, **found}
    with _Timer(scored, "diagnosis"):
        diagnosis = _diagnosis(scored, labels)
    if diagnosis is not None:
        report["diagnosis"] = diagnosis
    coverage = None
    if SUPERVISED in table.column_names:
        if "lm_head" in scored.scores and scored.before is not None:
            report["explain"] = _explanation(scored.scores["lm_head"], labels[SUPERVISED].to_numpy(), target)
        coverage = fill(table, scored)
    report["bytes_read"] = sum(c.bytes_read for c in (scored.before, scored.after) if c is not None)
    report["seconds"] = {name: round(value, 3) for name, value in scored.seconds.items()}
    # A matrix that is missing leaves its columns null.
    frame = pl.DataFrame(columns).with_columns(
        pl.lit(None).alias(name) for name in DRIFT.names if name not in columns
    )
    return DriftResult(conform(frame, DRIFT), report, coverage)


def fill(coverage: pa.Table, scored: Scored) -> pa.Table:
    """A coverage table with its drift columns filled for the rows that were scored."""
    for name in DRIFT_COLUMNS:
        role, value = name.rsplit("_", 1)
        if role not in scored.scores:
            continue
        values = np.full(coverage.num_rows, np.nan)
        n = min(coverage.num_rows, scored.rows)
        values[:n] = getattr(scored.scores[role], value)[:n]
        index = coverage.schema.get_field_index(name)
        coverage = coverage.set_column(
            index, coverage.schema.field(index), pa.array(values, pa.float64(), from_pandas=True)
        )
    return coverage


class _Timer:
    def __init__(self, scored: Scored, name: str) -> None:
        self._seconds, self._name = scored.seconds, name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        self._seconds[self._name] = time.perf_counter() - self._start


def _describe(checkpoint: Checkpoint | None) -> dict[str, Any] | None:
    if checkpoint is None:
        return None
    matrices = {role: checkpoint.matrix(role) for role in ROLES}
    return {
        "source": checkpoint.source,
        "tied": checkpoint.tied,
        **{role: m.describe() for role, m in matrices.items() if m is not None},
    }


_LABELS = ("token_id", "token", "language", "category", "kind", "reachability", "status", SUPERVISED)


def _labels(table: pa.Table, scored: Scored) -> pl.DataFrame:
    """One row per row of the after matrix; a vocabulary that ends earlier is continued by unused rows."""
    frame = pl.DataFrame(table.select([c for c in _LABELS if c in table.column_names]))
    rows = scored.rows
    if frame["token_id"].to_list() != list(range(frame.height)):
        raise JobError("drift: the vocabulary table's ids are not 0, 1, 2, ...; make it again with `run`")
    beyond = frame.slice(rows).filter(pl.col("kind") != Kind.UNUSED.value)
    if beyond.height:
        raise CheckpointError(
            f"checkpoint {scored.after.source}: has {rows} rows, but the vocabulary has a token "
            f"{beyond['token_id'][0]} ({beyond['token'][0][:40]!r}); give the tokenizer of this model"
        )
    if frame.height < rows:
        scored.notes.append(
            f"the vocabulary ends at {frame.height}, the matrix at {rows}: the rest counts as unused"
        )
        unused = frame.filter(pl.col("kind") == Kind.UNUSED.value)
        like = (
            unused.row(0, named=True)
            if unused.height
            else {
                name: "unused"
                if name in ("kind", "reachability")
                else ""
                if frame[name].dtype == pl.String
                else 0
                for name in frame.columns
            }
        )
        if "status" in frame.columns:
            like["status"] = "exempt"
        more = pl.DataFrame([{**like, "token_id": i} for i in range(frame.height, rows)], schema=frame.schema)
        frame = pl.concat([frame, more])
    return frame.head(rows)


def _null(values: Float64) -> pl.Series:
    return pl.Series(values, nan_to_null=True, dtype=pl.Float64)


def _score_columns(role: str, scores: RowScores) -> dict[str, Any]:
    rank = pl.Series(scores.rank())
    return {
        **{
            f"{role}_{name}": _null(getattr(scores, name))
            for name in ("cosine", "l2", "relative_l2", "norm_before", "norm_after")
        },
        f"{role}_rank": rank.replace(0, None),
    }


def _indicators(
    scored: Scored, labels: pl.DataFrame, columns: dict[str, Any]
) -> npt.NDArray[np.bool_] | None:
    kind, reachability = labels["kind"], labels["reachability"]
    idle = [Reachability.UNUSED.value, Reachability.UNREACHABLE.value]
    unused = (kind == Kind.UNUSED.value).to_numpy() | reachability.is_in(idle).to_numpy()
    eligible = ~unused & (kind != Kind.SPECIAL.value).to_numpy()
    indicators = None
    if scored.after.lm_head is not None:
        indicators = unused_indicators(scored.after.lm_head, unused, scored.device)
        if indicators is None:
            scored.notes.append("no unused or unreachable row: no indicators against them")
        else:
            columns |= {
                "unused_cosine": _null(indicators.cosine),
                "unused_l2": _null(indicators.l2),
                "unused_cosine_centred": _null(indicators.centred),
                "unused_cosine_without_first": _null(indicators.without_first),
            }
    norm = scored.scores["embedding"].norm_after if "embedding" in scored.scores else None
    chosen = candidates(norm if not scored.after.tied else None, indicators, eligible)
    if chosen is not None:
        columns["under_trained"] = chosen
    return chosen


def _neighbours(
    scored: Scored,
    labels: pl.DataFrame,
    columns: dict[str, Any],
    which: str,
    k: int,
    under_trained: npt.NDArray[np.bool_] | None,
    progress: Progress | None,
) -> dict[str, Any]:
    """Fills the neighbour columns; gives, per role, where new neighbours live."""
    report: dict[str, Any] = {}
    if which == "none":
        return report
    languages = labels["language"].to_list()
    special = (labels["kind"] == Kind.SPECIAL.value).to_numpy()
    for role in scored.distinct():
        scores, after = scored.scores[role], scored.after.matrix(role)
        assert after is not None
        chosen = np.ones(scored.rows, dtype=bool)
        if which == "drifted" and scored.before is not None:
            chosen = scores.cosine < DRIFTED
        elif which == "drifted":
            chosen = under_trained if under_trained is not None else np.zeros(scored.rows, dtype=bool)
        ids = np.flatnonzero(chosen)
        found = nearest(after, ids, k, device=scored.device, progress=progress)
        filled = {"neighbours_after": found}
        report[role] = {"rows": len(ids)}
        if scored.before is not None:
            base = scored.before.matrix(role)
            assert base is not None
            earlier = _nearest_before(base, scored, ids, k, progress)
            filled["neighbours_before"] = earlier
            shared = overlap(earlier, found)
            whole = np.full(scored.rows, np.nan)
            whole[ids] = shared
            report[role] = {
                "overlap": float(np.nanmean(shared)) if not np.isnan(shared).all() else None,
                **new_neighbours(ids, earlier, found, languages, special),
            }
        for own in ROLES if len(scored.distinct()) < len(scored.scores) else (role,):
            for name, values in filled.items():
                columns[f"{own}_{name}"] = _lists(scored.rows, ids, values)
            if scored.before is not None:
                columns[f"{own}_neighbour_overlap"] = _null(whole)
    return report


def _nearest_before(
    base: Matrix, scored: Scored, ids: Int64, k: int, progress: Progress | None
) -> npt.NDArray[np.int32]:
    """int32[len(ids), k]: neighbours in the base's matrix of after rows, as after ids; -1 for none."""
    source = np.where(ids < base.shape[0], ids, -1) if scored.row_map is None else scored.row_map[ids]
    result = np.full((len(ids), k), -1, dtype=np.int32)
    result[source >= 0] = nearest(base, source[source >= 0], k, device=scored.device, progress=progress)
    if scored.row_map is not None:
        back = np.full(base.shape[0] + 1, -1, dtype=np.int32)  # its last entry is what -1 finds
        known = np.flatnonzero(scored.row_map >= 0)
        back[scored.row_map[known]] = known
        result = back[result]
    return result


def _lists(rows: int, ids: Int64, values: npt.NDArray[np.int32]) -> pl.Series:
    column: list[list[int] | None] = [None] * rows
    for i, row in zip(ids.tolist(), values.tolist(), strict=True):
        column[i] = [v for v in row if v >= 0]
    return pl.Series(column, dtype=pl.List(pl.Int32))


def _diagnosis(scored: Scored, labels: pl.DataFrame) -> dict[str, Any] | None:
    scores = scored.scores.get("lm_head")
    if scores is None or scored.before is None:
        return None
    before, after = scored.before.lm_head, scored.after.lm_head
    assert before is not None
    assert after is not None
    if SUPERVISED in labels.columns:
        counts = labels[SUPERVISED].to_numpy()
        groups = [Group("uncovered", counts == 0), Group("covered", counts >= _COVERED)]
        about = {"uncovered": "no supervised occurrence", "covered": f"at least {_COVERED} of them"}
    else:
        groups = [Group("drifted", scores.cosine < DRIFTED), Group("others", scores.cosine >= DRIFTED)]
        about = {"drifted": f"cosine under {DRIFTED}", "others": "the rest"}
    rates = sum_of_learning_rates(scored.after.files, scored.after.folder)
    return {
        "matrix": "lm_head",
        "groups": about,
        "sum_of_learning_rates": rates,
        **diagnose(
            before, after, scores, groups, row_map=scored.row_map, learning_rates=rates, device=scored.device
        ),
    }


def _explanation(scores: RowScores, counts: Int64, target: float) -> dict[str, Any]:
    return {
        "buckets": explain.by_bucket(counts, scores.cosine, scores.l2),
        "spearman_count_cosine": explain.spearman(counts, scores.cosine),
        "spearman_count_l2": explain.spearman(counts, scores.l2),
        "calibrated_minimum": explain.calibrated_minimum(counts, scores.cosine, target=target),
    }
