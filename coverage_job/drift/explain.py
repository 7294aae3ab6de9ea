"""Does coverage explain drift: cosines by how often a token was a target, and the count that suffices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

BUCKETS = (0, 1, 5, 20, 100)


def bucket_names(edges: tuple[int, ...] = BUCKETS) -> list[str]:
    """The names of the ranges that begin at each edge.

    >>> bucket_names()
    ['0', '1-4', '5-19', '20-99', '100+']
    """
    ends = [*[high - 1 for high in edges[1:]], None]
    names = []
    for low, high in zip(edges, ends, strict=True):
        names.append(f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}")
    return names


def by_bucket(counts: Int64, cosine: Float64, l2: Float64, threshold: float = 0.95) -> list[dict[str, Any]]:
    """Per bucket of supervised counts: tokens, mean cosine, share under `threshold`, mean l2.

    counts, cosine, l2: one per row; rows without a cosine are left out.
    """
    known = ~np.isnan(cosine)
    bucket = np.searchsorted(np.array(BUCKETS), counts, side="right") - 1
    rows = []
    for i, name in enumerate(bucket_names()):
        chosen = known & (bucket == i)
        n = int(chosen.sum())
        rows.append(
            {
                "supervised": name,
                "tokens": n,
                "cosine": float(cosine[chosen].mean()) if n else None,
                "under": float((cosine[chosen] < threshold).mean()) if n else None,
                "l2": float(l2[chosen].mean()) if n else None,
            }
        )
    return rows


def spearman(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> float | None:
    """Rank correlation, ties sharing their mean rank; None where it is not defined."""
    frame = pl.DataFrame({"x": x, "y": y}).with_columns(pl.all().cast(pl.Float64)).drop_nans()
    if frame.height < 2 or frame["x"].n_unique() < 2 or frame["y"].n_unique() < 2:
        return None
    return float(frame.select(pl.corr("x", "y", method="spearman")).item())


def calibrated_minimum(
    counts: Int64,
    cosine: Float64,
    *,
    target: float = 0.01,
    threshold: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """The smallest m for which the share of rows with count >= m under `threshold` is below `target`.

    Only counts that occur are tried. `low` and `high` are the 2.5 and 97.5 percentiles of `minimum` over
    `resamples` draws of the rows with replacement; a draw in which no m suffices counts as infinite, and
    an end of the interval that is infinite is None. `none_share` is the share of such draws.
    """
    known = ~np.isnan(cosine)
    values, inverse = np.unique(counts[known], return_inverse=True)
    low = cosine[known] < threshold
    total = np.bincount(inverse, minlength=len(values))
    under = np.bincount(inverse, weights=low, minlength=len(values)).astype(np.int64)
    if not len(values):
        return {"target": target, "threshold": threshold, "minimum": None, "tokens": 0}
    position = _first_sufficient(total[None], under[None], target)[0]
    rng = np.random.default_rng(seed)
    # Rows of one count and one verdict are alike: drawing rows is drawing how many of each cell.
    cells = np.concatenate([total - under, under])
    drawn: list[int] = []
    for _ in range(0, resamples, 100):
        draws = rng.multinomial(int(cells.sum()), cells / cells.sum(), size=min(100, resamples - len(drawn)))
        good, bad = draws[:, : len(values)], draws[:, len(values) :]
        drawn += _first_sufficient(good + bad, bad, target).tolist()
    minimums = np.array([values[i] if i >= 0 else np.inf for i in drawn])
    ends = np.quantile(minimums, [0.025, 0.975], method="inverted_cdf")
    return {
        "target": target,
        "threshold": threshold,
        "minimum": int(values[position]) if position >= 0 else None,
        "tokens": int(total[position:].sum()) if position >= 0 else 0,
        "low": int(ends[0]) if np.isfinite(ends[0]) else None,
        "high": int(ends[1]) if np.isfinite(ends[1]) else None,
        "none_share": float(np.isinf(minimums).mean()),
    }


def _first_sufficient(total: npt.NDArray[Any], under: npt.NDArray[Any], target: float) -> Int64:
    """int64[n]: first column whose rows to the right (itself included) have a share below target, else -1."""
    n = np.cumsum(total[:, ::-1], axis=1)[:, ::-1]
    bad = np.cumsum(under[:, ::-1], axis=1)[:, ::-1]
    enough = (bad < target * n) & (n > 0)
    return np.where(enough.any(axis=1), enough.argmax(axis=1), -1)
