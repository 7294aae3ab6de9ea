"""`report.html`: a run as one file that needs no network, for those who decide what data to add.

Nothing of a corpus or a tokenizer is trusted: the templates escape, token text goes through `visible`,
tables travel as base64, and the content policy admits the page's own style and script by their hash,
nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
import polars as pl
import pyarrow as pa
from markupsafe import Markup

from coverage_job import __version__
from coverage_job.coverage import measure_column
from coverage_job.report import figures, rows, tables
from coverage_job.report.visible import visible, visible_bytes
from coverage_job.schemas import DRIFT_COLUMNS
from coverage_job.storage import Run, dump_json, join, write_bytes

_FIRST_ROWS = 15
_BAD_RECORDS = 50
_PRINTED_ROWS = 50
_SCRIPTS = ("visible.js", "table.js", "grid.js", "page.js")


@dataclass(frozen=True)
class PageData:
    """What the page is made of: the files of a run directory, as they are read or before they are written.

    name: the run's. info: `run.json`. history: rows with `run`, `time` and any of flagged, critical,
    absent, oldest first. drift: schema DRIFT; its cosines stand where the coverage table has none.
    """

    name: str
    info: Mapping[str, Any]
    coverage: pa.Table
    histogram: pa.Table
    manifest: pa.Table
    summary: pa.Table
    checks: Sequence[Mapping[str, Any]] = ()
    bad_records: pa.Table | None = None
    history: Sequence[Mapping[str, Any]] = ()
    drift: pa.Table | None = None


def load(run: Run, history: Sequence[Mapping[str, Any]] = (), drift: pa.Table | None = None) -> PageData:
    """A run directory's page data. Raises RunDirectoryError naming a file that is not as written."""
    present = run.info["files"]
    return PageData(
        name=run.path.rstrip("/").rsplit("/", 1)[-1],
        info=run.info,
        coverage=run.table("coverage.parquet"),
        histogram=run.table("histogram.parquet"),
        manifest=run.table("manifest.parquet"),
        summary=run.table("summary.parquet"),
        checks=run.json("checks.json") if "checks.json" in present else (),
        bad_records=run.table("bad_records.parquet") if "bad_records.parquet" in present else None,
        history=history,
        drift=drift if drift is not None or "drift.parquet" not in present else run.table("drift.parquet"),
    )


def build_page(run: Run, history: Sequence[Mapping[str, Any]] = (), drift: pa.Table | None = None) -> bytes:
    """The page of a run directory, as UTF-8 HTML."""
    return page(load(run, history, drift))


def page(data: PageData) -> bytes:
    """The page, as UTF-8 HTML."""
    coverage = _with_drift(pl.DataFrame(data.coverage), data.drift)
    options = data.info["job"]["coverage"]
    measure, minimum = measure_column(options["measure"]), options["minimum"]
    chosen = rows.flagged(coverage)
    shown = chosen.head(rows.MOST_ROWS)
    scored = bool((coverage["lm_head_cosine"].is_not_null()).any())
    charts = [
        figures.rank_frequency(coverage, measure, minimum),
        figures.density(coverage, measure, minimum),
        figures.trend(data.history),
    ]
    return render(
        "page.html",
        title=f"Token coverage · {data.name}",
        name=data.name,
        started=str(data.info.get("started", ""))[:16].replace("T", " "),
        options=options,
        measure=measure,
        verdicts=_verdicts(data.checks),
        checks=data.checks,
        head=_head(coverage, data),
        languages=figures.tallies(coverage, "language"),
        categories=figures.tallies(coverage, "category"),
        rank_frequency=charts[0],
        density=charts[1],
        trend=charts[2],
        drift_buckets=figures.drift_by(coverage, measure) if scored else [],
        drift_languages=figures.drift_by(coverage, measure, "language") if scored else [],
        corpora=data.info.get("corpora", []),
        warnings=data.info.get("warnings", []),
        audits=_audits(data.info.get("corpora", [])),
        recount=data.info.get("audit") or {},
        parts=[r for r in data.summary.to_pylist() if r["by"] in ("corpus", "record_language")],
        bad_records=[] if data.bad_records is None else data.bad_records.slice(0, _BAD_RECORDS).to_pylist(),
        bad_total=0 if data.bad_records is None else data.bad_records.num_rows,
        first_rows=_FIRST_ROWS,
        printed=shown.head(_PRINTED_ROWS).to_dicts(),
        flagged=len(chosen),
        shown=len(shown),
        table=rows.pack({"run": data.name, **rows.table_block(shown, data.histogram, measure)}),
        details=rows.pack(
            rows.details_block(
                shown, data.histogram, data.manifest, data.drift, coverage.select("token_id", "token")
            )
        ),
    )


