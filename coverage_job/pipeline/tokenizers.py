"""Whether pre-training and post-training used the same tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from coverage_job.corpus.documents import Int64, TextBatch
from coverage_job.corpus.reader import Reader
from coverage_job.errors import JobError
from coverage_job.pipeline.opened import OpenedRun
from coverage_job.pipeline.plan import Plan
from coverage_job.progress import Steps
from coverage_job.storage import exists, join
from coverage_job.tokenizer.compare import compare, row_map
from coverage_job.tokenizer.load import describe

# Documents of each pre-training corpus that both tokenizers encode.
_DOCUMENTS = 100


def compare_with_pretraining(plan: Plan, steps: Steps) -> dict[str, Any] | None:
    """An entry for `run.json` where the job names a pre-training tokenizer; None where it does not."""
    if plan.job.pretraining_tokenizer is None:
        return None
    with steps.step("compare tokenizers"):
        found = compare(describe(plan.job.pretraining_tokenizer), plan.tokenizer, _sample(plan))
    if not found.same:
        steps.say(
            f"warning: the pre-training tokenizer differs: {len(found.moved):,} ids moved, "
            f"{len(found.only_a):,} gone, {len(found.only_b):,} added, {found.texts_differing:,} of "
            f"{found.texts:,} documents encode differently; see `coverage-job tokenizer compare`"
        )
    return {
        "sha256": found.a.sha256,
        "same": found.same,
        "moved": len(found.moved),
        "only_in_pretraining": len(found.only_a),
        "only_in_posttraining": len(found.only_b),
        "merges_only_in_pretraining": None if found.merges_only_a is None else len(found.merges_only_a),
        "merges_only_in_posttraining": None if found.merges_only_b is None else len(found.merges_only_b),
        "scores_differing": found.scores_differing,
        "settings": [list(s) for s in found.settings],
        "texts": found.texts,
        "texts_differing": found.texts_differing,
        "examples": [asdict(e) for e in found.examples],
    }


def matched_rows(before: str | None, after: str | None, run_directory: str | None) -> Int64 | None:
    """The base's row of each token, where the two tokenizers give some of them different ids; else None.

    before, after: the checkpoints' tokenizers; after may be left to the run's own.
    """
    if before is None:
        return None
    if after is not None:
        return row_map(describe(before), describe(after))
    if run_directory is None or not exists(join(run_directory, "run.json")):
        raise JobError("--tokenizer-before: needs the trained model's tokenizer too; give --tokenizer")
    return row_map(describe(before), OpenedRun.open(run_directory).spec)


def _sample(plan: Plan) -> Iterator[str]:
    """The first documents of each pre-training corpus of text."""
    for c in plan.corpora:
        if not c.source.pretraining or c.source.shape != "text" or not c.splits:
            continue
        left = _DOCUMENTS
        for batch in Reader(c.source).open(c.splits[0].pieces[0]).batches():
            assert isinstance(batch, TextBatch)
            for i in range(min(left, len(batch))):
                start, end = batch.pieces[batch.documents[i]], batch.pieces[batch.documents[i + 1]]
                yield bytes(batch.text[start:end]).decode()
            left -= min(left, len(batch))
            if left == 0:
                break
