"""Row drift of two real-size checkpoints against the mere reading of the same bytes.

    python tests/benchmarks/bench_drift.py [--rows 200064] [--columns 4096] [--folder DIR]

Prints the seconds of both (best of three, the files in the page cache), their ratio, and the peak memory.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np

from coverage_job.checkpoint.matrix import Matrix
from coverage_job.checkpoint.read import open_checkpoint
from coverage_job.drift.score import score_rows
from tests.benchmarks.planted_pair import ROWS, write_pair

BLOCK = 1 << 20


@numba.njit(nogil=True)
def widen(block, out):
    for i in range(block.shape[0]):
        xs, ys = block[i], out[i]
        for j in range(len(xs)):
            ys[j] = np.uint32(np.uint32(xs[j]) << np.uint32(16)).view(np.float32)


def read_and_convert(matrices: list[Matrix], threads: int) -> None:
    """What any program must do: fetch each block and make float32 of it."""

    def work(matrix: Matrix, first: int) -> None:
        rows = max(1, BLOCK // matrix.row_bytes)
        block = np.empty((rows, matrix.shape[1]), dtype=np.uint16)
        wide = np.empty((rows, matrix.shape[1]), dtype=np.float32)
        for start in range(first * rows, matrix.shape[0], threads * rows):
            got = matrix.raw(start, min(matrix.shape[0], start + rows), block)
            widen(got, wide[: len(got)])

    with ThreadPoolExecutor(threads) as pool:
        for matrix in matrices:
            list(pool.map(work, [matrix] * threads, range(threads)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--folder", type=Path, help="where the pair is written, and found again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "before").exists():
            write_pair(folder, options.rows, options.columns)
        measure(folder)


def measure(folder: Path) -> None:
    before, after = (open_checkpoint(str(folder / side)) for side in ("before", "after"))
    roles = ("lm_head", "embedding")
    pairs = [(before.matrix(role), after.matrix(role)) for role in roles]
    matrices = [matrix for pair in pairs for matrix in pair]
    size = sum(matrix.nbytes for matrix in matrices)
    threads = len(os.sched_getaffinity(0))
    widen(np.zeros((1, 8), np.uint16), np.zeros((1, 8), np.float32))
    results = [score_rows(a, b) for a, b in pairs]  # compiles, and fills the page cache
    reading, scoring, used = [], [], []
    for _ in range(3):
        start, begun = time.perf_counter(), time.process_time()
        read_and_convert(matrices, threads)
        middle, turned = time.perf_counter(), time.process_time()
        results = [score_rows(a, b) for a, b in pairs]
        reading.append(middle - start)
        scoring.append(time.perf_counter() - middle)
        used.append((turned - begun, time.process_time() - turned))
    cosine = results[0].cosine
    print(f"{size / 1e9:.2f} GB on {threads} threads, load {os.getloadavg()[0]:.1f}")
    for i, (what, taken) in enumerate((("read and convert", reading), ("cosine and L2", scoring))):
        rate, processor = size / min(taken) / 1e9, min(u[i] for u in used)
        print(f"{what:17s} {min(taken):6.2f} s  {rate:.1f} GB/s  {processor:.2f} s of processors")
    print(f"ratio             {min(scoring) / min(reading):6.2f}")
    print(f"peak memory       {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:6.0f} MiB")
    print(
        f"lm_head: mean {cosine.mean():.4f} min {cosine.min():.4f} "
        f"<.95 {(cosine < 0.95).sum()} <.90 {(cosine < 0.90).sum()}"
    )


if __name__ == "__main__":
    main()
