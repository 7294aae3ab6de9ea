from __future__ import annotations

import base64
import gzip
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pytest

from coverage_job.report import figures, page, rows
from coverage_job.report.compare import compare_page
from coverage_job.schemas import FLAGGED
from coverage_job.storage import Run
from tests.report.fabricate import HISTORY, HOSTILE, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(str(write_run(tmp_path_factory.mktemp("runs") / "first", 800)))


@pytest.fixture(scope="module")
def html(run: Run) -> str:
    return page.build_page(run, HISTORY).decode()


@pytest.fixture(scope="module")
def coverage(run: Run) -> pl.DataFrame:
    return pl.DataFrame(run.table("coverage.parquet"))


def unpack(html: str, name: str) -> Any:
    found = re.search(rf'<script type="text/plain" id="{name}">([A-Za-z0-9+/=]*)</script>', html)
    assert found is not None
    return orjson.loads(gzip.decompress(base64.b64decode(found[1])))


def decode(column: dict[str, Any]) -> list[str]:
    return [column["values"][code] for code in column["codes"]]


def test_the_table_has_every_flagged_token(html: str, coverage: pl.DataFrame) -> None:
    table = unpack(html, "table-data")
    flagged = coverage.filter(pl.col("status").is_in(FLAGGED))
    assert table["n"] == len(flagged)
    order = {token_id: i for i, token_id in enumerate(table["token_id"])}
    assert sorted(order) == flagged["token_id"].to_list()
    places = [order[i] for i in flagged["token_id"]]
    for name in ("language", "category", "status", "action"):
        assert [decode(table["coded"][name])[p] for p in places] == flagged[name].to_list()
    for name in ("pretraining_occurrences", "posttraining_supervised_occurrences", "deficit"):
        assert [table["numbers"][name][p] for p in places] == flagged[name].to_list()
    severity = [["absent", "critical", "low"].index(s) for s in decode(table["coded"]["status"])]
    assert severity == sorted(severity)


def test_token_texts_are_exact(html: str, coverage: pl.DataFrame) -> None:
    table = unpack(html, "table-data")
    data = dict(coverage.select("token_id", "token_bytes").iter_rows())
    for row, token_id in enumerate(table["token_id"]):
        if str(row) in table["hex"]:
            assert bytes.fromhex(table["hex"][str(row)]) == data[token_id]
        else:
            assert table["text"][row].encode() == data[token_id]
    assert table["hex"]


def test_masks_and_parts_are_the_histogram(run: Run, html: str) -> None:
    table, details = unpack(html, "table-data"), unpack(html, "details-data")
    histogram = pl.DataFrame(run.table("histogram.parquet"))
    parts = details["parts"]
    start = 0
    for row, token_id in enumerate(table["token_id"]):
        own = histogram.filter(pl.col("token_id") == token_id)
        corpora = {c for k, c in enumerate(table["corpora"]) if table["masks"][0][row] >> k & 1}
        assert corpora == set(own["corpus"])
        end = start + parts["sizes"][row]
        found = {
            (*parts["keys"][parts["key"][i]], parts["occurrences"][i], parts["unsupervised"][i])
            for i in range(start, end)
        }
        expected = own.select(
            "stage", "corpus", "language", "group", "occurrences",
            (pl.col("occurrences") - pl.col("supervised_occurrences")).alias("unsupervised"),
        )  # fmt: skip
        assert found == set(expected.rows())
        assert parts["left_out"][row] == 0
        start = end


