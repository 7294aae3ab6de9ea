"""The page with 200,000 flagged tokens: its size, and how long it takes to build, open, filter and sort.

    PYTHONPATH=. python tests/benchmarks/bench_page.py [RUN_DIR]

Without a run directory one is made up. Times are of this machine, with what else runs on it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from coverage_job.report.page import build_page
from coverage_job.storage import Run
from tests.report.fabricate import write_run
from tests.report.test_browser import CHROMIUM

# An action, then the time until the browser has handled it and drawn the next frame.
TIMED = """async (action) => {
  const frame = () => new Promise((r) => requestAnimationFrame(() => setTimeout(r)));
  await frame();
  const start = performance.now();
  const target = document.querySelector(action.target);
  if (action.value === undefined) target.click();
  else {
    target.value = action.value;
    target.dispatchEvent(new Event(action.event));
  }
  await frame();
  return Math.round(performance.now() - start);
}"""

ACTIONS = {
    "search, first letter": {"target": "#search", "value": "a", "event": "input"},
    "search, two letters": {"target": "#search", "value": "ab", "event": "input"},
    "clear": {"target": "#reset"},
    "filter by language": {"target": "#filter-language", "value": "1", "event": "change"},
    "filter by corpus too": {"target": "#filter-corpus", "value": "1", "event": "change"},
    "filter by status too": {"target": "#filter-status", "value": "1", "event": "change"},
    "clear again": {"target": "#reset"},
    "sort by id": {"target": ".head .c-token_id button"},
    "sort by token": {"target": ".head .c-token button"},
    "open a row": {"target": '.row[data-place="3"] button'},
}


def measure(page: Page, place: Path) -> dict[str, int]:
    start = time.perf_counter()
    page.goto(place.as_uri())
    page.locator("html[data-ready]").wait_for(state="attached")
    found = {"open": round(1000 * (time.perf_counter() - start))}
    page.wait_for_timeout(2500)
    return found | {name: page.evaluate(TIMED, action) for name, action in ACTIONS.items()}


def main(run: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if run is None:
            run = str(write_run(Path(folder) / "run", 270_000))
        start = time.perf_counter()
        data = build_page(Run(run))
        built = time.perf_counter() - start
        place = Path(folder) / "report.html"
        place.write_bytes(data)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page()
            milliseconds = measure(page, place)
            rows = page.locator("#count").inner_text()
            browser.close()
    figures = {"megabytes": len(data) / 1e6, "build_seconds": round(built, 2), "rows": rows}
    print(json.dumps({**figures, "milliseconds": milliseconds}, indent=2))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
