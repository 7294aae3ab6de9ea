"""The command line: arguments in, exit codes out.

0 done, 1 a check failed, 2 the job, the input or the arguments are wrong, 3 an unexpected fault.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import traceback
from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer

from coverage_job import __version__
from coverage_job.errors import CoverageJobError, EngineError, JobError
from coverage_job.help import App, ProbeGroup
from coverage_job.progress import Steps, shown
from coverage_job.storage import mask_text

app = App(
    name="coverage-job",
    add_completion=False,
    help="Which tokens will post-training make a model unable to write, and what protects them.\n\n"
    "Example: coverage-job demo demo && coverage-job run demo/job.yaml",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
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


EngineOption = Annotated[EngineName, typer.Option("--engine", help="Where it is counted.")]
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
        with plan.open_to_look(engine.value, loaded, steps) as opened:
            show(plan.preview(plan.make_plan(loaded, opened, steps)))
        return
    result = run_job(loaded, engine.value, output, steps)
    show(result.printed)
    print(result.path)
    if gate and result.failed:
        raise typer.Exit(1)


RunArgument = Annotated[str, typer.Argument(metavar="RUN_DIR", help="A run directory.")]
OutputOption = Annotated[
    str, typer.Option("--output", metavar="DIR", help="A directory that does not exist yet.")
]
TokenizerOption = Annotated[
    Optional[str], typer.Option("--tokenizer", metavar="T", help="The tokenizer's file or folder.")
]
TokenizerBeforeOption = Annotated[
    Optional[str],
    typer.Option(
        "--tokenizer-before",
        metavar="T",
        help="The base's tokenizer, where it is another: rows are matched by token, not by id.",
    ),
]


class DeviceName(str, Enum):
    """Where matrices are compared and models run."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


DeviceOption = Annotated[DeviceName, typer.Option("--device", help="Where it is computed.")]


