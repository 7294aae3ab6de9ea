"""Flagged tokens as the page carries them: columns, coded and compressed, that its script unpacks.

Two blocks: `table` has what rows show and filters ask, `details` what a row opens to. Rows are in the
order in which the page first shows them: absent, critical, low, each most frequent in pre-training first.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import polars as pl
import pyarrow as pa

from coverage_job.schemas import COVERAGE_COUNTS, DRIFT_COLUMNS, FLAGGED

# What a browser filters without delay and a mail program still sends.
MOST_ROWS = 200_000
# Rows of (token, corpus, language, group) in all, which are what makes the file large.
_MOST_PARTS = 1_000_000
_PARTS_PER_TOKEN = (16, 12, 8, 6, 5, 4, 3, 2, 1)
# Characters of a context, and of all contexts.
_MOST_CONTEXT, _ALL_CONTEXTS = 240, 4_000_000
# Bits of a corpus mask: JavaScript's bitwise numbers have 32, one of them the sign.
_BITS = 30

_CODED = ("language", "category", "status", "action")
_DETAIL_CODED = ("script", "kind", "reachability", "decodable", "language_rule", "category_rule")
_FLOATS = ("expected_updates", *DRIFT_COLUMNS)


def pack(value: Any) -> str:
    """A value as base64 of gzipped JSON: nothing in it can end the element that holds it."""
    return base64.b64encode(gzip.compress(orjson.dumps(value), 6, mtime=0)).decode()


def flagged(coverage: pl.DataFrame) -> pl.DataFrame:
    """The flagged rows in the page's order."""
    return ordered(coverage.filter(pl.col("status").is_in(FLAGGED)))


def ordered(coverage: pl.DataFrame) -> pl.DataFrame:
    """Rows in the page's order."""
    severity = pl.col("status").replace_strict(
        {name: i for i, name in enumerate(FLAGGED)}, default=-1, return_dtype=pl.Int8
    )
    keys = [severity, pl.col("pretraining_occurrences"), pl.col("token_id")]
    return coverage.sort(keys, descending=[True, True, False])


def coded(column: pl.Series) -> dict[str, Any]:
    """A column of few values: the values in order, and each row's place among them."""
    values = sorted(set(column.to_list()))
    return {"values": values, "codes": column.cast(pl.Enum(values)).to_physical().to_list()}


def _texts(rows: pl.DataFrame) -> dict[str, Any]:
    """Exact texts of tokens; those that are not UTF-8 come as the printable form, with their bytes in hex."""
    texts, hexes = [], {}
    for i, (data, printable) in enumerate(zip(rows["token_bytes"], rows["token"], strict=True)):
        try:
            texts.append(data.decode())
        except UnicodeDecodeError:
            texts.append(printable)
            hexes[str(i)] = data.hex()
    return {"text": texts, "hex": hexes}


def _numbers(column: pl.Series) -> list[Any]:
    values: list[Any] = (column.round(5) if column.dtype == pl.Float64 else column).to_list()
    return values


