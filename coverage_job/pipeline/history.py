"""Runs that went before: the trend that a page draws, and the baseline that checks compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coverage_job.checks import Facts
from coverage_job.errors import CoverageJobError, RunDirectoryError
from coverage_job.storage import Run, is_local, join, list_folder

# Runs that the trend shows, newest last.
_SHOWN = 30


def earlier_runs(output: str, sha256: str, before: str | None = None) -> list[Run]:
    """The whole runs under `output` with the tokenizer of that hash, oldest first.

    before: only runs that began before this ISO time. Directories that hold no whole run are passed over.
    """
    runs = []
    for name in list_folder(output):
        try:
            runs.append(Run(join(output, name)))
        except RunDirectoryError:
            continue
    runs = [
        r
        for r in runs
        # What `count` wrote has histograms alone.
        if "totals" in r.info
        and r.info["tokenizer"]["sha256"] == sha256
        and (before is None or r.info["started"] < before)
    ]
    return sorted(runs, key=lambda r: str(r.info["started"]))


def trend(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Rows of a history table: run, time and the totals, oldest first."""
    return [
        {"run": run.path.rstrip("/").rsplit("/", 1)[-1], "time": run.info["started"], **run.info["totals"]}
        for run in runs[-_SHOWN:]
    ]


def runs_with(run_directory: str) -> list[dict[str, Any]]:
    """The trend up to and with a run, from the directories beside it."""
    run = Run(run_directory)
    earlier = earlier_runs(parent(run_directory), run.info["tokenizer"]["sha256"], before=run.info["started"])
    return trend([*earlier, run])


def parent(path: str) -> str:
    """The folder that a run directory is in."""
    if is_local(path):
        return str(Path(path).absolute().parent)
    return path.rstrip("/").rsplit("/", 1)[0]


def facts_of(run: Run) -> Facts:
    """The figures of a finished run."""
    drift = run.json("drift.json") if "drift.json" in run.info["files"] else None
    return Facts(run.table("summary.parquet").to_pylist(), run.info["corpora"], drift)


def baseline_among(runs: Sequence[Run]) -> Callable[[str], Facts | None]:
    """Finds the figures of a baseline: ``previous`` is the last of `runs`, anything else a directory."""

    def find(name: str) -> Facts | None:
        if name == "previous":
            return facts_of(runs[-1]) if runs else None
        try:
            return facts_of(Run(name))
        except CoverageJobError:
            return None

    return find