@app.command()
def count(
    job: JobArgument,
    engine: EngineOption = EngineName.AUTO,
    output: Annotated[
        Optional[str],
        typer.Option(
            "--output",
            metavar="DIR",
            help="The run directory itself, instead of a new one under the job's output.",
        ),
    ] = None,
    settings: SetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Histograms only, without coverage, manifest or page; print the run directory last.

    Example: coverage-job count job.yaml --engine local
    """
    from coverage_job.config import load_job
    from coverage_job.pipeline.run import count_only
    from coverage_job.report.tables import show

    result = count_only(load_job(job, tuple(settings or ())), engine.value, output, Steps(quiet))
    show(result.printed)
    print(result.path)


class Scope(str, Enum):
    """Which tokens a repeat set is for."""

    FLAGGED = "flagged"
    VOCABULARY = "vocabulary"


@app.command()
def repeat(
    run_directory: RunArgument,
    output: OutputOption,
    scope: Annotated[
        Scope, typer.Option(help="The flagged tokens, or the whole vocabulary.")
    ] = Scope.FLAGGED,
    tokens_per_dialogue: Annotated[
        int, typer.Option(metavar="N", help="Tokens to repeat that share a dialogue.", min=1)
    ] = 512,
    max_length: Annotated[
        int, typer.Option(metavar="N", help="Tokens of a rendered dialogue, at most.", min=16)
    ] = 4096,
    by_ids: Annotated[
        bool, typer.Option("--ids", help="Also write rows of ids for tokens that no text gives.")
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same bytes.")] = 0,
    quiet: QuietOption = False,
) -> None:
    """The verified repeat-after-me set: each token in scope a target as often as it lacks.

    Example: coverage-job repeat runs/20260101T000000Z-abc123 --output repeat
    """
    from coverage_job.pipeline import repair
    from coverage_job.remedies.repeat import RepeatOptions

    options = RepeatOptions(tokens_per_dialogue=tokens_per_dialogue, max_length=max_length, seed=seed)
    print(
        repair.repeat(
            run_directory, output, scope=scope.value, by_ids=by_ids, options=options, steps=Steps(quiet)
        )
    )


@app.command()
def mix(
    run_directory: RunArgument,
    output: OutputOption,
    budget_tokens: Annotated[
        int, typer.Option(metavar="N", help="Tokens of all documents together, at most.", min=1)
    ],
    engine: EngineOption = EngineName.AUTO,
    min_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of a passage, at least.")] = 16,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of a passage, at most.")] = 8192,
    passage_bytes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Longer documents are cut, where lines or sentences end, into passages of about N bytes; "
            "0: documents stay whole.",
        ),
    ] = 256,
    language: Annotated[
        Optional[list[str]],
        typer.Option(metavar="LANG", help="Only documents of this language; may be repeated."),
    ] = None,
    quality_field: Annotated[
        Optional[str],
        typer.Option(metavar="FIELD", help="A field of the records that holds a quality as a number."),
    ] = None,
    min_quality: Annotated[
        float, typer.Option(metavar="Q", help="Documents of a lower quality are not chosen.")
    ] = 0.0,
    deny: Annotated[
        Optional[str], typer.Option(metavar="REGEX", help="Documents in which it matches are not chosen.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Pre-training text that covers what is short, within a budget of tokens.

    Example: coverage-job mix runs/20260101T000000Z-abc123 --output mix --budget-tokens 2000000
    """
    from coverage_job.pipeline import repair
    from coverage_job.remedies.mix import MixOptions

    options = MixOptions(
        budget_tokens=budget_tokens,
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        passage_bytes=passage_bytes,
        languages=tuple(language or ()),
        quality_field=quality_field,
        min_quality=min_quality,
        deny=deny,
    )
    print(repair.mix(run_directory, output, engine_name=engine.value, options=options, steps=Steps(quiet)))


@app.command()
def prune(
    run_directory: RunArgument,
    output: OutputOption,
    max_pretraining: Annotated[
        int, typer.Option(metavar="N", help="Occurrences up to which a token is rare.", min=0)
    ] = 0,
    max_posttraining: Annotated[
        int, typer.Option(metavar="N", help="The same, in post-training.", min=0)
    ] = 0,
    apply: Annotated[bool, typer.Option("--apply", help="Also write the pruned tokenizer.json.")] = False,
) -> None:
    """Tokens that are rare in both stages and that no kept one is merged from: a proposal.

    Example: coverage-job prune runs/20260101T000000Z-abc123 --output prune
    """
    from coverage_job.pipeline import repair

    print(
        repair.prune(
            run_directory,
            output,
            max_pretraining=max_pretraining,
            max_posttraining=max_posttraining,
            apply=apply,
        )
    )


@app.command()
def protect(run_directory: RunArgument, output: OutputOption) -> None:
    """protected_ids.npy for the training hook: the rows of tokens without enough targets.

    Example: coverage-job protect runs/20260101T000000Z-abc123 --output protect
    """
    from coverage_job.pipeline import repair

    print(repair.protect(run_directory, output))


class NeighbourRows(str, Enum):
    """Rows whose nearest rows are sought."""

    DRIFTED = "drifted"
    ALL = "all"
    NONE = "none"


@app.command()
def drift(
    after: Annotated[
        list[str],
        typer.Option(metavar="CKPT", help="The trained checkpoint; several: tensor-parallel shards."),
    ],
    output: OutputOption,
    before: Annotated[Optional[list[str]], typer.Option(metavar="CKPT", help="The base checkpoint.")] = None,
    tokenizer: TokenizerOption = None,
    tokenizer_before: TokenizerBeforeOption = None,
    run_directory: Annotated[
        Optional[str], typer.Option("--run", metavar="RUN_DIR", help="Join with this run's coverage.")
    ] = None,
    lm_head: Annotated[Optional[str], typer.Option(metavar="NAME", help="The output matrix's name.")] = None,
    embedding: Annotated[
        Optional[str], typer.Option(metavar="NAME", help="The embedding matrix's name.")
    ] = None,
    neighbours: Annotated[
        NeighbourRows, typer.Option(help="Rows whose neighbours are sought.")
    ] = NeighbourRows.DRIFTED,
    device: DeviceOption = DeviceName.AUTO,
    quiet: QuietOption = False,
) -> None:
    """What post-training did to each token's row; with --after alone, one checkpoint's under-trained rows.

    Example: coverage-job drift --before base/ --after sft/ --run RUN_DIR --output drift
    """
    from coverage_job.drift import compare
    from coverage_job.drift.command import run_drift
    from coverage_job.pipeline.tokenizers import matched_rows
    from coverage_job.tokenizer.load import describe
    from coverage_job.tokenizer.vocabulary import vocabulary_table

    steps = Steps(quiet)
    vocabulary = vocabulary_table(describe(tokenizer)) if tokenizer is not None else None
    row_map = matched_rows(tokenizer_before, tokenizer, run_directory)
    with steps.step("drift"):
        result = run_drift(
            before or None,
            after,
            output,
            vocabulary=vocabulary,
            run_directory=run_directory,
            lm_head=lm_head,
            embedding=embedding,
            neighbours=neighbours.value,
            device=device.value,
            row_map=row_map,
        )
    print(compare.render(result.report))
    print(output)


@app.command()
def restore(
    before: Annotated[str, typer.Option(metavar="CKPT", help="The base checkpoint.")],
    after: Annotated[str, typer.Option(metavar="CKPT", help="The trained checkpoint.")],
    run_directory: Annotated[
        str, typer.Option("--run", metavar="DIR", help="Holds a coverage.parquet with drift.")
    ],
    output: OutputOption,
    tokens: Annotated[
        Optional[str], typer.Option(metavar="EXPR", help="A Polars SQL predicate over coverage.parquet.")
    ] = None,
    tokenizer: TokenizerOption = None,
    tokenizer_before: TokenizerBeforeOption = None,
    blend: Annotated[float, typer.Option(metavar="SHARE", help="The base's share of a restored row.")] = 1.0,
    lm_head: Annotated[Optional[str], typer.Option(metavar="NAME", help="The output matrix's name.")] = None,
) -> None:
    """The after checkpoint with chosen output rows put back from the base.

    Example: coverage-job restore --before base --after sft --run drift --output restored
    """
    from coverage_job.drift.restore import DEFAULT_TOKENS
    from coverage_job.drift.restore import restore as restore_rows
    from coverage_job.pipeline.tokenizers import matched_rows

    row_map = matched_rows(tokenizer_before, tokenizer, run_directory)
    done = restore_rows(
        before,
        after,
        run_directory,
        output,
        tokens or DEFAULT_TOKENS,
        blend,
        lm_head=lm_head,
        row_map=row_map,
    )
    print(
        f"restored {done.rows:,} rows of the output matrix, in {done.output}"
        + (f" ({done.note})" if done.note else "")
    )


@app.command()
def check(
    run_directory: RunArgument,
    job: Annotated[
        Optional[str],
        typer.Option(
            "--job", metavar="JOB.yaml", help="Hold it against the checks of this job file, not its own."
        ),
    ] = None,
    prometheus: Annotated[
        Optional[str], typer.Option(metavar="FILE", help="Also write totals and verdicts for Prometheus.")
    ] = None,
) -> None:
    """Hold a run against its checks: exit 0 where all pass, 1 where one fails.

    Example: coverage-job check runs/20260101T000000Z-abc123 --job job.yaml
    """
    from coverage_job.pipeline import gate
    from coverage_job.report.tables import show, verdicts

    results = gate.check(run_directory, job)
    show(verdicts(results))
    if prometheus is not None:
        gate.write_prometheus(run_directory, results, prometheus)
    if any(r.verdict == "fail" for r in results):
        raise typer.Exit(1)


@app.command()
def report(run_directory: RunArgument) -> None:
    """Write a run's page again, with the trend of the runs beside it; print its path.

    Example: coverage-job report runs/20260101T000000Z-abc123
    """
    from coverage_job.pipeline.history import runs_with
    from coverage_job.report.page import rebuild

    print(rebuild(run_directory, runs_with(run_directory)))


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="BEFORE", help="A run, or a drift result: the baseline.")],
    b: Annotated[str, typer.Argument(metavar="AFTER", help="Another of its kind: the experiment.")],
    output: Annotated[
        Optional[str],
        typer.Option("--output", metavar="FILE", help="Also write the page (.html) or table (.parquet)."),
    ] = None,
) -> None:
    """Two runs, or two drift results, side by side: what changed from the first to the second.

    Example: coverage-job compare runs/before runs/after --output compare.html
    """
    from coverage_job.pipeline import gate

    print(gate.compare(a, b, output))


