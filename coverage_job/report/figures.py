"""The page's charts: a run's tables in, drawings and the figures behind them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from markupsafe import Markup

from coverage_job.drift.explain import BUCKETS, bucket_names
from coverage_job.report.charts import BASE, LEFT, RIGHT, Linear, Log, Plot, Series, short, stacked_bar

STATUSES = ("covered", "low", "critical", "absent")
COSINES = (0.95, 0.90, 0.65)
_BINS_PER_DECADE = 4
# Room beside the axes of the density chart for the row and the column of tokens with a count of 0.
_ZERO = 22.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Chart:
    """A drawing, what it shows in a sentence, and its figures: column names and rows of text."""

    title: str
    note: str
    drawing: Markup
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tallies(coverage: pl.DataFrame, by: str) -> list[dict[str, Any]]:
    """Tokens by a label and status, most flagged first.

    `asked` is all but the exempt ones; `bar` a drawing of the statuses' shares of it.
    """
    frame = (
        coverage.group_by(pl.col(by).alias("value"))
        .agg(
            *[(pl.col("status") == s).sum().alias(s) for s in (*STATUSES, "exempt")],
            pl.len().alias("tokens"),
        )
        .with_columns((pl.col("tokens") - pl.col("exempt")).alias("asked"))
        .with_columns((pl.col("asked") - pl.col("covered")).alias("flagged"))
        .sort(["flagged", "tokens", "value"], descending=[True, True, False])
    )
    rows = frame.to_dicts()
    for row in rows:
        row["bar"] = _status_bar(row)
    return rows


def _status_bar(row: Mapping[str, Any]) -> Markup:
    if not row["asked"]:
        return Markup("")
    title = ", ".join(f"{100 * row[s] / row['asked']:.1f} % {s}" for s in STATUSES)
    return stacked_bar([(f"s-{s}", row[s] / row["asked"]) for s in STATUSES], title)


def rank_frequency(coverage: pl.DataFrame, measure: str, minimum: int) -> Chart | None:
    """Counts of both stages by rank, log-log, with the region under the minimum marked."""
    pre = _descending(coverage["pretraining_occurrences"])
    asked = coverage.filter(pl.col("status") != "exempt")
    post = _descending(asked[measure])
    highest = max(pre[0] if len(pre) else 0, post[0] if len(post) else 0)
    if highest <= 0:
        return None
    plot = Plot(
        "Counts by rank, both stages, logarithmic",
        Log(1, max(10, len(coverage))),
        Log(1, max(10 * minimum, highest)),
        "rank of the token in its stage",
        "count",
    )
    starved = int((asked[measure] < minimum).sum())
    plot.rect((1, len(coverage)), (1, minimum), "starved")
    plot.value_axes()
    plot.horizontal(minimum, "limit")
    plot.text(LEFT + 6, BASE - 6, f"starved, under {minimum}: {starved:,} tokens", "inside")
    for style, counts in (("pre", pre), ("post", post)):
        if len(counts):
            ranks = np.unique(np.geomspace(1, len(counts), 120).round().astype(int))
            plot.line(Series(style, [(float(r), float(counts[r - 1])) for r in ranks]))
    _legend(plot, (("pre", "pre-training"), ("post", measure_words(measure))))
    places = [10**k for k in range(7) if 10**k <= max(len(pre), len(post))]
    return Chart(
        "Rank and frequency",
        f"Each stage's tokens from the most to the least frequent. {starved:,} of {len(asked):,} tokens that "
        f"can be asked for lie in the starved region, {len(asked) - len(post):,} of them with no count.",
        plot.svg(),
        ("rank", "pre-training", measure_words(measure)),
        [[f"{r:,}", *[f"{c[r - 1]:,.0f}" if r <= len(c) else "0" for c in (pre, post)]] for r in places],
    )


def measure_words(column: str) -> str:
    """A coverage column as a reader says it.

    >>> measure_words("posttraining_supervised_occurrences")
    'supervised occurrences in post-training'
    """
    words = column.removeprefix("posttraining_").replace("_", " ")
    return words if column == "expected_updates" else f"{words} in post-training"


def _descending(counts: pl.Series) -> Floats:
    values = counts.to_numpy().astype(np.float64)
    ordered: Floats = np.sort(values[values > 0])[::-1]
    return ordered


def _legend(plot: Plot, entries: Sequence[tuple[str, str]]) -> None:
    x = float(LEFT)
    for style, label in entries:
        plot.parts.append(
            Markup('<line class="line {}" x1="{}" x2="{}" y1="14" y2="14"/>').format(style, x, x + 24)
        )
        plot.text(x + 30, 18, label)
        x += 50 + 6.2 * len(label)


def density(coverage: pl.DataFrame, measure: str, minimum: int) -> Chart | None:
    """How many tokens have which pre-training count and which measure, logarithmic, zeros apart."""
    asked = coverage.filter(pl.col("status") != "exempt")
    x = asked["pretraining_occurrences"].to_numpy().astype(np.float64)
    y = asked[measure].to_numpy().astype(np.float64)
    if len(asked) == 0 or x.max() <= 0:
        return None
    plot = Plot(
        "Tokens by pre-training count and supervised count, logarithmic",
        Log(1, 10 ** np.ceil(np.log10(max(10.0, x.max() + 1)))),
        Log(1, 10 ** np.ceil(np.log10(max(10.0 * minimum, y.max() + 1)))),
        "occurrences in pre-training",
        measure_words(measure),
        gap=_ZERO,
    )
    cells, tokens = np.unique(np.stack([_bin(x), _bin(y)]), axis=1, return_counts=True)
    for (i, j), n in zip(cells.T.tolist(), tokens.tolist(), strict=True):
        x0, x1 = _edges(i, plot.px, LEFT)
        y1, y0 = _edges(j, plot.py, BASE)
        shade = 0.14 + 0.86 * np.log1p(n) / np.log1p(tokens.max())
        title = f"{n:,} tokens: pre-training {_range(i)}, {measure_words(measure)} {_range(j)}"
        plot.box(x0 + 0.5, y0 + 0.5, x1 - 0.5, y1 - 0.5, "cell", title, float(shade))
    plot.axes(
        [(LEFT + _ZERO / 2, "0"), *[(plot.px(v), short(v)) for v in plot.x.ticks()]],
        [(BASE - _ZERO / 2, "0"), *[(plot.py(v), short(v)) for v in plot.y.ticks()]],
    )
    plot.horizontal(minimum, "limit")
    plot.text(RIGHT - 4, plot.py(minimum) - 5, f"minimum {minimum}", "inside", "end")
    never = int(((x > 0) & (y == 0)).sum())
    frequent = int(((x >= 1000) & (y < minimum)).sum())
    pre, post = (np.digitize(v, edges) for v, edges in ((x, [1, 10, 100, 1000, 10000]), (y, [1, 5, 20, 100])))
    return Chart(
        "Supervised against pre-training",
        f"Stronger is more tokens. {never:,} tokens stand in pre-training and are never asked for; "
        f"{frequent:,} occur there 1,000 times or more and lie under the minimum.",
        plot.svg(),
        ("pre-training", *[f"{name} {measure_words(measure).split(' in ')[0]}" for name in _POST_NAMES]),
        [
            [name, *[f"{int(((pre == i) & (post == j)).sum()):,}" for j in range(5)]]
            for i, name in enumerate(("0", "1–9", "10–99", "100–999", "1,000–9,999", "10,000+"))
        ],
    )


_POST_NAMES = ("0", "1–4", "5–19", "20–99", "100+")


def _bin(values: Floats) -> npt.NDArray[np.int64]:
    """-1 for 0, else the bin of the logarithm (values between 0 and 1 stand with 1)."""
    bins = np.floor(np.log10(np.maximum(values, 1)) * _BINS_PER_DECADE + 1e-9).astype(np.int64)
    return np.where(values <= 0, -1, bins)


def _edges(index: int, place: Any, zero: float) -> tuple[float, float]:
    """The borders of a bin in the drawing; bin -1 lies between `zero` and the axis' start."""
    if index < 0:
        return zero, place(1)
    return place(10 ** (index / _BINS_PER_DECADE)), place(10 ** ((index + 1) / _BINS_PER_DECADE))


