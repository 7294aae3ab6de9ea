"""The remedies' commands: from a run to data, ids and proposals, each with its proof."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain, count
from typing import Any

import numpy as np
import orjson

from coverage_job.config import Job, is_remote
from coverage_job.errors import RemedyError, StorageError
from coverage_job.pipeline.counts import compile_here, count_spec
from coverage_job.pipeline.opened import OpenedRun
from coverage_job.pipeline.plan import make_plan, open_engine
from coverage_job.progress import Steps
from coverage_job.remedies import mix_files, repeat_files
from coverage_job.remedies import prune as pruning
from coverage_job.remedies.mix import MixOptions, MixSpec
from coverage_job.remedies.mix import needs as mix_needs
from coverage_job.remedies.proof import DialogueCounter
from coverage_job.remedies.protect import protected_ids
from coverage_job.remedies.repeat import RepeatOptions, build, needs
from coverage_job.schemas import Stage
from coverage_job.storage import exists, join, write_bytes, write_parquet


def new_directory(path: str) -> None:
    """Raises StorageError where `path` exists."""
    if exists(path):
        raise StorageError(f"{path}: exists already; name a directory that does not")


def repeat(
    run_directory: str, output: str, *, scope: str, by_ids: bool, options: RepeatOptions, steps: Steps
) -> str:
    """Write the verified repeat set; returns what to print: how it stands, and how to count it."""
    new_directory(output)
    opened = OpenedRun.open(run_directory)
    coverage = opened.coverage()
    asked = needs(coverage, scope, opened.job.coverage.minimum)
    if not asked:
        raise RemedyError(
            f"{run_directory}: no token in scope {scope} needs a target; there is nothing to write"
        )
    counter = DialogueCounter(opened.renderer(), opened.kernel(), opened.rows, options.max_length)
    with steps.step("build", total=sum(asked.values()), unit="targets") as step:
        result = build(coverage, asked, opened.tokenizer, counter, options, step.reach)
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
    parts = []
    if result.dialogues:
        parts.append(("repeat", repeat_files.JSONL, {"shape": "messages"}))
    if rows:
        parts.append(("repeat_ids", repeat_files.IDS, {"shape": "tokens"}))
    return summary.line() + _to_add(opened.job, output, Stage.POSTTRAINING, parts)


def _to_add(job: Job, output: str, stage: Stage, parts: list[tuple[str, str, dict[str, Any]]]) -> str:
    """What was written, and the entries that count it, as they go into the job file.

    parts: per file, a name for the corpus, the file's name, and further keys.
    """
    taken = {c.name for c in job.corpora}
    lines = []
    for name, file, keys in parts:
        free = next(n for n in chain([name], (f"{name}{i}" for i in count(2))) if n not in taken)
        path = join(output, file)
        # The job file's folder is not this one.
        path = path if is_remote(path) else os.path.abspath(path)
        entry = {"name": free, "stage": stage.value, "path": path, **keys}
        # JSON of one line is YAML too, whatever stands in a path.
        values = ", ".join(f"{key}: {orjson.dumps(value).decode()}" for key, value in entry.items())
        lines.append(f"  - {{{values}}}")
    return "\n".join([f"\nwritten in {output}; to count it, add to the job file:", "corpora:", *lines])


def protect(run_directory: str, output: str) -> str:
    """Write `protected_ids.npy`; returns what was written, in a line."""
    new_directory(output)
    ids = protected_ids(OpenedRun.open(run_directory).coverage())
    buffer = io.BytesIO()
    np.save(buffer, ids, allow_pickle=False)
    path = join(output, "protected_ids.npy")
    write_bytes(path, buffer.getvalue())
    return f"protect: {len(ids):,} rows to keep, in {path}; docs/protect.md says how to train with them"


def mix(run_directory: str, output: str, *, engine_name: str, options: MixOptions, steps: Steps) -> str:
    """Choose and write pre-training documents that cover what is short; returns what to print."""
    new_directory(output)
    opened = OpenedRun.open(run_directory)
    coverage = opened.coverage()
    need = mix_needs(coverage, opened.rows)
    if not need.any():
        raise RemedyError(f"{run_directory}: no token is short that the corpora hold often enough to mix in")
    pretraining = [c for c in opened.job.corpora if c.stage is Stage.PRETRAINING and c.table is None]
    if not pretraining:
        raise RemedyError(f"{run_directory}: the job has no pre-training files to choose from")
    job = opened.job.model_copy(update={"corpora": pretraining})
    with open_engine(engine_name, job, steps) as engine:
        plan = make_plan(job, engine, steps)
        texts = [c for c in plan.corpora if c.source.shape == "text"]
        spec = count_spec(plan, (), steps)
        compile_here(spec, engine, steps)
        with ExitStack() as stack:

            def phase(name: str, total: int) -> Callable[[], None]:
                stack.close()  # the phase before is over
                return stack.enter_context(steps.step(name, total=total, unit="tasks")).advance

            documents = mix_files.collect(
                engine, MixSpec(spec, need, options, 0), [s for c in texts for s in c.splits], phase
            )
    mix_files.write(output, documents)
    with steps.step("count again"):
        summary = mix_files.prove(output, coverage, opened.kernel(), options.budget_tokens)
    parts = [("mix", mix_files.JSONL, {"shape": "text", "mixed_in": 1})]
    said = summary.line() + _to_add(opened.job, output, Stage.PRETRAINING, parts)
    if opened.job.coverage.measure != "expected_updates":
        said += (
            f"\n# mixed_in lifts no status under coverage.measure: {opened.job.coverage.measure}; "
            "expected_updates counts it"
        )
    return said


def prune(
    run_directory: str, output: str, *, max_pretraining: int, max_posttraining: int, apply: bool
) -> str:
    """Write the pruning proposal and, with `apply`, the pruned tokenizer.json; returns what it saves."""
    new_directory(output)
    opened = OpenedRun.open(run_directory)
    proposal = pruning.propose(
        opened.coverage(),
        opened.tokenizer,
        max_pretraining=max_pretraining,
        max_posttraining=max_posttraining,
    )
    write_parquet(join(output, "prune_map.parquet"), proposal.to_arrow())
    if apply:
        made = pruning.apply(orjson.loads(opened.tokenizer.to_str()), pruning.id_map(proposal))
        write_bytes(join(output, "tokenizer.json"), orjson.dumps(made))
    return pruning.line(proposal)
