"""Counting text: the kernel against the reference tokenizer and others, on one core, in one run.

    python -m tests.benchmarks.bench_counting [--tokenizer PATH]... [--folder NAME]... [--megabytes N]

Per text, in turn: the reference (`encode_batch_fast` and `bincount`); the kernel with an empty table over the
first 5 MB (cold) and on over the rest, no text twice (warm); tuetoken, kitoken and tiktoken, as far as
they are installed and can read the tokenizer. The kernel's counts must be the reference's; of the others it
is said whether theirs are. Without texts the demo's are taken, with its tokenizer. The last line is JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ["RAYON_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = "1"

import numpy as np
import numpy.typing as npt
import orjson
import zstandard

from coverage_job.config import load_job
from coverage_job.corpus.documents import TextBatch
from coverage_job.counting.cuts import derive
from coverage_job.counting.histogram import Histogram
from coverage_job.counting.kernel import FastKernel
from coverage_job.demo import write_demo
from coverage_job.tokenizer.load import describe, load
from tests.conftest import SHARED

BATCH = 1 << 20
COLD = 5_000_000
Ids = npt.NDArray[Any]


def texts(folder: Path, limit: float) -> Iterator[str]:
    """The texts of a .jsonl, .jsonl.zst or plain file, or of a folder of them, up to `limit` bytes."""
    seen = 0
    for path in sorted(p for p in (folder, *folder.rglob("*")) if p.is_file()):
        if path.suffix == ".zst":
            raw = zstandard.ZstdDecompressor().stream_reader(path.open("rb"))
            lines = io.TextIOWrapper(raw, encoding="utf-8", newline="\n")
        else:
            lines = path.open(encoding="utf-8", newline="\n")
        found = (
            (orjson.loads(line)["text"] for line in lines) if ".jsonl" in path.name else iter([lines.read()])
        )
        for text in found:
            yield text
            seen += len(text.encode())
            if seen >= limit:
                return


def batches(documents: Iterator[str]) -> Iterator[TextBatch]:
    waiting: list[bytes] = []
    size = 0
    for document in documents:
        waiting.append(document.encode())
        size += len(waiting[-1])
        if size >= BATCH:
            yield _batch(waiting)
            waiting, size = [], 0
    if waiting:
        yield _batch(waiting)


def _batch(documents: list[bytes]) -> TextBatch:
    ends = np.cumsum([0] + [len(d) for d in documents]).astype(np.int64)
    n = len(documents)
    text = np.frombuffer(b"".join(documents), np.uint8)
    return TextBatch(text, ends, np.arange(n + 1), None, np.zeros(n, np.int32))


def others(source: str) -> dict[str, Callable[[str], list[int]]]:
    """Other tokenizers that are installed and read this file, as functions from text to ids."""
    found: dict[str, Callable[[str], list[int]]] = {}
    path = source if os.path.isfile(source) else os.path.join(source, "tokenizer.json")
    try:
        import tuetoken

        tue = tuetoken.AutoTokenizer.from_file(path)
        found["tuetoken"] = lambda text: tue.encode(text, add_special_tokens=False)
    except Exception as error:
        print(f"  tuetoken: {str(error)[:80] or type(error).__name__}")
    try:
        import kitoken

        kit = kitoken.Kitoken.from_file(path)
        found["kitoken"] = lambda text: kit.encode(text, True)
    except Exception as error:
        print(f"  kitoken: {str(error)[:80] or type(error).__name__}")
    ranks = list(Path(path).parent.glob("*.tiktoken"))
    if ranks and os.path.isfile(path):
        try:
            import tiktoken
            from tiktoken.load import load_tiktoken_bpe

            split = json.loads(Path(path).read_bytes())["pre_tokenizer"]["pretokenizers"][0]["pattern"][
                "Regex"
            ]
            tik = tiktoken.Encoding(
                "bench", pat_str=split, mergeable_ranks=load_tiktoken_bpe(str(ranks[0])), special_tokens={}
            )
            found["tiktoken"] = lambda text: tik.encode_ordinary(text)
        except Exception as error:
            print(f"  tiktoken: {str(error)[:80] or type(error).__name__}")
    return found


def measure(source: str, folders: list[Path], limit: float) -> dict[str, object]:
    spec = describe(source)
    tokenizer = load(spec)
    start = time.process_time()
    cuts = derive(tokenizer)
    derived = time.process_time() - start
    start = time.process_time()
    FastKernel(tokenizer, cuts, 256)
    compiled = time.process_time() - start
    name = Path(source).name if os.path.isdir(source) else Path(source).parent.name
    print(f"{name}: derived in {derived:.1f} s, compiled or loaded in {compiled:.1f} s {cuts.reason}")
    rivals = others(source)
    mixture, histogram = FastKernel(tokenizer, cuts, 256), Histogram(spec.rows)
    total: dict[str, float] = defaultdict(float)
    rows = {}
    for folder in folders:
        parts = list(batches(texts(folder, limit)))
        strings = [
            [batch.text[a:b].tobytes().decode() for a, b in pairwise(batch.pieces.tolist())]
            for batch in parts
        ]
        size = sum(len(batch.text) for batch in parts)

        def reference(i: int, strings: list[list[str]] = strings) -> Ids:
            encodings = tokenizer.encode_batch_fast(strings[i], add_special_tokens=False)
            return np.concatenate([np.array(e.ids, np.int64) for e in encodings])

        expected, seconds = _timed(reference, len(parts), spec.rows)
        row: dict[str, Any] = {"megabytes": size / 1e6, "reference": size / seconds / 1e6}
        kernel = FastKernel(tokenizer, cuts, 256)
        first = next(
            (i + 1 for i, n in enumerate(np.cumsum([len(b.text) for b in parts])) if n >= COLD), len(parts)
        )
        counts = np.zeros(spec.rows, np.int64)
        for part, some in (("cold", parts[:first]), ("warm", parts[first:])):
            found, spent = _timed(
                lambda i, some=some, kernel=kernel: kernel.encode(some[i]).ids, len(some), spec.rows
            )
            counts += found
            if some:
                row[part] = sum(len(b.text) for b in some) / spent / 1e6
        assert (counts == expected).all(), f"{name}, {folder.name}: counts differ"
        row["left"] = dict(kernel.counters.reference_bytes)
        row["inexact"] = []
        for rival, encode in rivals.items():
            try:
                found, spent = _timed(
                    lambda i, encode=encode, strings=strings: np.concatenate(
                        [np.asarray(encode(s), np.int64) for s in strings[i]]
                    ),
                    len(parts),
                    spec.rows,
                )
                row[rival] = size / spent / 1e6
                if not (found == expected).all():
                    row["inexact"].append(rival)
            except Exception as error:
                print(f"  {rival}: {str(error)[:80]}")
        # All folders one after the other with one table, and what a task adds to encoding.
        start = time.process_time()
        encoded = [mixture.encode(batch) for batch in parts]
        total["kernel"] += time.process_time() - start
        start = time.process_time()
        for tokens in encoded:
            histogram.add(tokens)
        total["histogram"] += time.process_time() - start
        total["reference"] += seconds
        total["bytes"] += size
        said = [
            f"{key} {row[key]:.1f} MB/s ({row[key] / row['reference']:.1f} x"
            f"{', not exact' * (key in row['inexact'])})"
            for key in ("cold", "warm", *rivals)
            if key in row
        ]
        left = f"  left to the reference: {row['left']}" * bool(row["left"])
        said.insert(0, f"{size / 1e6:5.1f} MB  reference {row['reference']:.2f} MB/s")
        print(f"  {folder.name:6s} {'  '.join(said)}{left}")
        rows[folder.name] = row
    print(
        f"  all, from an empty table: {total['bytes'] / total['kernel'] / 1e6:.1f} MB/s"
        f" ({total['reference'] / total['kernel']:.1f} x), the histogram"
        f" {total['histogram'] / total['kernel']:.2f} of that time; load {os.getloadavg()[0]:.1f}"
    )
    return {
        "tokenizer": name,
        "derive_seconds": derived,
        "compile_seconds": compiled,
        "texts": rows,
        "all_ratio": total["reference"] / total["kernel"],
        "load": os.getloadavg()[0],
    }


def _timed(encode: Callable[[int], Ids], n: int, rows: int) -> tuple[Ids, float]:
    """The counts of batches 0 to n - 1, and the seconds that encoding and counting them took."""
    counts = np.zeros(rows, np.int64)
    start = time.process_time()
    for i in range(n):
        counts += np.bincount(encode(i), minlength=rows)[:rows]
    return counts, time.process_time() - start


def linear(source: str) -> dict[str, list[float]]:
    """Seconds for texts that have no place to cut, at 1, 2 and 4 MB."""
    tokenizer = load(describe(source))
    cuts = derive(tokenizer)
    pick = np.random.default_rng(0)
    han = np.arange(0x4E00, 0x9FA5)
    shapes = {
        "no space": lambda n: "".join(map(chr, pick.integers(97, 123, n))),
        "one letter": lambda n: "a" * n,
        "mixed CJK": lambda n: "".join(map(chr, pick.choice(han, n // 3))),
    }
    found = {}
    for name, make in shapes.items():
        kernel = FastKernel(tokenizer, cuts, 256)
        found[name] = []
        for megabytes in (1, 2, 4):
            batch = _batch([make(megabytes * 1_000_000).encode()])
            start = time.process_time()
            kernel.encode(batch)
            found[name].append(time.process_time() - start)
        print(f"  {name:10s} 1, 2, 4 MB: " + ", ".join(f"{s:.2f} s" for s in found[name]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", action="append", help="a tokenizer file or folder")
    parser.add_argument("--texts", type=Path, default=SHARED / "corpora", help="a folder of folders of texts")
    parser.add_argument("--folder", action="append", help="which of them")
    parser.add_argument("--megabytes", type=float, default=1e6, help="at most so much of each")
    options = parser.parse_args()
    sources = options.tokenizer or [str(SHARED / "tokenizers" / "o200k_base")]
    with tempfile.TemporaryDirectory() as temporary:
        if options.texts.is_dir():
            found = [f for f in options.texts.iterdir() if f.is_dir()]
        else:
            print(f"{options.texts} is not there: the demo's text and tokenizer are used")
            demo = load_job(write_demo(Path(temporary) / "demo"))
            found = list((Path(temporary) / "demo" / "pretraining").iterdir())
            file = Path(temporary) / "qwen" / "tokenizer.json"
            file.parent.mkdir()
            load(describe(demo.tokenizer)).save(str(file))
            sources = options.tokenizer or [str(file)]
        folders = sorted(f for f in found if f.name in (options.folder or [f.name]))
        results = [measure(source, folders, options.megabytes * 1e6) for source in sources]
        print("Time by length, where text has no place to cut:")
        lengths = linear(sources[0])
    print(json.dumps({"bench": "counting", "results": results, "linear": lengths}))


if __name__ == "__main__":
    main()
