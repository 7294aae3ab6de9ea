"""Which remedy will serve each flagged token, and why. Decision code: tables in, tables out."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from coverage_job.config import CoverageOptions, RemedyOptions
from coverage_job.coverage import conform, is_flagged, measure_column, selected
from coverage_job.schemas import MANIFEST, Action, Reachability, Status


def actions(judged: pl.DataFrame, options: RemedyOptions) -> pl.Series:
    """The action of every row of the vocabulary (`Action` values).

    A flagged token that training text can hold is repeated, mixed in, or both; one that only a
    template writes can be a target through its id alone; one for which the job wants no data is
    protected in training.
    """
    in_pretraining = pl.col("pretraining_occurrences") > 0
    unseen = ~in_pretraining & (pl.col("posttraining_occurrences") == 0)
    preferred = {
        "both": Action.REPEAT_AND_MIX,
        "repeat": Action.REPEAT,
        "mix": Action.MIX,
    }[options.prefer]
    expression = (
        pl.when(pl.col("status") == Status.EXEMPT.value)
        .then(pl.lit(Action.EXEMPT.value))
        .when(~is_flagged())
        .then(pl.lit(Action.NONE.value))
        .when(selected(options.exclude))
        .then(pl.lit(Action.PROTECT.value))
        .when(pl.col("reachability") == Reachability.SPECIAL.value)
        .then(pl.lit(Action.REPEAT_IDS.value))
        .when(unseen & pl.lit(options.unseen == "prune"))
        .then(pl.lit(Action.PRUNE_CANDIDATE.value))
        .when(in_pretraining)
        .then(pl.lit(preferred.value))
        .otherwise(pl.lit(Action.REPEAT.value))
    )
    return judged.select(expression.alias("action"))["action"]


_WHY = {
    Action.REPEAT_AND_MIX: "pre-training text holds it {pre} times: repeat it and mix such text in",
    Action.REPEAT: "its text is repeated",
    Action.MIX: "pre-training text holds it {pre} times: mix such text in",
    Action.REPEAT_IDS: "only the chat template writes it: repeat --ids makes it a target by its id; "
    "where the model never has to write it, exempt it (coverage.exempt.token_id)",
    Action.PROTECT: "the job wants no data for it: keep its row in training",
    Action.PRUNE_CANDIDATE: "no corpus of either stage holds it",
}


def manifest(judged: pl.DataFrame, action: pl.Series, options: CoverageOptions) -> pa.Table:
    """One row of schema MANIFEST per flagged token, in order of id.

    `context` is a text whose encoding has the token: the one found in the corpora, or built.
    """
    pre = pl.col("pretraining_occurrences").cast(pl.String)
    why = pl.col("action").replace_strict({a.value: text for a, text in _WHY.items()}, return_dtype=pl.String)
    label = options.measure.replace("_", " ")
    value = pl.col(measure_column(options.measure))
    had = value.round(2).cast(pl.String) if options.measure == "expected_updates" else value.cast(pl.String)
    reason = pl.concat_str(
        had, pl.lit(f" of {options.minimum} {label}; "), why.str.replace("{pre}", pre, literal=True)
    )
    frame = (
        judged.with_columns(action.alias("action"))
        .filter(is_flagged())
        .with_columns(reason.alias("reason"), pl.col("example").alias("context"))
    )
    return conform(frame, MANIFEST)
