"""The page in a real browser."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coverage_job.report import page as pages
from coverage_job.report.compare import compare_page
from coverage_job.report.visible import hidden, visible
from coverage_job.schemas import FLAGGED
from coverage_job.storage import Run
from tests.report.fabricate import HISTORY, HOSTILE, write_run
from tests.report.test_visible import Parsed

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found; name one in the variable CHROMIUM"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    run = Run(str(write_run(folder / "run", 1000)))
    (folder / "report.html").write_bytes(pages.build_page(run, HISTORY))
    return run


@pytest.fixture(scope="module")
def flagged(run: Run) -> pl.DataFrame:
    coverage = pl.DataFrame(run.table("coverage.parquet"))
    return coverage.filter(pl.col("status").is_in(FLAGGED))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        browser.close()


class Opened:
    """A page that is ready, and all that it complained of or asked for."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = self.context.new_page()
        self.page.on("console", lambda m: self.complaints.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            self.page.locator("html[data-ready]").wait_for(state="attached")

    def count(self) -> int:
        return int(self.page.locator("#count").inner_text().split()[0].replace(",", ""))

    def cells(self, key: str) -> list[str]:
        """The texts of a column's rows in sight, in order."""
        return self.page.locator(f"#grid .body .c-{key}").all_inner_texts()

    def download(self, form: str) -> Path:
        self.page.select_option("#format", form)
        with self.page.expect_download() as waiting:
            self.page.click("#download")
        return Path(waiting.value.path())


@pytest.fixture
def opened(browser: Any, folder: Path, run: Run) -> Iterator[Opened]:
    found = Opened(browser, folder / "report.html", viewport={"width": 1280, "height": 900})
    yield found
    assert found.complaints == []
    assert [url for url in found.requests if not url.startswith(("file:", "blob:"))] == []
    assert found.page.evaluate("window.hacked") is None
    found.context.close()


def test_it_opens_with_every_flagged_token(opened: Opened, flagged: pl.DataFrame) -> None:
    assert opened.count() == len(flagged)
    assert opened.page.get_attribute("#grid", "aria-rowcount") == str(len(flagged) + 1)
    assert len(opened.cells("token")) < 60
    assert opened.requests == [opened.page.url]


def test_filters_leave_what_fits(opened: Opened, run: Run, flagged: pl.DataFrame) -> None:
    page = opened.page
    expected = flagged
    for name, value in (
        ("language", "ja"),
        ("status", "low"),
        ("category", "word"),
        ("action", "repeat_and_mix"),
    ):
        label = page.locator(
            f"#filter-{name} option", has_text=f"{value.replace('_', ' ')} ("
        ).first.inner_text()
        assert label.endswith(f"({(flagged[name] == value).sum():,})")
        page.select_option(f"#filter-{name}", label=label)
        expected = expected.filter(pl.col(name) == value)
        assert opened.count() == len(expected)
    assert len(expected) > 0
    page.click("#reset")
    assert opened.count() == len(flagged)
    in_chat = pl.DataFrame(run.table("histogram.parquet")).filter(pl.col("corpus") == "chat")["token_id"]
    page.select_option(
        "#filter-corpus", label=page.locator("#filter-corpus option", has_text="chat").inner_text()
    )
    assert opened.count() == flagged["token_id"].is_in(in_chat.to_list()).sum()


def test_search_finds_text_and_ids(opened: Opened, flagged: pl.DataFrame) -> None:
    opened.page.fill("#search", "Q")
    texts = [t.decode(errors="ignore").lower() for t in flagged["token_bytes"]]
    assert opened.count() == sum("q" in t for t in texts)
    token_id = flagged["token_id"][40]
    opened.page.fill("#search", str(token_id))
    assert str(token_id) in opened.cells("token_id")
    opened.page.fill("#search", "no such text")
    assert opened.count() == 0
    assert opened.page.is_disabled("#download")


def test_a_language_of_the_chart_filters_the_table(opened: Opened, flagged: pl.DataFrame) -> None:
    opened.page.click("button[data-filter=language][data-value=ru]")
    assert opened.count() == (flagged["language"] == "ru").sum()
    assert set(opened.cells("language")) == {"ru"}


def test_sorting(opened: Opened, flagged: pl.DataFrame) -> None:
    page = opened.page
    page.click(".head .c-token_id button")
    head = page.locator(".head .c-token_id")
    assert head.get_attribute("aria-sort") == "descending"
    ids = [int(text) for text in opened.cells("token_id")]
    assert ids == flagged["token_id"].sort(descending=True)[: len(ids)].to_list()
    page.click(".head .c-token_id button")
    assert head.get_attribute("aria-sort") == "ascending"
    ids = [int(text) for text in opened.cells("token_id")]
    assert ids == flagged["token_id"].sort()[: len(ids)].to_list()
    page.click(".head .c-lm_head_cosine button")
    page.click(".head .c-lm_head_cosine button")
    assert float(opened.cells("lm_head_cosine")[0]) == pytest.approx(
        flagged["lm_head_cosine"].min(), abs=1e-4
    )
    assert head.get_attribute("aria-sort") is None


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Lines end at the newline alone: tokens hold other separators."""
    return [json.loads(line) for line in path.read_bytes().decode().split("\n") if line]


def test_downloads_hold_the_selection(opened: Opened, flagged: pl.DataFrame) -> None:
    page = opened.page
    rows = {r["token_id"]: r for r in flagged.to_dicts()}
    lines = read_jsonl(opened.download("jsonl"))
    assert {line["token_id"] for line in lines} == set(rows)
    for line in lines:
        own = rows[line["token_id"]]
        assert bytes.fromhex(line["bytes"]) == own["token_bytes"]
        if own["decodable"] == "utf8":
            assert line["token"].encode() == own["token_bytes"]
        assert line["status"] == own["status"]
        assert line["deficit"] == own["deficit"]
    page.select_option("#filter-status", index=1)
    with opened.download("csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == opened.count() < len(rows)
    # Ticked rows alone are taken, also where a filter hides them later.
    for place in (0, 2):
        page.check(f'.row[data-place="{place}"] input')
    ticked = {line["token_id"] for line in read_jsonl(opened.download("jsonl"))}
    assert ticked == {int(table[0]["token_id"]), int(table[2]["token_id"])}


def test_no_cell_of_a_csv_is_a_formula(opened: Opened, flagged: pl.DataFrame) -> None:
    with opened.download("csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    texts = {r["token_id"]: r["token_bytes"] for r in flagged.to_dicts() if r["decodable"] == "utf8"}
    risky = 0
    for row in table:
        text = texts.get(int(row["token_id"]))
        for name, cell in row.items():
            if name not in ("lm_head_cosine",):
                assert not cell.lstrip().startswith(("=", "+", "-", "@", "\t", "\r", "＝"))
        if text is not None:
            risky += row["token"].startswith("'")
            assert row["token"].removeprefix("'") == text.decode()
    assert risky >= 3


def test_copy(browser: Any, folder: Path, run: Run) -> None:
    opened = Opened(browser, folder / "report.html", permissions=["clipboard-read", "clipboard-write"])
    opened.page.check('.row[data-place="0"] input')
    opened.page.select_option("#format", "jsonl")
    opened.page.click("#copy")
    opened.page.locator("#said", has_text="1 rows copied").wait_for(state="attached")
    line = json.loads(opened.page.evaluate("navigator.clipboard.readText()"))
    assert str(line["token_id"]) == opened.cells("token_id")[0]
    assert opened.complaints == []
    opened.context.close()


def test_a_row_opens_to_its_counts_context_and_neighbours(
    opened: Opened, run: Run, flagged: pl.DataFrame
) -> None:
    page = opened.page
    details = run.table("drift.parquet").to_pylist()
    drifted = next(i for i in flagged["token_id"] if details[i]["lm_head_neighbours_before"] and i % 9 == 0)
    page.fill("#search", str(drifted))
    place = opened.cells("token_id").index(str(drifted))
    button = page.locator(f'.row[data-place="{place}"] button')
    button.click()
    panel = page.locator("#grid .panel")
    panel.wait_for()
    assert button.get_attribute("aria-expanded") == "true"
    text = panel.inner_text()
    histogram = pl.DataFrame(run.table("histogram.parquet")).filter(pl.col("token_id") == drifted)
    assert panel.locator("table").nth(1).locator("tbody tr").count() == len(histogram)
    for n in histogram["occurrences"]:
        assert f"{n:,}" in text
    assert "context of 嘉祺" in text
    assert panel.locator(".near li").count() == 20
    # Rows below make room, and take it back.
    below = page.locator(f'.row[data-place="{place + 1}"]')
    if below.count():
        assert below.bounding_box()["y"] >= panel.bounding_box()["y"] + panel.bounding_box()["height"] - 1
    button.click()
    assert page.locator("#grid .panel").count() == 0
    assert button.get_attribute("aria-expanded") == "false"


def test_the_keyboard_reaches_every_row(opened: Opened, flagged: pl.DataFrame) -> None:
    page = opened.page
    place = "document.activeElement.closest('.row').dataset.place"
    page.locator('.row[data-place="0"] button').focus()
    for _ in range(45):
        page.keyboard.press("ArrowDown")
    assert page.evaluate(place) == "45"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.className") == "cell c-token_id n"
    page.keyboard.press("Enter")
    page.locator("#grid .panel").wait_for()
    page.keyboard.press("Enter")
    # The focus outlives its row's being scrolled away.
    page.evaluate("document.querySelector('#grid').scrollTop = 1e6")
    page.locator(f'.row[data-place="{len(flagged) - 1}"]').wait_for()
    assert page.evaluate(place) == "45"
    page.keyboard.press("ArrowUp")
    assert page.evaluate(place) == "44"
    page.keyboard.press("Control+End")
    assert page.evaluate(place) == str(len(flagged) - 1)
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    assert "1 ticked" in page.locator("#count").inner_text()
    page.keyboard.press("Control+Home")
    assert page.evaluate(place) == "0"
    # One stop in the body: Tab leaves it.
    assert page.locator('.body [tabindex="0"]').count() == 1


def test_hostile_tokens_are_inert_and_visible(opened: Opened, flagged: pl.DataFrame) -> None:
    page = opened.page
    ids = [i for i in range(len(HOSTILE)) if i in set(flagged["token_id"])]
    assert len(ids) > 8
    for token_id in ids:
        page.fill("#search", str(token_id))
        cell = page.locator(".body .c-token").nth(opened.cells("token_id").index(str(token_id)))
        shown = cell.locator("bdi").text_content()
        assert shown == Parsed(visible(HOSTILE[token_id])).text
        assert not [c for c in shown if hidden(c)]
        cell.locator("button").click()
        page.locator("#grid .panel").wait_for()
        cell.locator("button").click()
    assert page.locator("#tokens img, #tokens script, #tokens b").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dark_and_light(browser: Any, folder: Path, run: Run, scheme: str) -> None:
    opened = Opened(browser, folder / "report.html", color_scheme=scheme)
    page = opened.page

    def brightness() -> float:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(float(x) for x in colour.removeprefix("rgb(").removesuffix(")").split(","))

    assert (brightness() > 384) == (scheme == "light")
    seen = []
    for _ in range(3):
        page.click("#theme")
        seen.append((page.inner_text("#theme"), brightness() > 384))
    assert seen == [("Theme: light", True), ("Theme: dark", False), ("Theme: auto", scheme == "light")]
    assert opened.complaints == []
    opened.context.close()


def test_at_400_pixels(browser: Any, folder: Path, run: Run) -> None:
    opened = Opened(browser, folder / "report.html", viewport={"width": 400, "height": 800})
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 400
    grid = opened.page.locator("#grid")
    assert grid.evaluate("e => e.scrollWidth <= e.clientWidth")
    opened.page.locator('.row[data-place="1"] button').click()
    opened.page.locator("#grid .panel").wait_for()
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 400
    assert opened.page.locator("#download").bounding_box()["width"] > 40
    opened.context.close()


def test_in_print_and_without_scripts_the_first_rows_are_shown(
    browser: Any, folder: Path, run: Run, opened: Opened
) -> None:
    assert not opened.page.is_visible(".printed")
    opened.page.emulate_media(media="print")
    assert opened.page.is_visible(".printed")
    assert opened.page.is_visible(".plot >> nth=0")
    assert not opened.page.is_visible("#grid")
    plain = Opened(browser, folder / "report.html", java_script_enabled=False)
    assert plain.page.is_visible(".printed")
    assert plain.page.locator(".printed tbody tr").count() == 50
    plain.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["report.html", "compare.html"])
def test_axe_finds_nothing_serious(browser: Any, folder: Path, run: Run, name: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    if name == "compare.html" and not (folder / name).exists():
        other = Run(str(write_run(folder / "other", 1000, seed=2)))
        (folder / name).write_bytes(compare_page(run, other))
    opened = Opened(browser, folder / name, color_scheme=scheme)
    opened.page.locator('.row[data-place="0"] button').click()
    opened.page.locator("#grid .panel").wait_for()
    opened.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    response = axe.Axe().run(opened.page).response
    assert {"color-contrast", "button-name", "aria-required-children"} <= {
        p["id"] for p in response["passes"]
    }
    assert [
        (v["id"], v["impact"], v["nodes"][0]["html"])
        for v in response["violations"]
        if v["impact"] in ("serious", "critical")
    ] == []
    assert opened.complaints == []
    opened.context.close()
