"""What the rows' cosines add up to: overall, and by language, category, kind and coverage status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

THRESHOLDS = (0.95, 0.90, 0.65)
BY = ("language", "category", "kind", "status")

COSINE_NOTE = (
    "A cosine is a symptom, neither necessary nor sufficient: a row under 0.95 may cost nothing, and an "
    "ability can be lost with every row above it. Probe what the model writes, with the base beside it and "
    "with the rows put back."
)


def summarize(cosine: npt.NDArray[np.float64], labels: pl.DataFrame) -> dict[str, Any]:
    """Figures of the defined cosines.

    labels: a row per cosine; those of the columns `BY` that it has are grouped by.
    Gives {"overall": figures, "by": {column: {value: figures}}}, figures being tokens, mean, min and, per
    threshold, {"count", "share"} of rows under it; mean, min and share are None where there are no rows.
    """
    frame = labels.select(c for c in BY if c in labels.columns).with_columns(
        pl.Series("cosine", cosine, nan_to_null=True, strict=False)
    )
    known = frame.filter(pl.col("cosine").is_not_null())
    by = {
        column: {
            str(row[column]): _figures(row)
            for row in known.group_by(column)
            .agg(_aggregates())
            .sort("tokens", column, descending=[True, False])
            .to_dicts()
        }
        for column in BY
        if column in frame.columns
    }
    return {"overall": _figures(known.select(_aggregates()).to_dicts()[0]), "by": by}


def _aggregates() -> list[pl.Expr]:
    cosine = pl.col("cosine")
    return [
        pl.len().alias("tokens"),
        cosine.mean().alias("mean"),
        cosine.min().alias("min"),
        *[(cosine < t).sum().alias(f"under_{t:.2f}") for t in THRESHOLDS],
    ]


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    tokens = row["tokens"]
    under = {
        f"under_{t:.2f}": {
            "count": row[f"under_{t:.2f}"],
            "share": row[f"under_{t:.2f}"] / tokens if tokens else None,
        }
        for t in THRESHOLDS
    }
    return {"tokens": tokens, "mean": row["mean"], "min": row["min"], **under}


def new_neighbours(
    rows: npt.NDArray[np.int64],
    before: npt.NDArray[np.int32],
    after: npt.NDArray[np.int32],
    languages: Sequence[str],
    special: npt.NDArray[np.bool_],
) -> dict[str, Any]:
    """Where the neighbours live that rows gained: counts by language of the row and of its new neighbour.

    rows: ids. before, after: int32[len(rows), k], -1 where there is none.
    languages, special: of every id; special tokens are also counted apart.
    """
    gained = (after >= 0) & ~(after[:, :, None] == before[:, None, :]).any(axis=2)
    at, column = np.nonzero(gained)
    targets = after[at, column].astype(np.int64)
    table: dict[str, dict[str, int]] = {}
    for source, target in zip(rows[at].tolist(), targets.tolist(), strict=True):
        row = table.setdefault(languages[source], {})
        row[languages[target]] = row.get(languages[target], 0) + 1
    return {
        "rows": len(rows),
        "gained": len(targets),
        "special_share": float(special[targets].mean()) if len(targets) else None,
        "languages": {
            k: dict(sorted(v.items(), key=lambda e: (-e[1], e[0]))) for k, v in sorted(table.items())
        },
    }
