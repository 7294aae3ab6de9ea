"""Tokens that a mix brings to their number, by budget, against random documents of the same budget.

    python -m tests.benchmarks.mix_curve RUN_DIR [WORKERS]

RUN_DIR is a run whose job has pre-training text corpora. Each mix is made as the command makes it, once of
passages and, at the last budget, once of whole documents. Prints a table, what no choice of whole documents,
and none of passages, can exceed at the last budget, and, last, one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise

import numpy as np

from coverage_job.corpus.batches import TextBuilder
from coverage_job.corpus.documents import Int32, Int64, TextBatch, TokenBatch
from coverage_job.corpus.plan import list_files, make_splits
from coverage_job.corpus.reader import Reader
from coverage_job.corpus.source import resolve
from coverage_job.counting.kept_cuts import cuts_bytes
from coverage_job.counting.task import CorpusSpec, CountSpec
from coverage_job.engines.local import LocalEngine
from coverage_job.pipeline.opened import OpenedRun
from coverage_job.remedies import mix
from coverage_job.remedies.cover import Bool, Documents, tally
from coverage_job.remedies.mix_files import collect
from coverage_job.remedies.proof import count_texts
from coverage_job.schemas import Stage

BUDGETS = (250_000, 500_000, 1_000_000, 2_000_000)


def upper_bound(documents: Documents, need: Int64, budget: int, steps: int = 60) -> float:
    """Tokens that no choice of documents within the budget can exceed.

    Lagrangian dual of: sum of y, y <= supplied / need, y <= 1, with fractions of documents and of tokens
    allowed. Every step's value is a bound; the least is given.
    """
    wanted = need > 0
    share = 1 / np.maximum(need, 1)
    price = np.where(wanted, 0.5, 0.0)
    owner = np.repeat(np.arange(len(documents)), np.diff(documents.borders))
    part = np.minimum(documents.counts, need[documents.ids]) * share[documents.ids]
    cost = np.maximum(documents.cost, 1)
    least = float(wanted.sum())
    for step in range(steps):
        worth = np.bincount(owner, price[documents.ids] * part, len(documents))
        order = np.argsort(-worth / cost, kind="stable")
        whole = int(np.searchsorted(np.cumsum(cost[order]), budget, side="right"))
        taken = np.zeros(len(documents))
        taken[order[:whole]] = 1
        # The next one counts in full: more than its fraction.
        value = float((1 - price)[wanted].sum() + worth[order[: whole + 1]].sum())
        least = min(least, value)
        brought = np.bincount(documents.ids, part * taken[owner], len(need))
        price = np.where(
            wanted, np.clip(price - 0.25 / np.sqrt(1 + step / 4) * (np.minimum(brought, 2) - 1), 0, 1), 0
        )
    return least


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
    coverage = opened.coverage()
    need = mix.needs(coverage, opened.rows)
    flagged = int(((coverage["deficit"] > 0) & (coverage["status"] != "exempt")).sum())
    short = int((need > 0).sum())
    kernel = count.kernel()

    # Every document once, with its ids, to draw random ones from; and what whole documents and passages hold.
    documents = []
    held: list[list[tuple[int, Int32, Int32]]] = [[], []]
    for split in splits:
        reader = Reader(corpora[split.corpus].source)
        for piece in split.pieces:
            for batch in reader.open(piece).batches():
                assert isinstance(batch, TextBatch)
                encoded = kernel.encode(batch)
                documents += np.split(encoded.ids, encoded.documents[1:-1])
                _hold(held[0], encoded, need > 0)
                cut = TextBuilder(spanned=False)
                text = batch.text.tobytes()
                borders = batch.pieces[batch.documents].tolist()
                for first, last in pairwise(borders):
                    for a, b in mix.passages(text[first:last], mix.MixOptions(0).passage_bytes):
                        for made in cut.add((text[first + a : first + b],), None, 0):
                            _hold(held[1], kernel.encode(made), need > 0)
                if len(cut):
                    _hold(held[1], kernel.encode(cut.take()), need > 0)
    lengths = [len(d) for d in documents]
    print(f"{len(documents):,} documents of {sum(lengths):,} tokens; {short:,} tokens are held often enough")
    bounds = {}
    for name, parts in zip(("whole documents", "passages"), held, strict=True):
        bounds[name] = upper_bound(
            Documents.of(*zip(*parts, strict=True)), need.astype(np.int64), BUDGETS[-1]
        )
        parts.clear()
        print(
            f"at {BUDGETS[-1]:,} tokens no choice of {name} brings more than {bounds[name]:,.0f}", flush=True
        )
    orders = [np.random.default_rng(seed).permutation(len(documents)) for seed in range(3)]
    figures = {}
    engine = LocalEngine(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    default = mix.MixOptions(0).passage_bytes
    for budget, passage_bytes in [*((b, default) for b in BUDGETS), (BUDGETS[-1], 0)]:
        theirs = int(np.mean([_reached(need, _draw(documents, o, budget, opened.rows)) for o in orders]))
        start = time.perf_counter()
        options = mix.MixOptions(budget, passage_bytes=passage_bytes)
        chosen = collect(engine, mix.MixSpec(count, need, options, 0), splits, lambda *_: lambda: None)
        seconds = time.perf_counter() - start
        counted = count_texts(chosen["text"].to_pylist(), kernel, opened.rows)
        assert counted.tokens.sum() <= budget
        ours = _reached(need, counted.occurrences)
        figures[f"{budget}/{passage_bytes}"] = {"mix": ours, "random": theirs, "seconds": seconds}
        print(
            f"{budget:10,} tokens, passages of {passage_bytes or 'any'} bytes: mix {ours:7,} "
            f"({ours / short:.1%} of {short:,}, {ours / flagged:.1%} of all {flagged:,} flagged), random "
            f"{theirs:7,}, {ours / max(1, theirs):.2f} x, {len(chosen):,} passages, {seconds:.0f} s",
            flush=True,
        )
    print(json.dumps({"short": short, "bounds": bounds, "curve": figures}))


def _hold(found: list[tuple[int, Int32, Int32]], encoded: TokenBatch, wanted: Bool) -> None:
    lengths = np.diff(encoded.documents)
    document, ids, counts = tally(encoded.ids, encoded.documents, wanted)
    borders = np.searchsorted(document, np.arange(len(lengths) + 1))
    for n, a, b in zip(lengths.tolist(), borders, borders[1:], strict=False):
        if a < b:
            found.append((n, ids[a:b], counts[a:b]))


def _draw(documents: list[Int32], order: Int64, budget: int, rows: int) -> Int64:
    ends = np.cumsum([len(documents[i]) for i in order])
    drawn = [documents[i] for i in order[: np.searchsorted(ends, budget, "right")]]
    return np.bincount(np.concatenate(drawn), minlength=rows)


def _reached(need: Int32, have: Int64) -> int:
    return int(((need > 0) & (have >= need)).sum())


if __name__ == "__main__":
    main()