tokenizer_app = App(
    help="The id table's counts; whether two tokenizers are the same.\n\n"
    "Example: coverage-job tokenizer show path/to/tokenizer.json",
    no_args_is_help=True,
)
app.add_typer(tokenizer_app, name="tokenizer")


@tokenizer_app.command("show")
def tokenizer_show(
    tokenizer: Annotated[str, typer.Argument(metavar="T", help="The tokenizer's file or folder.")],
) -> None:
    """Kinds, reachability, scripts and categories of the ids.

    Example: coverage-job tokenizer show path/to/tokenizer.json
    """
    from coverage_job.report.tables import show
    from coverage_job.tokenizer.compare import show as describe_table
    from coverage_job.tokenizer.load import describe
    from coverage_job.tokenizer.printing import print_shown

    show(print_shown(describe_table(describe(tokenizer))))


@tokenizer_app.command("compare")
def tokenizer_compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A tokenizer.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    text: Annotated[
        Optional[list[str]],
        typer.Option("--text", metavar="FILE", help="Text to encode by both, a document a line."),
    ] = None,
) -> None:
    """Ids moved, added and gone, merges and settings that differ; exit 1 where they are not the same.

    Example: coverage-job tokenizer compare base/ sft/ --text sample.txt
    """
    from coverage_job.report.tables import show
    from coverage_job.storage import read_bytes
    from coverage_job.tokenizer.compare import compare as compare_tokenizers
    from coverage_job.tokenizer.load import describe
    from coverage_job.tokenizer.printing import print_comparison

    texts = [line for path in text or () for line in read_bytes(path).decode("utf-8", "replace").split("\n")]
    found = compare_tokenizers(describe(a), describe(b), texts)
    show(print_comparison(found))
    if not found.same:
        raise typer.Exit(1)