def _with_drift(coverage: pl.DataFrame, drift: pa.Table | None) -> pl.DataFrame:
    """Coverage with the drift columns that it has not, taken from a drift table of the same tokens."""
    columns = [c for c in DRIFT_COLUMNS if drift is not None and c in drift.column_names]
    if drift is None or not columns:
        return coverage
    scores = pl.DataFrame(drift.select(["token_id", *columns]))
    joined = coverage.join(scores, on="token_id", how="left", suffix="_scored", maintain_order="left")
    return joined.with_columns(pl.coalesce(c, f"{c}_scored").alias(c) for c in columns).select(
        coverage.columns
    )


def _head(coverage: pl.DataFrame, data: PageData) -> dict[str, int]:
    counts: dict[str, int] = dict(coverage.group_by("status").len().iter_rows())
    total = {s: counts.get(s, 0) for s in (*figures.STATUSES, "exempt")}
    flagged = total["low"] + total["critical"] + total["absent"]
    corpora = data.info.get("corpora", [])
    return {
        **total,
        "flagged": flagged,
        "asked": flagged + total["covered"],
        "rows": len(coverage),
        "deficit": int(data.manifest["deficit"].to_numpy().sum()),
        "pretraining_tokens": sum(c["tokens"] for c in corpora if c["stage"] == "pretraining"),
        "supervised_tokens": sum(c["supervised_tokens"] for c in corpora if c["stage"] == "posttraining"),
        "bad": sum(c["bad_records"] for c in corpora),
        "records": sum(c["records"] for c in corpora),
    }


def _verdicts(checks: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {v: sum(c["verdict"] == v for c in checks) for v in ("fail", "warn", "pass")}


def _audits(corpora: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mask audits as one table: a row per count that is not 0 everywhere, a column per corpus.

    findings: (corpus, finding) of all corpora, those that warn first.
    """
    audited = [c for c in corpora if c.get("mask_audit")]
    names = dict.fromkeys(n for c in audited for n, v in c["mask_audit"].items() if isinstance(v, int))
    counts = [(name, [c["mask_audit"].get(name, 0) for c in audited]) for name in names]
    found = [(c["name"], f) for c in audited for f in c.get("mask_findings", ())]
    return {
        "corpora": [c["name"] for c in audited],
        "counts": [(name, values) for name, values in counts if any(values)],
        "findings": sorted(found, key=lambda pair: not pair[1]["warns"]),
    }


@cache
def _text(name: str) -> str:
    return (files("coverage_job.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        whole=lambda n: "–" if n is None else tables.whole(n),
        cosine=lambda n: "–" if n is None else f"{n:.4f}",
        percent=lambda n: "–" if n is None else f"{100 * n:.1f} %",
        words=lambda name: str(name).replace("_", " "),
        visible=visible,
        visible_bytes=visible_bytes,
    )
    environment.globals.update(share=tables.share, version=__version__)
    return environment


def render(template: str, **values: Any) -> bytes:
    """A template within the page's frame, as UTF-8."""
    style = _text("page.css")
    script = "(() => {\n'use strict';\n" + "".join(_text(name) for name in _SCRIPTS) + "})();\n"
    policy = (
        f"default-src 'none'; style-src 'sha256-{_hash(style)}'; script-src 'sha256-{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    html = (
        _environment()
        .get_template(template)
        .render(style=Markup(style), script=Markup(script), policy=policy, **values)
    )
    return html.encode()


def rebuild(path: str, history: Sequence[Mapping[str, Any]] = (), drift: pa.Table | None = None) -> str:
    """Write a run directory's page again, and its entry in `run.json`; returns the page's path."""
    run = Run(path)
    data = build_page(run, history, drift)
    place = join(path, "report.html")
    write_bytes(place, data)
    entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_bytes(
        join(path, "run.json"), dump_json({**run.info, "files": {**run.info["files"], "report.html": entry}})
    )
    return place
