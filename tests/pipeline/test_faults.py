"""What breaks around a run: each fault ends in equal counts, or in one line that names the cause."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coverage_job.cli import main
from coverage_job.config import parse_job
from coverage_job.corpus import reader as reading
from coverage_job.errors import BadFileError
from coverage_job.pipeline.run import count_only
from coverage_job.progress import Steps
from coverage_job.storage import Run
from tests.planted import write_lines, write_tokenizer

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("alpha", "beta", "gamma", "delta")


def write_job(folder: Path, files: int, lines: int = 20) -> dict[str, Any]:
    """A job of one corpus of many small files, each a split, counted by the reference in this process."""
    write_tokenizer(folder / "tokenizer.json")
    for n in range(files):
        texts = [" ".join(WORDS[: 1 + (n + i) % 4]) for i in range(lines)]
        write_lines(folder / "web" / f"{n:03}.jsonl", [{"text": t} for t in texts])
    largest = max(p.stat().st_size for p in (folder / "web").iterdir())
    tree = {
        "tokenizer": "tokenizer.json",
        "output": str(folder / "runs"),
        "corpora": [{"name": "web", "stage": "pretraining", "path": "web/*.jsonl"}],
        "engine": {"workers": 1, "kernel": "reference", "split_bytes": largest},
    }
    (folder / "job.yaml").write_text(json.dumps(tree))
    return tree


def count(tree: dict[str, Any], folder: Path) -> Run:
    return Run(count_only(parse_job(tree, base=folder), "local", None, Steps(quiet=True)).path)


def meddle(monkeypatch: pytest.MonkeyPatch, path: Path, change: Any) -> None:
    """Calls `change` once, while the file at `path` is read."""
    batches = reading.PieceReader.batches

    def then(self: Any) -> Any:
        yield from batches(self)
        if self.piece.path == str(path):
            change()

    monkeypatch.setattr(reading.PieceReader, "batches", then)


def test_a_file_that_grows_while_it_is_read_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = write_job(tmp_path, 2)
    path = tmp_path / "web" / "001.jsonl"
    meddle(monkeypatch, path, lambda: path.open("a").write('{"text": "omega"}\n'))
    with pytest.raises(
        BadFileError, match=r"001\.jsonl: changed while it was read \(.* bytes then, .* now\)"
    ):
        count(tree, tmp_path)


def test_a_file_replaced_by_one_of_equal_size_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = write_job(tmp_path, 2) | {"on_bad_file": "skip", "store": str(tmp_path / "store")}
    path = tmp_path / "web" / "001.jsonl"
    text = path.read_text()

    def replace() -> None:
        path.write_text(text.replace("alpha", "omega"))

    meddle(monkeypatch, path, replace)
    info = count(tree, tmp_path).info
    assert info["corpora"][0]["files_missing"] == [str(path)]
    # Nothing of it is kept under the key of what it was: the next run counts what it is now.
    monkeypatch.undo()
    after = count(tree, tmp_path)
    assert after.info["corpora"][0]["files_reused"] == 1
    assert 4 in after.table("histogram.parquet")["token_id"].to_pylist()


def test_a_file_that_is_removed_while_it_is_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = write_job(tmp_path, 2)
    path = tmp_path / "web" / "001.jsonl"
    meddle(monkeypatch, path, path.unlink)
    with pytest.raises(BadFileError, match=r"001\.jsonl: was removed while it was read"):
        count(tree, tmp_path)


def test_a_driver_that_is_killed_goes_on_from_its_store(tmp_path: Path) -> None:
    tree = write_job(tmp_path, 60, lines=4000) | {"store": str(tmp_path / "store")}
    (tmp_path / "job.yaml").write_text(json.dumps(tree))
    command = [sys.executable, "-m", "coverage_job", "count", str(tmp_path / "job.yaml"), "--engine", "local"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("store/*/parts/*.parquet"))) < 3:
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not list(tmp_path.glob("runs/*"))
    resumed = count(tree, tmp_path)
    corpus = resumed.info["corpora"][0]
    assert 3 <= corpus["files_reused"] < 60
    assert corpus["files_counted"] == 60 - corpus["files_reused"]
    full = count({k: v for k, v in tree.items() if k != "store"}, tmp_path)
    assert resumed.table("histogram.parquet").equals(full.table("histogram.parquet"))
    for key in ("records", "documents", "tokens", "bytes"):
        assert corpus[key] == full.info["corpora"][0][key]


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX")
def test_a_disk_that_is_full_is_named_and_leaves_no_whole_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(tmp_path, 2)
    # The kernel refuses to let any file grow past 2 kB, as a full disk would.
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048));"
        "from coverage_job.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "run", str(tmp_path / "job.yaml"), "--engine", "local", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert not [p for p in run.iterdir() if p.name.endswith(".part")]
    assert main(["check", str(run)]) == 2
    assert "no run.json" in capsys.readouterr().err