store = App(
    help="Look after a store of partial histograms.\n\nExample: coverage-job store list store",
    no_args_is_help=True,
)
app.add_typer(store, name="store")
StoreArgument = Annotated[
    str, typer.Argument(metavar="STORE", help="The folder that the job's `store:` names.")
]


@store.command("list")
def store_list(path: StoreArgument) -> None:
    """What is kept, by corpus and by the options it was counted with.

    Example: coverage-job store list s3://bucket/coverage/store
    """
    from coverage_job.counting.store_files import list_store
    from coverage_job.report.tables import show, store_folders

    show(store_folders(list_store(path)))


@store.command("verify")
def store_verify(path: StoreArgument) -> None:
    """Read every file; exit 1 where one is torn. A run passes over torn files and counts them again.

    Example: coverage-job store verify store
    """
    from coverage_job.counting.store_files import verify_store

    whole, torn = verify_store(path)
    for line in torn:
        print(line)
    print(f"{whole:,} files are whole, {len(torn):,} are torn")
    if torn:
        raise typer.Exit(1)


@store.command("prune")
def store_prune(
    path: StoreArgument,
    older_than: Annotated[
        Optional[float], typer.Option(metavar="DAYS", help="Remove what was written longer ago.", min=0)
    ] = None,
    keep: Annotated[
        Optional[int], typer.Option(metavar="N", help="Keep the newest N snapshots of a corpus.", min=1)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; remove nothing.")] = False,
) -> None:
    """Remove old parts and snapshots; what a run needs again it counts again.

    Examples:

      coverage-job store prune store --keep 5

      coverage-job store prune s3://bucket/coverage/store --older-than 90 --dry-run
    """
    import time

    from coverage_job.counting.store_files import prune_store

    if older_than is None and keep is None:
        raise JobError("store prune: say what is to go: --older-than DAYS, --keep N, or both")
    files, size = prune_store(path, time.time(), older_than, keep, dry_run)
    print(f"{'would remove' if dry_run else 'removed'} {files:,} files, {size / 1e6:,.1f} MB")


ModelOption = Annotated[
    Optional[str], typer.Option("--model", metavar="CKPT", help="A local transformers checkpoint.")
]
EndpointOption = Annotated[
    Optional[str], typer.Option("--endpoint", metavar="URL", help="An OpenAI-compatible server's address.")
]
EndpointModelOption = Annotated[
    str, typer.Option("--endpoint-model", metavar="NAME", help="The model's name there.")
]


class ApiName(str, Enum):
    """Of an OpenAI-compatible server."""

    CHAT = "chat"
    COMPLETIONS = "completions"


class Order(str, Enum):
    """Which tokens a probe asks for first."""

    AUTO = "auto"
    DRIFT = "drift"
    COVERAGE = "coverage"


ApiOption = Annotated[ApiName, typer.Option("--api", help="Which of the server's interfaces is asked.")]
ResponsesOption = Annotated[
    Optional[str], typer.Option("--responses", metavar="FILE", help="Answers that were given elsewhere.")
]


probe_app = App(
    cls=ProbeGroup,
    help="Can the model still write the tokens, and two probes side by side.\n\n"
    "Example: coverage-job probe RUN_DIR --tokenizer base/ --model sft/ --output probe\n\n"
    "That is short for `probe ask RUN_DIR ...`, whose help lists the options.",
    no_args_is_help=True,
)
app.add_typer(probe_app, name="probe")


@probe_app.command("ask")
def probe(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A run, a drift result, a list of tokens, or prompts.jsonl."),
    ],
    output: OutputOption,
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", metavar="T", help="The tokenizer's file or folder.")
    ],
    model: ModelOption = None,
    endpoint: EndpointOption = None,
    endpoint_model: EndpointModelOption = "default",
    api: ApiOption = ApiName.CHAT,
    responses: ResponsesOption = None,
    checkpoint: Annotated[
        Optional[str],
        typer.Option(metavar="CKPT", help="Where substitutes' rows are read, with an endpoint."),
    ] = None,
    count: Annotated[int, typer.Option(metavar="N", help="How many tokens are asked for.", min=1)] = 200,
    by: Annotated[Order, typer.Option(help="Which tokens come first.")] = Order.AUTO,
    language: Annotated[
        Optional[list[str]], typer.Option(metavar="LANG", help="Only of this language; may be repeated.")
    ] = None,
    device: DeviceOption = DeviceName.AUTO,
    quiet: QuietOption = False,
) -> None:
    """Can the model still write the tokens: prompts, answers, verdicts. Without a model, the prompts alone.

    Example: coverage-job probe RUN_DIR --tokenizer base/ --model sft/ --output probe
    """
    from coverage_job.pipeline import asking
    from coverage_job.report.tables import show

    show(
        asking.probe(
            source,
            output,
            tokenizer=tokenizer,
            who=asking.Who(model, endpoint, endpoint_model, api.value, responses, device.value),
            checkpoint=checkpoint,
            count=count,
            by=by.value,
            languages=language or (),
            steps=Steps(quiet),
        )
    )


