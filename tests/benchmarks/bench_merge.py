"""What the driver does with many splits and many files: time and memory, of this process.

    PYTHONPATH=. python -m tests.benchmarks.bench_merge [--splits 10000] [--rows 20000] [--files 100000]

- merge: the partial counts of many splits summed. Each has `--rows` tokens of a vocabulary of 200,000, drawn
  as text draws them (token r with weight 1/r): frequent tokens in all of them, rare ones here and there.
- index: a corpus of many small files planned into splits; its snapshot and, as after an interrupted run, its
  parts opened from a store on the local disk and put together.

Each line is measured in a process of its own. Times are of this machine,
with what else runs on it; CPU seconds are of all threads.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from coverage_job.config import Corpus, parse_job
from coverage_job.corpus.content import content_key
from coverage_job.corpus.plan import FileInfo, Split, make_splits
from coverage_job.corpus.reader import PieceStats
from coverage_job.corpus.source import Source, fields_of_schema, resolve_fields
from coverage_job.counting.merge import Merger, sum_counts
from coverage_job.counting.store import StoreSpec, load_kept, write_snapshot
from coverage_job.counting.tally import PieceReport, Tally
from coverage_job.counting.task import TASK_OUTPUT
from coverage_job.schemas import PARTIAL, Stage

VOCABULARY = 200_000
# Different partials; what is summed does not get smaller by repeating them.
DISTINCT = 64


def counts(chance: np.random.Generator, rows: int, unit: str) -> list[pa.Array]:
    """Columns of schema PARTIAL: `rows` distinct tokens and their counts."""
    weights = 1.0 / np.arange(1, VOCABULARY + 1)
    ids = np.sort(chance.choice(VOCABULARY, rows, replace=False, p=weights / weights.sum()))
    occurrences = np.maximum(3e7 * weights[ids] / weights.sum(), 1).astype(np.int64)
    numbers = [occurrences, np.minimum(occurrences, 30_000), occurrences, np.minimum(occurrences, 30_000)]
    texts = [pa.array([value] * rows, pa.string()) for value in (unit, "", "")]
    return [*texts, pa.array(ids, pa.int32()), *map(pa.array, numbers)]


def partials(splits: int, rows: int) -> Iterator[pa.RecordBatch]:
    chance = np.random.default_rng(7)
    made = [
        pa.record_batch([*counts(chance, rows, "web"), pa.nulls(rows, pa.string())], schema=TASK_OUTPUT)
        for _ in range(DISTINCT)
    ]
    for i in range(splits):
        yield made[i % DISTINCT]


def listed(files: int) -> list[FileInfo]:
    return [FileInfo(f"memory://bucket/web/part-{i:06}.jsonl", 200_000, f"etag{i}") for i in range(files)]


def plan(infos: list[FileInfo]) -> tuple[list[Split], dict[str, str]]:
    corpus = Corpus(name="web", stage=Stage.PRETRAINING, path="memory://bucket/web")
    splits = make_splits("web", infos, jsonl(corpus), 128 << 20)
    return splits, {info.path: content_key(info, "quick") for info in infos}


def jsonl(corpus: Corpus) -> Source:
    job = parse_job({"tokenizer": "t", "corpora": [corpus.model_dump(mode="json")]}, base=Path("/"))
    return resolve_fields(job.corpora[0], job, "jsonl", fields_of_schema(pa.schema([("text", pa.string())])))


def report(what: str, start: tuple[float, float], size: str) -> None:
    wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:36s} {size:>36s} {wall:8.1f} s {cpu:8.1f} s CPU {peak:6.0f} MiB peak", flush=True)


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def merge(options: argparse.Namespace) -> None:
    stream = partials(options.splits, options.rows)
    first = next(stream)
    start = now()
    merger = Merger()
    merger.add(first)
    for batch in stream:
        merger.add(batch)
    table, _ = merger.result()
    total = options.splits * options.rows
    assert sum(table["documents"].to_pylist()) > 0
    report("partials merged", start, f"{options.splits:,} x {options.rows:,} = {total:,} rows")


def index_plan(options: argparse.Namespace) -> None:
    infos = listed(options.files)
    start = now()
    splits, keys = plan(infos)
    assert len(set(keys.values())) == options.files
    report("index planned, content keys made", start, f"{len(infos):,} files, {len(splits):,} splits")


def write(folder: str, options: argparse.Namespace, snapshot: bool) -> tuple[dict[str, str], dict[str, int]]:
    infos = listed(options.files)
    splits, keys = plan(infos)
    chance = np.random.default_rng(7)
    if snapshot:
        table = pa.table(counts(chance, 100_000, ""), schema=PARTIAL)
        write_snapshot(folder, keys.values(), table, Tally(), {})
    else:
        spec = StoreSpec(folder, keys)
        per_file = max(options.rows // 100, 1)
        for split in splits:
            pieces = split.pieces
            reports = [PieceReport(PieceStats(p.path, p.start, p.end, p.size, 9, 9)) for p in pieces]
            batches = [pa.record_batch(counts(chance, per_file, p.path), schema=PARTIAL) for p in pieces]
            spec.write_part(split, reports, {}, batches)
    return keys, {info.path: info.size for info in infos}


def index_open(options: argparse.Namespace, snapshot: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # In a process of its own, so that the peak is that of reading.
        what = "write-snapshot" if snapshot else "write-parts"
        subprocess.run([*options.command, what, "--folder", folder], check=True)
        infos = listed(options.files)
        _, keys = plan(infos)
        start = now()
        kept = load_kept(folder, keys, {info.path: info.size for info in infos})
        assert len(kept.files) == options.files
        rows = sum(len(t) for t in kept.counts)
        sum_counts(kept.counts, "web")
        what = "unchanged corpus, from its snapshot" if snapshot else "interrupted corpus, from its parts"
        report(what, start, f"{options.files:,} files, {rows:,} rows")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?")
    parser.add_argument("--splits", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--folder")
    options = parser.parse_args()
    sizes = [f"--splits={options.splits}", f"--rows={options.rows}", f"--files={options.files}"]
    options.command = [sys.executable, "-m", "tests.benchmarks.bench_merge", *sizes]
    if options.what is None:
        for what in ("merge", "plan", "snapshot", "parts"):
            subprocess.run([*options.command, what], check=True)
    elif options.what == "merge":
        merge(options)
    elif options.what == "plan":
        index_plan(options)
    elif options.what.startswith("write-"):
        write(options.folder, options, options.what == "write-snapshot")
    else:
        index_open(options, options.what == "snapshot")


if __name__ == "__main__":
    main()