def table_block(rows: pl.DataFrame, histogram: pa.Table, measure: str) -> dict[str, Any]:
    """What the grid shows and its filters ask.

    rows: flagged coverage rows, in the page's order. histogram: schema HISTOGRAM. measure: a counts column.
    `masks` tells for each row in which corpora it stands, 30 corpora to a list.
    """
    numbers = ["pretraining_occurrences", measure, "deficit"]
    if rows["lm_head_cosine"].is_not_null().any():
        numbers.append("lm_head_cosine")
    seen = _of(rows, histogram)
    corpora = sorted(set(seen["corpus"].to_list()))
    masks = np.zeros((-(-len(corpora) // _BITS), len(rows)), np.int64)
    for place, corpus in enumerate(corpora):
        where = seen.filter(pl.col("corpus") == corpus)["row"].unique().to_numpy()
        masks[place // _BITS, where] |= 1 << place % _BITS
    return {
        "n": len(rows),
        "token_id": rows["token_id"].to_list(),
        **_texts(rows),
        "coded": {name: coded(rows[name]) for name in (*_CODED, *(["was"] if "was" in rows.columns else []))},
        "numbers": {name: _numbers(rows[name]) for name in numbers},
        "measure": measure,
        "corpora": corpora,
        "masks": masks.tolist(),
    }


def _of(rows: pl.DataFrame, histogram: pa.Table) -> pl.DataFrame:
    """The histogram's rows of the given tokens, with their place in the page as `row`."""
    return pl.DataFrame(histogram).join(rows.select("token_id").with_row_index("row"), on="token_id")


def details_block(
    rows: pl.DataFrame, histogram: pa.Table, manifest: pa.Table, drift: pa.Table | None, names: pl.DataFrame
) -> dict[str, Any]:
    """What a row opens to.

    names: token_id and token of the whole vocabulary, for neighbours. drift: schema of `drift.parquet`.
    """
    remedy = rows.select("token_id").join(
        pl.DataFrame(manifest).select("token_id", "reason", "context"),
        on="token_id",
        how="left",
        maintain_order="left",
    )
    contexts = [
        None if context is None or context.encode() == data else context
        for context, data in zip(remedy["context"], rows["token_bytes"], strict=True)
    ]
    room = min(_MOST_CONTEXT, _ALL_CONTEXTS // max(1, len(contexts) - contexts.count(None)))
    return {
        "coded": {name: coded(rows[name]) for name in _DETAIL_CODED},
        "counts": {name: rows[name].to_list() for name in COVERAGE_COUNTS},
        "numbers": {name: _numbers(rows[name]) for name in _FLOATS if rows[name].is_not_null().any()},
        "reason": coded(remedy["reason"].fill_null("")),
        "context": [c if c is None or len(c) <= room else f"{c[:room]}…" for c in contexts],
        "parts": _parts(rows, histogram),
        "neighbours": _neighbours(rows, drift, names),
    }


def _parts(rows: pl.DataFrame, histogram: pa.Table) -> dict[str, Any]:
    """Per token its largest counts by corpus, language and group; `most` of them where not all fit."""
    seen = _of(rows, histogram).filter(pl.col("occurrences") > 0)
    per_token = seen.group_by("row").len()["len"].to_numpy()
    most = next(
        (k for k in _PARTS_PER_TOKEN if np.minimum(per_token, k).sum() <= _MOST_PARTS), _PARTS_PER_TOKEN[-1]
    )
    stage_first = pl.col("stage") == "posttraining"
    seen = seen.sort(
        ["row", stage_first, "occurrences", "corpus", "language", "group"],
        descending=[False, True, True, False, False, False],
    )
    kept = seen.group_by("row", maintain_order=True).head(most)
    keys = kept.select("stage", "corpus", "language", "group")
    distinct = keys.unique(maintain_order=True).with_row_index("key")
    places = keys.join(distinct, on=keys.columns, how="left", maintain_order="left")["key"]
    total = np.zeros(len(rows), np.int64)
    total[seen.group_by("row").len()["row"].to_numpy()] = seen.group_by("row").len()["len"].to_numpy()
    ends = np.cumsum(np.bincount(kept["row"].to_numpy(), minlength=len(rows)))
    return {
        "keys": distinct.drop("key").rows(),
        "sizes": np.diff(ends, prepend=0).tolist(),
        "left_out": (total - np.diff(ends, prepend=0)).tolist(),
        "key": places.to_list(),
        "occurrences": kept["occurrences"].to_list(),
        "unsupervised": (kept["occurrences"] - kept["supervised_occurrences"]).to_list(),
    }


def _neighbours(rows: pl.DataFrame, drift: pa.Table | None, names: pl.DataFrame) -> dict[str, Any]:
    columns = ("lm_head_neighbours_before", "lm_head_neighbours_after")
    if drift is None or not set(columns) <= set(drift.column_names):
        return {"of": {}, "names": {}}
    frame = pl.DataFrame(drift.select(["token_id", *columns])).drop_nulls()
    places = rows.select("token_id").with_row_index("row")
    of: dict[str, Sequence[Sequence[int]]] = {}
    wanted: set[int] = set()
    for token_row, before, after in places.join(frame, on="token_id").select("row", *columns).iter_rows():
        of[str(token_row)] = (before, after)
        wanted |= {*before, *after}
    known: Mapping[int, str] = dict(names.filter(pl.col("token_id").is_in(list(wanted))).iter_rows())
    return {"of": of, "names": {str(k): v for k, v in known.items()}}
