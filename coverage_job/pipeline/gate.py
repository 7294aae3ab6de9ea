"""Checks of a finished run."""

from __future__ import annotations

from coverage_job.checks import Result, evaluate
from coverage_job.config import load_job
from coverage_job.errors import JobError
from coverage_job.pipeline.history import baseline_among, earlier_runs, facts_of, parent
from coverage_job.pipeline.opened import OpenedRun
from coverage_job.storage import Run, write_bytes


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
