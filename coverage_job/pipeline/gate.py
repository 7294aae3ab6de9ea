"""Checks of a finished run, and two results side by side."""

from __future__ import annotations

from coverage_job.checks import Result, evaluate
from coverage_job.config import load_job
from coverage_job.drift.compare import compare as compare_drift
from coverage_job.errors import JobError
from coverage_job.pipeline.history import baseline_among, earlier_runs, facts_of, parent
from coverage_job.pipeline.opened import OpenedRun
from coverage_job.report.compare import compare_page
from coverage_job.storage import Run, exists, join, write_bytes, write_parquet


def check(run_directory: str, job_path: str | None) -> list[Result]:
    """Hold a run against its job's checks, or those of another job file; the run is not changed.

    Raises JobError where there is no check: a gate that asks nothing would always be open.
    """
    opened = OpenedRun.open(run_directory)
    opened.run.verify()
    job = opened.job if job_path is None else load_job(job_path)
    if not job.checks:
        raise JobError(
            f"{job_path or run_directory}: the job has no `checks:`, so there is nothing to hold it to"
        )
    info = opened.run.info
    runs = earlier_runs(parent(run_directory), opened.spec.sha256, before=info["started"])
    return evaluate(job.checks, facts_of(opened.run), baseline_among(runs))


def prometheus(run: Run, results: list[Result]) -> str:
    """A run's totals and verdicts in the Prometheus text format (exposition format 0.0.4)."""
    lines = ["# TYPE coverage_job_tokens gauge"]
    lines += [f'coverage_job_tokens{{status="{k}"}} {v}' for k, v in run.info["totals"].items()]
    lines.append("# TYPE coverage_job_flagged_tokens gauge")
    for row in run.table("summary.parquet").to_pylist():
        if row["by"] in ("language", "category"):
            lines.append(
                f'coverage_job_flagged_tokens{{{row["by"]}="{_label(row["value"])}"}} {row["under"]}'
            )
    lines.append("# TYPE coverage_job_check gauge")
    for result in results:
        value = {"pass": 0, "warn": 1, "fail": 2}[result.verdict]
        lines.append(f'coverage_job_check{{name="{_label(result.name)}"}} {value}')
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write_prometheus(run_directory: str, results: list[Result], path: str) -> None:
    """Write the file that a textfile collector reads, whole or not at all."""
    write_bytes(path, prometheus(Run(run_directory), results).encode())


def compare(a: str, b: str, output: str | None) -> str:
    """Result `b` against `a`, which went before, in words; the page or the table of it in `output`.

    Both are runs, or both drift results.

    Raises JobError where one is a run and the other a drift result.
    """
    kinds = {exists(join(path, "run.json")) for path in (a, b)}
    if len(kinds) == 2:
        raise JobError(f"{a} and {b}: one is a run and the other is not; compare two of a kind")
    if kinds == {False}:
        result = compare_drift(experiment=b, baseline=a)
        if output is not None:
            write_parquet(output, result.table)
        return result.text
    runs = Run(a), Run(b)
    for run in runs:
        run.verify()
        if "totals" not in run.info:
            raise JobError(f"{run.path}: holds histograms alone, as `count` writes; compare what `run` wrote")
    if output is not None:
        write_bytes(output, compare_page(*runs))
    lines = [f"{'':<12}{'before':>14}{'after':>14}{'change':>14}"]
    for name, before in runs[0].info["totals"].items():
        after = runs[1].info["totals"][name]
        lines.append(f"{name:<12}{before:>14,}{after:>14,}{after - before:>+14,}")
    return "\n".join(lines)