def _range(index: int) -> str:
    if index < 0:
        return "0"
    low, high = (int(np.ceil(10 ** ((index + k) / _BINS_PER_DECADE) - 1e-9)) for k in (0, 1))
    return f"{low:,}" if high <= low + 1 else f"{low:,} to {high - 1:,}"


def drift_by(coverage: pl.DataFrame, measure: str, by: str | None = None) -> list[dict[str, Any]]:
    """Rows' cosines by a label, or by bucket of the measure where `by` is None.

    value, tokens, mean, min, under: shares under each of COSINES, bar. Tokens without a cosine are left out.
    """
    scored = coverage.filter(pl.col("lm_head_cosine").is_not_null() & pl.col("lm_head_cosine").is_not_nan())
    bucket = np.searchsorted(BUCKETS, scored[measure].to_numpy(), side="right") - 1
    key = pl.col(by) if by else pl.Series(bucket)
    cosine = pl.col("lm_head_cosine")
    rows = (
        scored.group_by(key.alias("value"))
        .agg(
            pl.len().alias("tokens"),
            cosine.mean().alias("mean"),
            cosine.min().alias("min"),
            *[(cosine < c).mean().alias(str(c)) for c in COSINES],
        )
        .sort(["0.95", "value"] if by else ["value"], descending=[True, False] if by else [False])
        .to_dicts()
    )
    names = bucket_names()
    for row in rows:
        if by is None:
            row["value"] = names[row["value"]]
        row["under"] = [row[str(c)] for c in COSINES]
        row["bar"] = stacked_bar(
            [("s-critical", row["0.95"])], f"{100 * row['0.95']:.1f} % under cosine 0.95"
        )
    return rows


