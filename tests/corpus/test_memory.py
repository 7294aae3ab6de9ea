"""Memory of reading does not grow with a line, a row group or a file of any size."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc"),
]

# Run in a process of its own, whose peak is what is asked for.
SCRIPT = """
import sys
from tests.corpus.reading import make_job
from coverage_job.corpus.plan import list_files, make_splits
from coverage_job.corpus.reader import Reader
from coverage_job.corpus.source import resolve

job = make_job(path=sys.argv[1])
files = list_files(job.corpora[0])
source = resolve(job.corpora[0], job, files)
documents = bad = 0
for split in make_splits("c", files, source, 1 << 27):
    reader = Reader(source)
    for piece in split.pieces:
        part = reader.open(piece)
        for batch in part.batches():
            pass
        documents += part.stats.documents
        bad += part.stats.bad_records
# Not getrusage: its peak outlives exec, and with it that of the process which wrote the file.
status = open("/proc/self/status").read()
print(documents, bad, int(status.split("VmHWM:")[1].split()[0]) // 1024)
"""

LIMIT_MIB = 600
PARAGRAPH = b"the quick brown fox jumps over the lazy dog " * 90  # about 4 KiB


def peak(path: Path) -> tuple[int, int, int]:
    """(documents, bad records, MiB of resident memory at the peak)."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    documents, bad, mib = map(int, run.stdout.split())
    return documents, bad, mib


@pytest.mark.parametrize("kind", ["jsonl", "json"])
def test_a_line_of_200_mb_and_one_of_8(tmp_path: Path, kind: str) -> None:
    def records() -> Iterator[bytes]:
        for size in (0, 200, 8, 0):
            yield b'{"text": "' + (b"x" * (size << 20) or PARAGRAPH) + b'"}'
        for _ in range(50_000):
            yield b'{"text": "' + PARAGRAPH + b'"}'

    path = tmp_path / f"x.{kind}"
    with path.open("wb") as file:
        for i, record in enumerate(records()):
            file.write(
                (b"\n" if kind == "jsonl" else b"[,"[min(i, 1) : min(i, 1) + 1]) * (kind == "json" or i > 0)
            )
            file.write(record)
        file.write(b"]" if kind == "json" else b"\n")
    documents, bad, mib = peak(path)
    assert (documents, bad) == (50_003, 1)
    assert mib < LIMIT_MIB


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_row_group_of_1_gb(tmp_path: Path, dictionary: bool) -> None:
    path = tmp_path / "x.parquet"
    rows = 260_000
    texts = pa.array((b"%d " % i + PARAGRAPH for i in range(rows)), pa.large_binary())
    table = pa.table({"text": texts, "unused": texts.slice(0, rows)})
    pq.write_table(table, path, row_group_size=rows, compression="zstd", use_dictionary=dictionary)
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups == 1
    assert metadata.row_group(0).column(0).total_uncompressed_size > 1_000_000_000
    documents, bad, mib = peak(path)
    assert (documents, bad) == (rows, 0)
    assert mib < LIMIT_MIB
