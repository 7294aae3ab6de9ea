"""Drift results as the table that such studies publish: mean, least, and rows under thresholds.

One result, or an experiment against its baseline, overall and per language.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from coverage_job import storage
from coverage_job.errors import StorageError

FIGURES = ("tokens", "mean", "min", "under_0.95", "share_0.95", "under_0.90", "share_0.90")


@dataclass(frozen=True)
class Comparison:
    """table: one row per matrix and group, each figure once per result. text: the same to print."""

    table: pa.Table
    text: str


def load_report(directory: str) -> dict[str, Any]:
    """The `drift.json` of a drift directory. Raises StorageError where it is none."""
    path = storage.join(directory, "drift.json")
    try:
        report = orjson.loads(storage.read_bytes(path))
    except orjson.JSONDecodeError:
        raise StorageError(f"{path}: torn; run drift again") from None
    if not isinstance(report, dict) or not ({"lm_head", "embedding"} & report.keys()):
        raise StorageError(f"{path}: no drift result; give the directory that `drift --output` made")
    return report


def rows_of(report: dict[str, Any], by: tuple[str, ...] = ("language",)) -> list[dict[str, Any]]:
    """Flat rows of a report: matrix, by, value and `FIGURES`; overall first."""
    rows = []
    for matrix in ("lm_head", "embedding"):
        if matrix not in report:
            continue
        groups = [("overall", "", report[matrix]["overall"])]
        groups += [
            (column, value, figures)
            for column in by
            for value, figures in report[matrix]["by"].get(column, {}).items()
        ]
        rows += [{"matrix": matrix, "by": column, "value": value, **_flat(f)} for column, value, f in groups]
    return rows


def _flat(figures: dict[str, Any]) -> dict[str, Any]:
    flat = {name: figures[name] for name in ("tokens", "mean", "min")}
    for threshold in ("0.95", "0.90"):
        flat[f"under_{threshold}"] = figures[f"under_{threshold}"]["count"]
        flat[f"share_{threshold}"] = figures[f"under_{threshold}"]["share"]
    return flat


def compare(experiment: str, baseline: str) -> Comparison:
    """Two drift directories side by side: the figures of `experiment` beside those of `baseline`.

    Raises StorageError where either is no drift directory.
    """
    sides = {"experiment": rows_of(load_report(experiment)), "baseline": rows_of(load_report(baseline))}
    keyed = {side: {(r["matrix"], r["by"], r["value"]): r for r in rows} for side, rows in sides.items()}
    keys = list(dict.fromkeys([*keyed["experiment"], *keyed["baseline"]]))
    keys.sort(key=lambda key: (key[0] != "lm_head", key[1] != "overall"))
    merged: list[dict[str, Any]] = []
    for key in keys:
        row: dict[str, Any] = dict(zip(("matrix", "by", "value"), key, strict=True))
        for name in FIGURES:
            for side in ("experiment", "baseline"):
                row[f"{name}_{side}"] = keyed[side].get(key, {}).get(name)
        merged.append(row)
    fields = [pa.field(name, pa.string()) for name in ("matrix", "by", "value")]
    for name in FIGURES:
        type_ = pa.int64() if name in ("tokens", "under_0.95", "under_0.90") else pa.float64()
        fields += [pa.field(f"{name}_{side}", type_) for side in ("experiment", "baseline")]
    return Comparison(pa.Table.from_pylist(merged, pa.schema(fields)), _render_sides(merged))


def render(report: dict[str, Any], most: int = 12) -> str:
    """The published table of one result, with what explains it; `most` languages."""
    lines = []
    for matrix in ("lm_head", "embedding"):
        rows = [row for row in rows_of(report) if row["matrix"] == matrix]
        if not rows or rows[0]["mean"] is None or (matrix == "embedding" and report["tied"]):
            continue
        header = ["", "rows", "mean", "min", "< 0.95", "", "< 0.90", ""]
        body = [[_name(row), *_cells(row)] for row in rows[: most + 1]]
        lines += [f"{matrix}{' (tied)' if report['tied'] else ''}: cosine of each row, before and after"]
        lines += [*_grid(header, body), ""]
    lines += _render_neighbours(report.get("neighbours", {}).get("lm_head"))
    lines += _render_diagnosis(report.get("diagnosis"))
    lines += _render_explanation(report.get("explain"))
    for matrix in ("lm_head", "embedding"):
        for fault, found in report.get(matrix, {}).get("not_scored", {}).items():
            first = ", ".join(str(i) for i in found["first"][:5])
            more = ", ..." if found["count"] > 5 else ""
            lines.append(
                f"{matrix}: {found['count']} rows {fault.replace('_', ' ')}, not averaged: {first}{more}"
            )
    return "\n".join([*lines, *report["notes"], report["cosine_note"]])


def _render_neighbours(found: dict[str, Any] | None, most: int = 5) -> list[str]:
    """Where the neighbours live that drifted rows gained, for the `most` languages with most of them."""
    if not found or not found.get("gained"):
        return []
    languages = sorted(found["languages"].items(), key=lambda entry: -sum(entry[1].values()))
    body = []
    for language, targets in languages[:most]:
        total = sum(targets.values())
        shares = [f"{to or '(none)'} {_percent(count / total)}" for to, count in list(targets.items())[:4]]
        body.append([language or "(none)", f"{total:,}", ", ".join(shares)])
    special = _percent(found["special_share"])
    return [
        *_grid(["new neighbours of", "", "live in"], body),
        f"special tokens among them: {special}; overlap with the old ones {_percent(found['overlap'])}",
        "",
    ]


def _render_diagnosis(diagnosis: dict[str, Any] | None) -> list[str]:
    if not diagnosis:
        return []
    body = []
    for name, about in diagnosis["groups"].items():
        group = diagnosis[name]
        body.append(
            [
                f"{name} ({about})",
                f"{group['changed']:,}",
                _number(group["pairwise_cosine"], 2),
                _percent(group["first_component"]),
                _number(group["growth"], 3),
                _number(group["steps_over_rms"], 2),
            ]
        )
    header = ["rows that changed", "rows", "pairwise cosine", "first component", "growth", "sum(lr) / rms"]
    return [*_grid(header, body), ""]


def _render_explanation(explanation: dict[str, Any] | None) -> list[str]:
    if not explanation:
        return []
    body = [
        [b["supervised"], f"{b['tokens']:,}", _number(b["cosine"], 4), _percent(b["under"])]
        for b in explanation["buckets"]
    ]
    found = explanation["calibrated_minimum"]
    smallest = f"smallest count with under {_percent(found['target'])} of rows < {found['threshold']}: "
    if found["minimum"] is None:
        smallest += "none"
    else:
        smallest += f"{found['minimum']} (95 % interval {found['low']} to {found['high'] or 'none'})"
    return [
        *_grid(["times a target", "rows", "mean", "< 0.95"], body),
        f"rank correlation of count and cosine: {_number(explanation['spearman_count_cosine'], 2)}",
        smallest,
        "",
    ]


def _render_sides(rows: list[dict[str, Any]]) -> str:
    lines = []
    for matrix in ("lm_head", "embedding"):
        chosen = [row for row in rows if row["matrix"] == matrix]
        if not chosen:
            continue
        body = []
        for row in chosen:
            sides = []
            for side in ("experiment", "baseline"):
                sides += _cells({name: row[f"{name}_{side}"] for name in FIGURES})
            body.append([_name(row), *sides])
        one = ["rows", "mean", "min", "< 0.95", "", "< 0.90", ""]
        lines += [f"{matrix}: experiment, then baseline", *_grid(["", *one, *one], body), ""]
    return "\n".join(lines).rstrip()


def _name(row: dict[str, Any]) -> str:
    return "overall" if row["by"] == "overall" else row["value"] or "(none)"


def _cells(row: dict[str, Any]) -> list[str]:
    if row["tokens"] is None:
        return ["-"] * len(FIGURES)
    return [
        f"{row['tokens']:,}",
        _number(row["mean"], 4),
        _number(row["min"], 4),
        f"{row['under_0.95']:,}",
        _percent(row["share_0.95"]),
        f"{row['under_0.90']:,}",
        _percent(row["share_0.90"]),
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _grid(header: list[str], body: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [header, *body]) for i in range(len(header))]
    return [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [header, *body]
    ]
