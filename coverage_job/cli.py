"""The command line: arguments in, exit codes out.

0 done, 1 a check failed, 2 the job, the input or the arguments are wrong, 3 an unexpected fault.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import click
import typer

from coverage_job import __version__
from coverage_job.errors import CoverageJobError
from coverage_job.progress import Steps

app = typer.Typer(
    name="coverage-job",
    help="Which tokens will post-training make a model unable to write, and what protects them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

JobArgument = Annotated[
    str, typer.Argument(metavar="JOB.yaml", help="The job file; docs/job-file.md lists its keys.")
]
SetOption = Annotated[
    Optional[list[str]],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key of the job, such as coverage.minimum=10."
    ),
]


class EngineName(str, Enum):
    """Where tasks run."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


EngineOption = Annotated[EngineName, typer.Option("--engine", help="auto, local (processes) or spark.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def _version(value: bool) -> None:
    if value:
        print(f"coverage-job {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")]) -> None:
    """Write a small real job to try: corpora, tokenizer, job.yaml.

    Example: coverage-job demo demo && coverage-job run demo/job.yaml
    """
    from coverage_job.demo import write_demo

    print(f"wrote {write_demo(directory)}; now: coverage-job run {directory}/job.yaml")


@app.command()
def run(
    job: JobArgument,
    engine: EngineOption = EngineName.AUTO,
    output: Annotated[
        Optional[str],
        typer.Option(
            metavar="DIR", help="The run directory itself, instead of a new one under the job's output."
        ),
    ] = None,
    settings: SetOption = None,
    gate: Annotated[bool, typer.Option("--gate", help="Exit 1 where a check failed.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Plan and say what would be read; count nothing.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Count, cover, write the manifest, the report and the checks; print the run directory last.

    Examples:

      coverage-job run job.yaml

      coverage-job run job.yaml --engine local --set engine.workers=8 --set coverage.minimum=10
    """
    from coverage_job.config import load_job
    from coverage_job.pipeline import plan
    from coverage_job.pipeline.run import run as run_job
    from coverage_job.report.tables import show

    steps = Steps(quiet)
    loaded = load_job(job, tuple(settings or ()))
    if dry_run:
        with plan.open_engine(engine.value, loaded) as opened:
            show(plan.preview(plan.make_plan(loaded, opened, steps)))
        return
    result = run_job(loaded, engine.value, output, steps)
    show(result.printed)
    print(result.path)
    if gate and result.failed:
        raise typer.Exit(1)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    try:
        result = app(args=arguments, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except click.Abort:
        return 130
    except CoverageJobError as error:
        print(f"coverage-job: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        with tempfile.NamedTemporaryFile("w", prefix="coverage-job-", suffix=".log", delete=False) as log:
            traceback.print_exc(file=log)
        print(
            f"coverage-job: unexpected {type(error).__name__}: {' '.join(str(error).split())[:300]}; "
            f"the traceback is in {log.name}",
            file=sys.stderr,
        )
        return 3
