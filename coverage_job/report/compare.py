"""The page of two runs side by side: what changed from the first to the second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from coverage_job.coverage import measure_column
from coverage_job.report import figures, rows
from coverage_job.report.page import PageData, load, render
from coverage_job.storage import Run

_FIRST_ROWS = 15
_STATUSES = (*figures.STATUSES, "exempt")


def compare_page(a: Run, b: Run) -> bytes:
    """The page of run `a` (before) against run `b` (after), as UTF-8 HTML.

    Tokens are matched by id, so only where both runs have the same tokenizer and rows; otherwise the page
    compares the totals and says why.
    """
    return compare(load(a), load(b))


def compare(a: PageData, b: PageData) -> bytes:
    """As `compare_page`, of tables in memory."""
    before, after = pl.DataFrame(a.coverage), pl.DataFrame(b.coverage)
    options = b.info["job"]["coverage"]
    measure = measure_column(options["measure"])
    same = len(before) == len(after) and before["token_bytes"].equals(after["token_bytes"])
    changed = after.head(0).with_columns(pl.col("status").alias("was"))
    if same:
        joined = after.with_columns(before["status"].alias("was"))
        changed = rows.ordered(joined.filter(pl.col("was") != pl.col("status"))).head(rows.MOST_ROWS)
    return render(
        "compare.html",
        title=f"{a.name} against {b.name}",
        a=a,
        b=b,
        same=same,
        same_options=a.info["job"]["coverage"] == options,
        options=options,
        totals=_totals(before, after),
        moves=_moves(before, after) if same else [],
        statuses=_STATUSES,
        languages=_side_by_side(before, after, "language"),
        categories=_side_by_side(before, after, "category"),
        corpora=_corpora(a.info.get("corpora", []), b.info.get("corpora", [])),
        drift=[r for r in (_drift(d.name, f) for d, f in ((a, before), (b, after))) if r],
        cosines=figures.COSINES,
        first_rows=_FIRST_ROWS,
        changed=len(changed),
        table=rows.pack({"run": f"{a.name}-{b.name}", **rows.table_block(changed, b.histogram, measure)}),
        details=rows.pack(
            rows.details_block(changed, b.histogram, b.manifest, None, after.select("token_id", "token"))
        ),
    )


def _totals(before: pl.DataFrame, after: pl.DataFrame) -> list[tuple[str, int, int]]:
    return [
        (status, int((before["status"] == status).sum()), int((after["status"] == status).sum()))
        for status in ("absent", "critical", "low", "covered", "exempt")
    ]


def _moves(before: pl.DataFrame, after: pl.DataFrame) -> list[tuple[str, list[int]]]:
    """Per status before: how many tokens have which status after."""
    pairs = pl.DataFrame({"was": before["status"], "status": after["status"]})
    counts = {(w, s): n for w, s, n in pairs.group_by("was", "status").len().iter_rows()}
    return [(was, [counts.get((was, s), 0) for s in _STATUSES]) for was in _STATUSES]


def _side_by_side(before: pl.DataFrame, after: pl.DataFrame, by: str) -> list[dict[str, Any]]:
    """Both runs' tallies by a label, the largest change first."""
    left, right = ({r["value"]: r for r in figures.tallies(f, by)} for f in (before, after))
    none = {"flagged": 0, "asked": 0, "bar": ""}
    found = [
        {"value": v, "before": left.get(v, none), "after": right.get(v, none)} for v in {**left, **right}
    ]
    for row in found:
        row["change"] = row["after"]["flagged"] - row["before"]["flagged"]
    return sorted(found, key=lambda r: (-abs(r["change"]), r["value"]))


def _corpora(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> list[tuple[str, Mapping[str, Any] | None, Mapping[str, Any] | None]]:
    left, right = ({c["name"]: c for c in corpora} for corpora in (before, after))
    return [(name, left.get(name), right.get(name)) for name in {**left, **right}]


def _drift(name: str, coverage: pl.DataFrame) -> dict[str, Any] | None:
    cosine = coverage["lm_head_cosine"].drop_nulls().drop_nans()
    if len(cosine) == 0:
        return None
    return {
        "name": name,
        "tokens": len(cosine),
        "mean": cosine.mean(),
        "min": cosine.min(),
        "under": [int((cosine < c).sum()) for c in figures.COSINES],
    }
