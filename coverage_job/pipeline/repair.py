"""The remedies' commands: from a run to data, ids and proposals, each with its proof."""

from __future__ import annotations

import io

import numpy as np

from coverage_job.errors import RemedyError, StorageError
from coverage_job.pipeline.opened import OpenedRun
from coverage_job.progress import Steps
from coverage_job.remedies import repeat_files
from coverage_job.remedies.proof import DialogueCounter
from coverage_job.remedies.protect import protected_ids
from coverage_job.remedies.repeat import RepeatOptions, build, needs
from coverage_job.storage import exists, join, write_bytes


def new_directory(path: str) -> None:
    """Raises StorageError where `path` exists."""
    if exists(path):
        raise StorageError(f"{path}: exists already; name a directory that does not")


def repeat(
    run_directory: str, output: str, *, scope: str, by_ids: bool, options: RepeatOptions, steps: Steps
) -> str:
    """Write the verified repeat set; returns the line that says how it stands."""
    new_directory(output)
    opened = OpenedRun.open(run_directory)
    coverage = opened.coverage()
    asked = needs(coverage, scope, opened.job.coverage.minimum)
    if not asked:
        raise RemedyError(
            f"{run_directory}: no token in scope {scope} needs a target; there is nothing to write"
        )
    counter = DialogueCounter(opened.renderer(), opened.kernel(), opened.rows, options.max_length)
    with steps.step("build"):
        result = build(coverage, asked, opened.tokenizer, counter, options)
    rows = []
    if by_ids:
        wanted = {m.token_id: result.asked[m.token_id] for m in result.missing}
        rows = repeat_files.id_rows(
            wanted,
            opened.tokenizer,
            counter,
            tokens_per_dialogue=options.tokens_per_dialogue,
            max_length=options.max_length,
        )
    with steps.step("write and count again"):
        repeat_files.write(output, result.dialogues, rows)
        summary = repeat_files.prove(
            output, coverage, result, measure=options.measure, counter=counter, by_ids=bool(rows)
        )
    return summary.line()


def protect(run_directory: str, output: str) -> str:
    """Write `protected_ids.npy`; returns what was written, in a line."""
    new_directory(output)
    ids = protected_ids(OpenedRun.open(run_directory).coverage())
    buffer = io.BytesIO()
    np.save(buffer, ids, allow_pickle=False)
    path = join(output, "protected_ids.npy")
    write_bytes(path, buffer.getvalue())
    return f"protect: {len(ids):,} rows to keep, in {path}; docs/protect.md says how to train with them"
