"""Counting a corpus on each engine, against the kernel's own time and against what a user would do instead.

    python -m tests.benchmarks.bench_engines [--texts FOLDER] [--tokenizer PATH] [--megabytes N]
        [--repeat K] [--skip spark,datasets]

Over the same files, in one run: `count_split` over all splits in this process (the kernel's own time, with
the shares of reading, encoding and the histogram); `coverage-job run` on the local engine with 1 and 2
workers and on Spark's `local[2]`, each in a process of its own; `datasets.map(tokenize)` and `bincount`. All
must count the same. What is derived, compiled and explained once per tokenizer is made before anything is
timed. Prints a table of wall times, with the targets, and, last, one line of JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["RAYON_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from coverage_job.config import Job, RankFile, parse_job, read_yaml
from coverage_job.corpus.documents import TextBatch
from coverage_job.corpus.plan import Split
from coverage_job.corpus.reader import Reader
from coverage_job.counting.cuts import Cuts
from coverage_job.counting.histogram import Histogram
from coverage_job.counting.kernel import FastKernel
from coverage_job.counting.merge import Merger
from coverage_job.counting.task import CountSpec, count_split
from coverage_job.demo import write_demo
from coverage_job.engines.spark import unavailable
from coverage_job.pipeline.counts import OPEN, count_spec, ids_of
from coverage_job.pipeline.plan import make_plan
from coverage_job.progress import Steps
from coverage_job.tokenizer.load import load
from coverage_job.tokenizer.vocabulary import vocabulary_table
from tests.conftest import SHARED

WARM_UP_BYTES = 100_000


def lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        raw = zstandard.ZstdDecompressor().stream_reader(file) if path.suffix == ".zst" else file
        yield from io.BufferedReader(raw)


def cut(files: list[Path], limit: float, target: Path) -> None:
    """The first records of some files, up to `limit` bytes of text, as one file."""
    seen = 0
    with target.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as out:
        for line in (line for path in files for line in lines(path)):
            seen += len(orjson.loads(line)["text"].encode())
            out.write(line)
            if seen >= limit:
                return


def lay_out(corpora: dict[str, list[Path]], folder: Path, limit: float, repeat: int) -> None:
    """A folder per corpus, which holds links to its files, or to its first `limit` bytes, `repeat` times."""
    for name, files in corpora.items():
        (folder / name).mkdir(parents=True)
        if limit:
            part = folder / f"{name}.jsonl.zst"
            cut(files, limit, part)
            files = [part]
        for path in files:
            for k in range(repeat):
                (folder / name / f"{k}-{path.name}").symlink_to(path.absolute())


def write_job(folder: Path, tokenizer: object) -> Path:
    corpora = []
    for path in sorted(p for p in folder.iterdir() if p.is_dir()):
        first = orjson.loads(next(lines(next(path.iterdir()))))
        language = {"language_field": "lang"} if "lang" in first else {}
        corpora.append({"name": path.name, "stage": "pretraining", "path": f"{path}/*", **language})
    path = folder / "job.json"
    path.write_bytes(orjson.dumps({"tokenizer": tokenizer, "chat_template": "none", "corpora": corpora}))
    return path


def plan(path: Path) -> tuple[CountSpec, list[Split]]:
    """What a run of the job counts, and how it is split."""
    steps = Steps(quiet=True)
    made = make_plan(read_job(path), None, steps)
    vocabulary = vocabulary_table(made.tokenizer, made.job.model_vocab_size)
    spec = count_spec(made, ids_of(vocabulary, OPEN), steps)
    return spec, [split for corpus in made.corpora for split in corpus.splits]


def read_job(path: Path) -> Job:
    return parse_job(read_yaml(path.read_text(encoding="utf-8")), base=path.parent)


def whole(spec: CountSpec, splits: list[Split]) -> tuple[dict[str, float], npt.NDArray[np.int64]]:
    """Wall and CPU seconds of all that a task does, over all splits, and the occurrences by token."""
    merger = Merger()
    wall, cpu = time.perf_counter(), time.process_time()
    for split in splits:
        for batch in count_split(spec, split):
            merger.add(batch)
    figures = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    return figures, occurrences(merger.result()[0], spec.rows)


def occurrences(table: pa.Table, rows: int) -> npt.NDArray[np.int64]:
    counts = np.zeros(rows, np.int64)
    np.add.at(counts, table["token_id"].to_numpy(), table["occurrences"].to_numpy())
    return counts


def parts(spec: CountSpec, splits: list[Split]) -> tuple[dict[str, float], int]:
    """Wall seconds of reading, encoding and the histogram alone, and the bytes of text read."""
    kernel = FastKernel(load(spec.tokenizer), Cuts.from_bytes(spec.cuts), spec.cache_mib)
    clock = time.perf_counter
    read = encode = add = 0.0
    size = 0
    for split in splits:
        reader, histogram = Reader(spec.corpora[split.corpus].source, rows=spec.rows), Histogram(spec.rows)
        for piece in split.pieces:
            batches = reader.open(piece).batches()
            while True:
                start = clock()
                batch = next(batches, None)
                read += clock() - start
                if batch is None:
                    break
                assert isinstance(batch, TextBatch)
                size += len(batch.text)
                start = clock()
                tokens = kernel.encode(batch)
                encoded = clock()
                histogram.add(tokens)
                encode += encoded - start
                add += clock() - encoded
            histogram.keep()
    return {"reading": read, "encoding": encode, "histogram": add}, size


def run_job(path: Path, engine: str, workers: int) -> tuple[dict[str, Any], pa.Table]:
    """Seconds of a run of the command, by step, and its histogram."""
    output = path.parent / f"run-{engine}-{workers}"
    command = [sys.executable, "-m", "coverage_job", "run", str(path), "--engine", engine]
    command += ["--output", str(output), "--set", f"engine.workers={workers}"]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    total = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    info = json.loads((output / "run.json").read_bytes())
    figures = {
        "cores": workers,
        "total": total,
        "count": info["seconds"]["count"],
        "session": info["seconds"].get("session", 0.0),
        "tasks": sum(corpus["seconds"] for corpus in info["corpora"]),
        "peak_bytes": info["peak_bytes"],
    }
    return figures, pq.read_table(output / "histogram.parquet")


def by_datasets(
    spec: CountSpec, corpora: list[list[str]], folder: Path
) -> tuple[dict[str, float], npt.NDArray[np.int64]]:
    """Wall and CPU seconds of tokenizing with datasets.map and counting, and the occurrences by token."""
    import datasets

    datasets.disable_progress_bars()
    pa.set_cpu_count(1)
    tokenizer = load(spec.tokenizer)

    def tokenize(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        encodings = tokenizer.encode_batch_fast(batch["text"], add_special_tokens=False)
        return {"input_ids": [encoding.ids for encoding in encodings]}

    wall, cpu = time.perf_counter(), time.process_time()
    counts = np.zeros(spec.rows, np.int64)
    for number, files in enumerate(corpora):
        texts = datasets.load_dataset("json", data_files=files, split="train", cache_dir=str(folder))
        # Named, since hashing the tokenizer for a name is no part of counting.
        name = f"bench{number}"
        tokens = texts.map(tokenize, batched=True, remove_columns=texts.column_names, new_fingerprint=name)
        for chunk in tokens.data.column("input_ids").chunks:
            counts += np.bincount(chunk.flatten().to_numpy(), minlength=spec.rows)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}, counts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=Path, help="a folder of folders of .jsonl or .jsonl.zst files")
    parser.add_argument("--tokenizer", help="a tokenizer file or folder")
    parser.add_argument("--megabytes", type=float, default=0, help="at most so much text of each folder")
    parser.add_argument("--repeat", type=int, default=1, help="count each file so many times")
    parser.add_argument("--skip", default="", help="what is not measured: spark, datasets")
    options = parser.parse_args()
    skip = set(options.skip.split(","))
    if "spark" not in skip and (why_not := unavailable()):
        print(f"spark is not measured: {why_not}")
        skip.add("spark")
    with tempfile.TemporaryDirectory() as temporary:
        measure(options, skip, Path(temporary))


def measure(options: argparse.Namespace, skip: set[str], temporary: Path) -> None:
    texts = options.texts or SHARED / "corpora"
    tokenizer: Any = options.tokenizer or str(SHARED / "tokenizers" / "o200k_base")
    if texts.is_dir():
        corpora = {
            f.name: sorted(p for p in f.rglob("*") if p.is_file()) for f in texts.iterdir() if f.is_dir()
        }
    else:
        print(f"{texts} is not there: the demo's text and tokenizer are used")
        demo = read_job(write_demo(temporary / "demo"))
        assert isinstance(demo.tokenizer, RankFile)
        corpora = {path.stem: [path] for path in (temporary / "demo" / "pretraining").iterdir()}
        tokenizer = options.tokenizer or demo.tokenizer.model_dump()
    lay_out(corpora, temporary / "job", options.megabytes * 1e6, options.repeat)
    job = write_job(temporary / "job", tokenizer)
    lay_out(corpora, temporary / "warm", WARM_UP_BYTES, 1)
    warm_up = write_job(temporary / "warm", tokenizer)

    start = time.perf_counter()
    run_job(warm_up, "local", 1)
    whole(*plan(warm_up))
    print(f"Caches warmed in {time.perf_counter() - start:.1f} s, which no figure holds.")

    spec, splits = plan(job)
    shares, size = parts(spec, splits)
    kernel, expected = whole(spec, splits)
    megabytes = size / 1e6
    made = f", made by counting each file {options.repeat} times" if options.repeat > 1 else ""
    print(
        f"{megabytes:.1f} MB of text{made}; {len(splits)} splits; {expected.sum():,} tokens; "
        f"{os.path.basename(os.path.dirname(spec.tokenizer.path))}; load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'':34}    wall s    MB/s   x kernel")

    def row(name: str, seconds: float, ratio: float, said: str = "") -> None:
        print(f"{name:34}{seconds:10.2f}{megabytes / seconds:8.1f}{ratio:10.2f}{said}", flush=True)

    own = kernel["wall"]
    row("kernel's own time, one process", own, 1.0, f"   {kernel['cpu']:.2f} s of CPU")
    for name, seconds in shares.items():
        row(f"  {name} alone", seconds, seconds / own)
    row("  all else (audit, output)", rest := own - sum(shares.values()), rest / own)

    engines: dict[str, dict[str, Any]] = {}
    tables = []
    for engine, workers in (("local", 1), ("local", 2), ("spark", 2)):
        if engine in skip:
            continue
        figures, table = run_job(job, engine, workers)
        engines[f"{engine} {workers}"] = figures
        tables.append(table)
        target = 1.3 if engine == "spark" else 1.15
        figures["ratio"] = figures["count"] / (own / workers)
        said = f" of {'a half' if workers == 2 else 'one'}   target {target}"
        # Workers load the tokenizer and the kernel before their first task's clock starts.
        idle = figures["count"] - figures["tasks"] / workers
        said += f"   of it {idle:.2f} s starting workers, waiting and merging"
        row(f"{engine}, {workers} at once: count", figures["count"], figures["ratio"], said)
        if figures["session"]:
            print(f"  session start {figures['session']:20.2f}")
        print(f"  whole command {figures['total']:20.2f}")
    scaling = engines["local 1"]["count"] / engines["local 2"]["count"]
    print(f"local, 2 workers against 1: {scaling:.2f} x as fast, target 1.8")
    assert all(table.equals(tables[0]) for table in tables), "the engines' histograms differ"
    assert (occurrences(tables[0], spec.rows) == expected).all(), "counts differ from the kernel's"

    user: dict[str, float] = {}
    if "datasets" not in skip:
        # The files once: repeating them changes neither its MB/s nor what its counts must be.
        once = [[str(p) for p in sorted((job.parent / name).glob("0-*"))] for name in corpora]
        user, counts = by_datasets(spec, once, temporary / "datasets")
        seconds = user["wall"] * options.repeat
        row(
            "datasets.map and bincount",
            seconds,
            seconds / own,
            " (files once, times repeat)" * (options.repeat > 1),
        )
        assert (counts * options.repeat == expected).all(), "counts differ from those of datasets.map"
    figures = {"megabytes": megabytes, "repeat": options.repeat, "kernel": kernel, "shares": shares}
    figures |= {"engines": engines, "scaling": scaling, "datasets": user, "load": os.getloadavg()[0]}
    print(json.dumps({"bench": "engines", **figures}))


if __name__ == "__main__":
    main()
