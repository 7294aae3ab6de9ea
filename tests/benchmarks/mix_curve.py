"""Tokens that a mix brings to their number, by budget, against random documents of the same budget.

    python -m tests.benchmarks.mix_curve RUN_DIR [WORKERS]

RUN_DIR is a run whose job has pre-training text corpora. Each mix is made as the command makes it. Prints a
table and, last, one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from coverage_job.corpus.plan import list_files, make_splits
from coverage_job.corpus.reader import Reader
from coverage_job.corpus.source import resolve
from coverage_job.counting.kept_cuts import cuts_bytes
from coverage_job.counting.task import CorpusSpec, CountSpec, kernel_of
from coverage_job.engines.local import LocalEngine
from coverage_job.pipeline.opened import OpenedRun
from coverage_job.remedies import mix
from coverage_job.remedies.mix_files import collect
from coverage_job.remedies.proof import count_texts
from coverage_job.schemas import Stage

BUDGETS = (100_000, 500_000, 1_000_000, 2_000_000, 4_000_000)


def main() -> None:
    opened = OpenedRun.open(sys.argv[1])
    job = opened.job
    corpora, splits = {}, []
    for corpus in job.corpora:
        if corpus.stage is Stage.PRETRAINING:
            files = list_files(corpus)
            source = resolve(corpus, job, files)
            corpora[corpus.name] = CorpusSpec(source)
            splits += make_splits(corpus.name, files, source, job.engine.split_bytes)
    count = CountSpec(opened.spec, opened.rows, cuts_bytes(opened.spec), job.engine.cache_mib, 256, corpora)
    need = mix.needs(opened.coverage(), opened.rows)
    short = int((need > 0).sum())
    kernel = kernel_of(count)

    # Every document once, with its ids, to draw random ones from.
    documents = []
    for split in splits:
        reader = Reader(corpora[split.corpus].source)
        for piece in split.pieces:
            for batch in reader.open(piece).batches():
                encoded = kernel.encode(batch)
                documents += np.split(encoded.ids, encoded.documents[1:-1])
    order = np.random.default_rng(0).permutation(len(documents))
    ends = np.cumsum([len(documents[i]) for i in order])
    figures = {}
    engine = LocalEngine(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    for budget in BUDGETS:
        drawn = np.concatenate([documents[i] for i in order[: np.searchsorted(ends, budget, "right")]])
        random_have = np.bincount(drawn, minlength=opened.rows)
        start = time.perf_counter()
        spec = mix.MixSpec(count, need, mix.MixOptions(budget), 0)
        chosen = collect(engine, spec, splits, lambda *_: lambda: None)
        seconds = time.perf_counter() - start
        have = count_texts(chosen["text"].to_pylist(), kernel, opened.rows).occurrences
        ours, theirs = (int(((need > 0) & (h >= need)).sum()) for h in (have, random_have))
        figures[budget] = {"mix": ours, "random": theirs, "seconds": seconds}
        print(
            f"{budget:10,} tokens: mix {ours:7,} ({ours / short:.1%} of {short:,}), "
            f"random {theirs:7,}, {ours / max(1, theirs):.1f} x, {len(chosen):,} documents, {seconds:.0f} s",
            flush=True,
        )
    print(json.dumps({"short": short, "curve": figures}))


if __name__ == "__main__":
    main()
