"""Drift on an accelerator: rates, and the same numbers as on the CPU. Needs a CUDA device.

    python tests/benchmarks/bench_drift_gpu.py [--rows 200064] [--columns 6144] [--folder DIR]

Prints rows/s of scoring from files and on the device alone with its share of copy bandwidth, TFLOP/s of the
neighbours of all rows, and the largest differences from the CPU on a part of the rows.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from coverage_job.checkpoint.matrix import Matrix
from coverage_job.checkpoint.read import open_checkpoint
from coverage_job.drift.neighbours import nearest, unit
from coverage_job.drift.score import COSINE_TOLERANCE, LENGTH_TOLERANCE, score_rows, sums_torch
from tests.benchmarks.planted_pair import ROWS, write_pair

PART = 8192


def seconds(work: Callable[[], object], times: int = 3) -> float:
    """Best of several, after one to warm up, with the device's queue drained."""
    work()
    best = float("inf")
    for _ in range(times):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--columns", type=int, default=6144)
    parser.add_argument("--folder", type=Path, help="where the pair is written, and found again")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: nothing was measured")
    print(torch.cuda.get_device_name())
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "before").exists():
            write_pair(folder, options.rows, options.columns)
        opened = [open_checkpoint(str(folder / side)).lm_head for side in ("before", "after")]
        before, after = (m for m in opened if m is not None)
        scores(before, after)
        neighbours(after)


def scores(before: Matrix, after: Matrix) -> None:
    rows, columns = after.shape
    taken = seconds(lambda: score_rows(before, after, device="cuda"), 2)
    print(f"scores from files   {taken:7.2f} s  {rows / taken:12,.0f} rows/s")
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copied = 2 * source.numel() / seconds(lambda: target.copy_(source))
    blocks = [
        torch.from_numpy(m.raw(0, PART).view(np.int16)).cuda().view(torch.bfloat16) for m in (before, after)
    ]
    taken = seconds(lambda: sums_torch(blocks[0].float(), blocks[1].float()), 10)
    rate = 2 * PART * columns * 2 / taken
    print(f"scores on device    {PART / taken:12,.0f} rows/s  {rate / copied:.0%} of a copy's bandwidth")
    print(f"copy                {copied / 1e12:.2f} TB/s, reading and writing")
    cpu, cuda = (score_rows(before, after, device=device) for device in ("cpu", "cuda"))
    cosine = np.nanmax(np.abs(cpu.cosine - cuda.cosine))
    length = np.nanmax(np.abs(cpu.l2 - cuda.l2) / np.maximum(cpu.l2, 1e-9))
    print(f"against the CPU     cosine {cosine:.1e} (limit {COSINE_TOLERANCE})")
    print(f"                    l2 {length:.1e} of itself (limit {LENGTH_TOLERANCE})")
    assert cosine <= COSINE_TOLERANCE
    assert length <= LENGTH_TOLERANCE
    assert cpu.faults == cuda.faults


def neighbours(matrix: Matrix) -> None:
    rows, columns = matrix.shape
    start = time.perf_counter()
    found = nearest(matrix, np.arange(rows), device="cuda")
    taken = time.perf_counter() - start
    work = 2.0 * rows * rows * columns
    print(f"neighbours          {taken:7.2f} s  {work / taken / 1e12:.1f} TFLOP/s, all of it")
    queries = unit(torch.from_numpy(matrix.rows(0, PART)).cuda())
    alone = seconds(lambda: (queries @ queries.T).topk(11, dim=1))
    print(
        f"product and choice  {2.0 * PART * PART * columns / alone / 1e12:.1f} TFLOP/s, on the device alone"
    )
    some = np.arange(0, rows, max(1, rows // 64))
    same = nearest(matrix, some, device="cpu") == found[some]
    print(
        f"against the CPU     {same.mean():.2%} of {same.size} neighbours equal (near ties may change places)"
    )
    assert same.mean() > 0.99


if __name__ == "__main__":
    main()