_TREND_STYLES = {"flagged": "post", "critical": "third", "absent": "pre"}


def trend(history: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Flagged, critical and absent tokens over past runs, oldest first. Needs two runs."""
    if len(history) < 2:
        return None
    names = [n for n in _TREND_STYLES if all(row.get(n) is not None for row in history)]
    if not names:
        return None
    highest = max(float(row[n]) for row in history for n in names)
    plot = Plot(
        "Flagged tokens over runs",
        Linear(0, len(history) - 1),
        Linear(0, max(1.0, 1.08 * highest)),
        "run",
        "tokens",
    )
    every = max(1, -(-len(history) // 5))
    dates = [str(row["time"])[:10] for row in history]
    shown = [(plot.px(i), dates[i]) for i in range(len(history) - 1, -1, -every)]
    # Dates at the borders would hang over them.
    inside = [(min(max(x, LEFT + 20), RIGHT - 28), text) for x, text in shown]
    plot.axes(inside, [(plot.py(v), short(v)) for v in plot.y.ticks()])
    for name in names:
        points = [(float(i), float(row[name])) for i, row in enumerate(history)]
        titles = [f"{row['time']}: {row[name]:,} {name}" for row in history]
        plot.line(Series(_TREND_STYLES[name], points, titles))
    _legend(plot, [(_TREND_STYLES[n], n) for n in names])
    last, before = history[-1], history[-2]
    changes = ", ".join(f"{last[n] - before[n]:+,} {n}" for n in names)
    return Chart(
        "Over past runs",
        f"Against the run before: {changes}.",
        plot.svg(),
        ("run", "time", *names),
        [[str(r.get("run", "")), str(r["time"]), *[f"{r[n]:,}" for n in names]] for r in reversed(history)],
    )
