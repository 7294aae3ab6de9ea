"""The vocabulary left-joined with the histograms: what each token was shown, and where that stands.

Decision code: tables in, tables out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from coverage_job.config import CoverageOptions, Exempt
from coverage_job.errors import did_you_mean
from coverage_job.schemas import (
    COVERAGE,
    COVERAGE_COUNTS,
    DRIFT_COLUMNS,
    FLAGGED,
    NEVER_FLAGGED,
    SUMMARY,
    Reachability,
    Stage,
    Status,
)

_MEASURE_COLUMNS = {
    "supervised_occurrences": "posttraining_supervised_occurrences",
    "supervised_documents": "posttraining_supervised_documents",
    "occurrences": "posttraining_occurrences",
    "documents": "posttraining_documents",
    "expected_updates": "expected_updates",
}


def measure_column(measure: str) -> str:
    """The coverage column that a job's `measure` names.

    >>> measure_column("documents")
    'posttraining_documents'
    """
    return _MEASURE_COLUMNS[measure]


@dataclass(frozen=True)
class Weight:
    """How often the trainer passes a corpus: `epochs` after, or `mixed_in` before, post-training."""

    corpus: str
    stage: Stage
    passes: float


def conform(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    """A frame as an Arrow table of exactly `schema`."""
    columns = frame.select(schema.names).to_arrow()
    return columns.cast(schema)


def selected(options: Exempt) -> pl.Expr:
    """Whether a row has one of the named values in one of the named columns."""
    expression = pl.lit(False)
    for column, values in options.model_dump().items():
        if values:
            expression = expression | pl.col(column).is_in(values)
    return expression


def unmatched(options: Exempt, tokens: pl.DataFrame) -> list[str]:
    """The named values that no row has, each with its column, as they may be slips of the pen.

    >>> unmatched(Exempt(script=["Lattin", "Han"]), pl.DataFrame({"script": ["Latin", "Han"]}))
    ["script 'Lattin' (did you mean Latin?)"]
    """
    found = []
    for column, values in options.model_dump().items():
        known = set(tokens[column].unique().to_list()) if values else set()
        texts = [str(k) for k in known] if column != "token_id" else []
        found += [f"{column} {v!r}{did_you_mean(v, texts)}" for v in values if v not in known]
    return found


def join_counts(vocabulary: pa.Table, histogram: pa.Table, weights: Iterable[Weight]) -> pl.DataFrame:
    """Every row of the vocabulary with its counts by stage and its expected updates, zeros where none.

    vocabulary: schema VOCABULARY. histogram: schema HISTOGRAM.
    """
    passes = {w.corpus: w.passes for w in weights}
    counts = pl.DataFrame(histogram)
    post, pre = (pl.col("stage") == s.value for s in (Stage.POSTTRAINING, Stage.PRETRAINING))
    # The updates a corpus gives a token: its targets each pass; all of a pre-training corpus are targets.
    updates = (
        pl.when(post).then(pl.col("supervised_occurrences")).otherwise(pl.col("occurrences"))
        * pl.col("corpus").replace_strict(passes, return_dtype=pl.Float64)
    ).sum()
    per_token = counts.group_by("token_id").agg(
        *[
            pl.col(name.removeprefix(f"{stage}_"))
            .filter(pre if stage == "pretraining" else post)
            .sum()
            .alias(name)
            for name in COVERAGE_COUNTS
            for stage in (name.split("_", 1)[0],)
        ],
        updates.alias("expected_updates"),
    )
    return (
        pl.DataFrame(vocabulary)
        .join(per_token, on="token_id", how="left", maintain_order="left")
        .with_columns(pl.col(*COVERAGE_COUNTS, "expected_updates").fill_null(0))
    )


def judge(counted: pl.DataFrame, options: CoverageOptions, template_ids: Collection[int]) -> pl.DataFrame:
    """Adds `status` and `deficit`.

    counted: what `join_counts` gave. template_ids: the special tokens that the chat template writes,
    which need targets like any other token.
    """
    measure = pl.col(measure_column(options.measure))
    if options.measure == "expected_updates":
        # 0.29 epochs of 100 targets are 28.999999999999996 in binary, and 29 to whoever set the minimum.
        measure = measure.round(9)
    special = pl.col("reachability") == Reachability.SPECIAL.value
    exempt = (
        pl.col("reachability").is_in(NEVER_FLAGGED)
        | (special & ~pl.col("token_id").is_in(list(template_ids)))
        | selected(options.exempt)
    )
    status = (
        pl.when(exempt)
        .then(pl.lit(Status.EXEMPT.value))
        .when(measure >= options.minimum)
        .then(pl.lit(Status.COVERED.value))
        .when(measure >= options.critical)
        .then(pl.lit(Status.LOW.value))
        .when(measure >= 1)
        .then(pl.lit(Status.CRITICAL.value))
        .otherwise(pl.lit(Status.ABSENT.value))
    )
    deficit = (
        (options.minimum - measure).ceil()
        if options.measure == "expected_updates"
        else (options.minimum - measure)
    )
    return counted.with_columns(
        status.alias("status"), deficit.cast(pl.Int64).clip(lower_bound=0).alias("deficit")
    )


def coverage_table(judged: pl.DataFrame, actions: pl.Series) -> pa.Table:
    """The table of schema COVERAGE, its drift columns empty."""
    empty = [pl.lit(None, dtype=pl.Float64).alias(name) for name in DRIFT_COLUMNS]
    return conform(judged.with_columns(actions.alias("action"), *empty), COVERAGE)


def is_flagged() -> pl.Expr:
    return pl.col("status").is_in(FLAGGED)


def _rates(by: str) -> list[pl.Expr]:
    asked = pl.col("tokens") - pl.col("exempt")
    return [
        pl.lit(by).alias("by"),
        *[
            pl.when(asked > 0).then(pl.col(name) / asked).alias(f"{name}_rate")
            for name in ("covered", "under", "absent")
        ],
    ]


_TALLIES = [
    pl.len().cast(pl.Int64).alias("tokens"),
    (pl.col("status") == Status.COVERED.value).sum().cast(pl.Int64).alias("covered"),
    is_flagged().sum().cast(pl.Int64).alias("under"),
    (pl.col("status") == Status.CRITICAL.value).sum().cast(pl.Int64).alias("critical"),
    (pl.col("status") == Status.ABSENT.value).sum().cast(pl.Int64).alias("absent"),
    (pl.col("status") == Status.EXEMPT.value).sum().cast(pl.Int64).alias("exempt"),
]


def summarise(coverage: pa.Table, histogram: pa.Table) -> pa.Table:
    """Tallies of schema SUMMARY.

    Rows by `language`, `script`, `category`, `kind`, `reachability` and `status` divide the vocabulary:
    their `tokens` sum to its rows. Rows by `corpus`, `record_language` and `group` tell of the distinct
    tokens that stand in that part of the input, and so overlap. `under` counts all that are flagged,
    `absent` those of them never seen. Rates are of the tokens that are not exempt.
    """
    tokens = pl.DataFrame(coverage)
    counted = (
        pl.DataFrame(histogram)
        .group_by("token_id")
        .agg(
            pl.col("occurrences").sum().alias("tokens_counted"),
            pl.col("supervised_occurrences").sum().alias("supervised_tokens_counted"),
        )
    )
    tokens = tokens.join(counted, on="token_id", how="left").with_columns(
        pl.col("tokens_counted", "supervised_tokens_counted").fill_null(0)
    )
    sums = [pl.col("tokens_counted", "supervised_tokens_counted").sum()]
    parts = [
        tokens.group_by(pl.col(by).alias("value")).agg(*_TALLIES, *sums).with_columns(*_rates(by))
        for by in ("language", "script", "category", "kind", "reachability", "status")
    ]
    seen = pl.DataFrame(histogram).join(tokens.select("token_id", "status"), on="token_id")
    group = pl.concat_str("corpus", "group", separator="/")
    for by, value in (
        ("corpus", pl.col("corpus")),
        ("record_language", pl.col("language")),
        ("group", group),
    ):
        part = seen.filter(pl.col(by if by != "record_language" else "language") != "")
        per_token = part.group_by(value.alias("value"), "token_id", "status").agg(
            pl.col("occurrences").sum().alias("tokens_counted"),
            pl.col("supervised_occurrences").sum().alias("supervised_tokens_counted"),
        )
        parts.append(per_token.group_by("value").agg(*_TALLIES, *sums).with_columns(*_rates(by)))
    frame = pl.concat([p.select(SUMMARY.names) for p in parts])
    order = {name: i for i, name in enumerate(dict.fromkeys(frame["by"]))}
    frame = frame.sort(
        pl.col("by").replace_strict(order, return_dtype=pl.Int32),
        "tokens",
        "value",
        descending=[False, True, False],
    )
    return conform(frame, SUMMARY)


def starved(coverage: pa.Table, limit: int) -> pl.DataFrame:
    """The tokens most frequent in pre-training that post-training never makes a target."""
    return (
        pl.DataFrame(coverage)
        .filter(
            is_flagged()
            & (pl.col("posttraining_supervised_occurrences") == 0)
            & (pl.col("pretraining_occurrences") > 0)
        )
        .sort(["pretraining_occurrences", "token_id"], descending=[True, False])
        .head(limit)
    )