def test_where_not_all_parts_fit_the_largest_stay(
    run: Run, coverage: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_MOST_PARTS", len(coverage))
    shown = rows.flagged(coverage)
    histogram = run.table("histogram.parquet")
    parts = rows._parts(shown, histogram)
    assert max(parts["sizes"]) == 1
    per_token = dict(pl.DataFrame(histogram).group_by("token_id").len().iter_rows())
    assert [s + x for s, x in zip(parts["sizes"], parts["left_out"], strict=True)] == [
        per_token.get(i, 0) for i in shown["token_id"]
    ]


def test_more_corpora_than_bits_in_a_mask(coverage: pl.DataFrame) -> None:
    shown = rows.flagged(coverage).head(70)
    names = [f"corpus{i:02}" for i in range(70)]
    histogram = pa.table({"token_id": shown["token_id"].to_arrow(), "corpus": names, "occurrences": [1] * 70})
    table = rows.table_block(shown, histogram, "posttraining_supervised_occurrences")
    assert len(table["masks"]) == 3
    for i, name in enumerate(names):
        k = table["corpora"].index(name)
        assert [row for row in range(70) if table["masks"][k // 30][row] >> k % 30 & 1] == [i]
    assert max(max(mask) for mask in table["masks"]) < 1 << 30


def test_details_hold_remedy_context_and_neighbours(run: Run, html: str) -> None:
    table, details = unpack(html, "table-data"), unpack(html, "details-data")
    manifest = {r["token_id"]: r for r in run.table("manifest.parquet").to_pylist()}
    assert decode(details["reason"]) == [manifest[i]["reason"] for i in table["token_id"]]
    for row, token_id in enumerate(table["token_id"]):
        context = manifest[token_id]["context"]
        assert details["context"][row] in (None, context)
        if details["context"][row] is None:
            assert context == table["text"][row]
    drift = {r["token_id"]: r for r in run.table("drift.parquet").to_pylist()}
    near = details["neighbours"]
    assert near["of"]
    for row, (before, after) in near["of"].items():
        own = drift[table["token_id"][int(row)]]
        assert (before, after) == (own["lm_head_neighbours_before"], own["lm_head_neighbours_after"])
        assert {str(i) for i in (*before, *after)} <= set(near["names"])


def test_no_text_of_the_run_is_markup(html: str) -> None:
    assert re.findall(r"<script[^>]*>", html) == [
        '<script type="text/plain" id="table-data">',
        '<script type="text/plain" id="details-data">',
        "<script>",
    ]
    body = html[: html.index('<script type="text/plain"')]
    for text in (*HOSTILE[:3], "<b>group</b>", "<i>10</i>", "<b>no</b>"):
        assert text not in body
    assert "&lt;i&gt;10&lt;/i&gt;" in body
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b-\u200f]", body)


def test_nothing_but_its_own_style_and_script_is_allowed(html: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    allowed = policy[1].replace("&#39;", "'")
    assert allowed.startswith("default-src 'none'; ")
    assert "unsafe" not in allowed
    for directive, pattern in (("style", r"<style>(.*?)</style>"), ("script", r"<script>(.*)</script>")):
        (text,) = re.findall(pattern, html, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive}-src 'sha256-{digest}'" in allowed
    assert not re.search(r"\bstyle=|\bon[a-z]+=\"|https?://|\bsrc=", html[: html.index("<script")])


def test_the_page_is_the_same_each_time(run: Run, html: str) -> None:
    assert page.build_page(run, HISTORY).decode() == html


def test_a_page_before_the_run_is_finished(run: Run, html: str) -> None:
    data = page.load(run, HISTORY)
    assert page.page(data).decode() == html


def test_rebuild_keeps_the_run_whole(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", 100)
    before = Run(str(path)).info
    place = page.rebuild(str(path))
    assert place == f"{path}/report.html"
    again = Run(str(path))
    again.verify()
    assert b"Token coverage" in again.read("report.html")
    assert {k: v for k, v in again.info.items() if k != "files"} == {
        k: v for k, v in before.items() if k != "files"
    }
    page.rebuild(str(path))
    Run(str(path)).verify()


def test_drift_scored_apart_from_the_run_is_joined(run: Run, html: str) -> None:
    data = page.load(run, HISTORY)
    place = data.coverage.schema.get_field_index("lm_head_cosine")
    unscored = data.coverage.set_column(
        place, data.coverage.schema.field(place), pa.nulls(data.coverage.num_rows, pa.float64())
    )
    assert page.page(replace(data, coverage=unscored)).decode() == html


def test_sections_without_data_are_left_out(tmp_path: Path) -> None:
    run = Run(str(write_run(tmp_path / "run", 100, drift=False)))
    html = page.build_page(run).decode()
    assert 'id="drift"' not in html
    assert 'id="trend"' not in html
    assert "lm_head_cosine" not in unpack(html, "table-data")["numbers"]


def test_a_run_with_nothing_counted_and_nothing_flagged(tmp_path: Path) -> None:
    data = page.load(Run(str(write_run(tmp_path / "run", 100, drift=False))))
    nothing = page.PageData(
        name="empty",
        info={**data.info, "corpora": []},
        coverage=data.coverage.slice(98),
        histogram=data.histogram.slice(0, 0),
        manifest=data.manifest.slice(0, 0),
        summary=data.summary.slice(0, 0),
    )
    html = page.page(nothing).decode()
    assert unpack(html, "table-data")["n"] == 0
    assert "No token is flagged" in html
    assert "The job sets no checks" in html


def test_tallies_sum_to_the_vocabulary(coverage: pl.DataFrame) -> None:
    for by in ("language", "category"):
        found = figures.tallies(coverage, by)
        assert sum(r["tokens"] for r in found) == len(coverage)
        for r in found:
            assert r["asked"] == r["covered"] + r["flagged"]
            assert r["flagged"] == r["low"] + r["critical"] + r["absent"]


def test_drift_by_bucket_and_language(coverage: pl.DataFrame) -> None:
    measure = "posttraining_supervised_occurrences"
    found = figures.drift_by(coverage, measure)
    edges = {"0": (0, 1), "1-4": (1, 5), "5-19": (5, 20), "20-99": (20, 100), "100+": (100, 1 << 40)}
    for row in found:
        low, high = edges[row["value"]]
        cosine = coverage.filter((pl.col(measure) >= low) & (pl.col(measure) < high))["lm_head_cosine"]
        assert row["tokens"] == len(cosine)
        assert row["mean"] == pytest.approx(cosine.mean())
        assert row["min"] == cosine.min()
        assert row["under"] == pytest.approx([(cosine < c).mean() for c in figures.COSINES])
    assert sum(r["tokens"] for r in found) == len(coverage)
    missing = coverage.with_columns(
        pl.when(pl.col("token_id") < 10)
        .then(None)
        .otherwise(pl.col("lm_head_cosine"))
        .alias("lm_head_cosine")
    )
    by_language = figures.drift_by(missing, measure, "language")
    assert sum(r["tokens"] for r in by_language) == len(coverage) - 10


def test_density_counts_every_token_that_can_be_asked_for(coverage: pl.DataFrame) -> None:
    measure = "posttraining_supervised_occurrences"
    chart = figures.density(coverage, measure, 20)
    assert chart is not None
    asked = coverage.filter(pl.col("status") != "exempt")
    cells = [int(n.replace(",", "")) for n in re.findall(r"<title>([\d,]+) tokens: ", chart.drawing)]
    assert sum(cells) == len(asked)
    table = np.array([[int(c.replace(",", "")) for c in row[1:]] for row in chart.rows])
    assert table.sum() == len(asked)
    assert table[:, 0].sum() == (asked[measure] == 0).sum()


def test_rank_and_frequency_says_how_many_starve(coverage: pl.DataFrame) -> None:
    measure = "posttraining_supervised_occurrences"
    chart = figures.rank_frequency(coverage, measure, 20)
    assert chart is not None
    assert f"starved, under 20: {coverage['status'].is_in(FLAGGED).sum():,} tokens" in chart.drawing
    highest = coverage["pretraining_occurrences"].max()
    assert chart.rows[0][:2] == ["1", f"{highest:,}"]


def test_the_trend_needs_two_runs() -> None:
    assert figures.trend(HISTORY[:1]) is None
    chart = figures.trend(HISTORY)
    assert chart is not None
    assert chart.note == "Against the run before: -210 flagged, -80 critical, -80 absent."
    assert len(chart.rows) == len(HISTORY)


def test_comparing_two_runs(tmp_path: Path, run: Run) -> None:
    other = Run(str(write_run(tmp_path / "second", 800, seed=2)))
    html = compare_page(run, other).decode()
    before, after = (pl.DataFrame(r.table("coverage.parquet")) for r in (run, other))
    table = unpack(html, "table-data")
    changed = after.filter(before["status"] != after["status"])
    assert sorted(table["token_id"]) == changed["token_id"].to_list()
    was = dict(before.select("token_id", "status").iter_rows())
    assert decode(table["coded"]["was"]) == [was[i] for i in table["token_id"]]


def test_runs_of_different_vocabularies_compare_in_totals_only(tmp_path: Path, run: Run) -> None:
    other = Run(str(write_run(tmp_path / "small", 100)))
    html = compare_page(run, other).decode()
    assert "different vocabularies" in html
    assert 'id="table-data"' not in html