@probe_app.command("compare")
def probe_compare(
    baseline: Annotated[str, typer.Argument(metavar="BEFORE", help="A probe's folder: the baseline.")],
    experiment: Annotated[str, typer.Argument(metavar="AFTER", help="Another one's: the experiment.")],
) -> None:
    """Two probes of the same prompts, with intervals.

    Example: coverage-job probe compare probe-base probe-sft
    """
    from coverage_job.pipeline import asking
    from coverage_job.report.tables import show

    show(asking.compare(baseline, experiment))


@app.command()
def confusion(
    output: OutputOption,
    model: ModelOption = None,
    endpoint: EndpointOption = None,
    endpoint_model: EndpointModelOption = "default",
    api: ApiOption = ApiName.CHAT,
    responses: ResponsesOption = None,
    language: Annotated[
        Optional[list[str]],
        typer.Option(metavar="LANG", help="Of the questions, or of all answers; may be repeated."),
    ] = None,
    limit: Annotated[
        Optional[int], typer.Option(metavar="N", help="Questions of each language, at most.")
    ] = None,
    words: Annotated[
        Optional[str], typer.Option(metavar="FILE", help="English words, one a line, instead of wordfreq's.")
    ] = None,
    device: DeviceOption = DeviceName.AUTO,
    quiet: QuietOption = False,
) -> None:
    """Do answers mix scripts: shares of foreign letters, line and word pass rates, with intervals.

    Example: coverage-job confusion --model sft/ --output confusion
    """
    from coverage_job.pipeline import asking
    from coverage_job.report.tables import show

    show(
        asking.confusion(
            output,
            who=asking.Who(model, endpoint, endpoint_model, api.value, responses, device.value),
            languages=language or (),
            limit=limit,
            words=words,
            steps=Steps(quiet),
        )
    )


def _ended(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    if threading.current_thread() is not threading.main_thread():
        return _run(arguments)
    # Ended by an exception, as by Ctrl-C: workers and temporary folders go too.
    before = signal.signal(signal.SIGTERM, _ended)
    try:
        return _run(arguments)
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _run(arguments: list[str] | None) -> int:
    try:
        result = app(args=arguments, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        return 130
    except CoverageJobError as error:
        text = str(error)
        # One line, whatever other libraries put into it; executors that do not fit have one each.
        text = text if isinstance(error, EngineError) else " ".join(text.split())
        print(f"coverage-job: {shown(mask_text(text))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        # Wrong arguments; typer has a copy of click in newer releases, so there is no one class to name.
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            return 2
        with tempfile.NamedTemporaryFile("w", prefix="coverage-job-", suffix=".log", delete=False) as log:
            log.write(mask_text(traceback.format_exc()))
        print(
            f"coverage-job: unexpected {type(error).__name__}: "
            f"{mask_text(' '.join(str(error).split()))[:300]}; "
            f"the traceback is in {log.name}",
            file=sys.stderr,
        )
        return 3
