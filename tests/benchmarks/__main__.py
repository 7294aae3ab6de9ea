"""`make bench`: every benchmark in turn, each in a process of its own; exits 1 where one fails.

`python -m tests.benchmarks NAME ...` runs some of them.
"""

from __future__ import annotations

import subprocess
import sys

# What needs minutes of its own (the experiment of forgetting) or other hardware is started by hand.
BENCHES = ("bench_counting", "bench_engines", "bench_rendering", "bench_drift", "bench_restore", "bench_page")


def main(names: list[str]) -> int:
    failed = []
    for name in names or BENCHES:
        print(f"\n== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"tests.benchmarks.{name}"]).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
