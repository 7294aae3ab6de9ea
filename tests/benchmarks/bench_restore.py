"""Peak memory and time of putting drifted rows back into a sharded checkpoint of 3.3 GB.

    python tests/benchmarks/bench_restore.py [--folder DIR]

DIR is the pair that bench_drift.py wrote with the same option; without it one is written.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from coverage_job import storage
from coverage_job.checkpoint.read import open_checkpoint
from coverage_job.drift.restore import restore
from tests.benchmarks.planted_pair import ROWS, planted_cosines, write_pair


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, help="where the pair is written, and found again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary) / "pair"
        if not (folder / "before").exists():
            write_pair(folder, ROWS, 4096)
        measure(folder, Path(temporary))


def measure(folder: Path, temporary: Path) -> None:
    cosine, _ = planted_cosines()
    table = pa.table({"token_id": pa.array(range(ROWS), pa.int32()), "lm_head_cosine": cosine})
    storage.write_parquet(str(temporary / "drift" / "coverage.parquet"), table)
    before, after = str(folder / "before"), str(folder / "after")
    earlier = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    result = restore(before, after, str(temporary / "drift"), str(temporary / "out"), "lm_head_cosine < 0.95")
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = sum(p.stat().st_size for p in (temporary / "out").iterdir())
    print(f"{size / 1e9:.2f} GB copied, {result.rows:,} rows put back, in {seconds:.1f} s")
    print(f"peak memory {peak / 1024:.0f} MiB ({earlier / 1024:.0f} MiB before it began)")
    chosen = np.flatnonzero(cosine < 0.95)
    opened = [open_checkpoint(p).lm_head for p in (before, after, str(temporary / "out"))]
    for start_row in range(0, ROWS, 20_000):
        stop = min(ROWS, start_row + 20_000)
        base, tuned, out = (m.raw(start_row, stop) for m in opened if m is not None)
        inside = np.isin(np.arange(start_row, stop), chosen)
        assert (out[inside] == base[inside]).all()
        assert (out[~inside] == tuned[~inside]).all()
    print("chosen rows are the base's, all others as they were")


if __name__ == "__main__":
    main()
