from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from coverage_job.config import parse_job
from coverage_job.counting.store_files import list_store, prune_store, verify_store
from coverage_job.errors import StorageError
from coverage_job.pipeline.run import count_only
from coverage_job.progress import Steps
from coverage_job.storage import Run
from tests.planted import write_corpora

DAY = 86_400


@cache
def job(folder: Path) -> dict[str, Any]:
    # Written once: a file written again is a new file to the store.
    tree = write_corpora(folder)
    tree["engine"] |= {"kernel": "reference"}
    return tree


def count(folder: Path, store: Path) -> Run:
    tree = job(folder) | {"output": str(folder / "runs"), "store": str(store)}
    return Run(count_only(parse_job(tree, base=folder), "local", None, Steps(quiet=True)).path)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    count(tmp_path, tmp_path / "store")
    return tmp_path / "store"


def files(store: Path) -> list[Path]:
    return sorted(p for p in store.rglob("*.parquet"))


def test_what_is_kept_is_listed_by_corpus(store: Path) -> None:
    folders = list_store(str(store))
    assert [f.corpus for f in folders] == ["chat", "tasks", "web"]
    assert all(f.parts == 1 and f.snapshots == 1 and f.newest > 0 for f in folders)
    assert sum(f.bytes for f in folders) == sum(p.stat().st_size for p in files(store))


def test_a_torn_file_is_named_and_the_next_run_counts_it_again(tmp_path: Path, store: Path) -> None:
    assert verify_store(str(store)) == (6, [])
    torn = [p for p in files(store) if p.parts[-3].startswith("web-")]
    for path in torn:
        path.write_bytes(path.read_bytes()[:-3])
    whole, lines = verify_store(str(store))
    assert whole == 4
    assert sorted(line.split(": torn")[0] for line in lines) == sorted(map(str, torn))
    info = count(tmp_path, store).info
    assert [c["files_reused"] for c in info["corpora"]] == [0, 1, 1]
    assert verify_store(str(store)) == (6, [])


def test_pruning_by_age_and_by_number(tmp_path: Path, store: Path) -> None:
    now = 1_800_000_000.0
    for i, path in enumerate(files(store)):
        os.utime(path, (now - i * DAY, now - i * DAY))
    assert prune_store(str(store), now, 3.5, None, dry_run=True)[0] == 2
    assert len(files(store)) == 6
    assert prune_store(str(store), now, 3.5, None)[0] == 2
    assert len(files(store)) == 4
    assert prune_store(str(store), now, None, 1) == (0, 0)
    # What was removed is counted again, to the same counts.
    again = count(tmp_path, store)
    fresh = count(tmp_path, tmp_path / "other")
    assert again.table("histogram.parquet").equals(fresh.table("histogram.parquet"))


def test_only_surplus_snapshots_go_by_number(store: Path) -> None:
    snapshot = next(p for p in files(store) if p.parent.name == "snapshots")
    (snapshot.parent / ("0" * 32 + ".parquet")).write_bytes(snapshot.read_bytes())
    os.utime(snapshot, (1, 1))
    removed, size = prune_store(str(store), 2.0, None, 1)
    assert (removed, size > 0, snapshot.exists()) == (1, True, False)
    assert len(files(store)) == 6


def test_a_folder_that_is_no_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("x")
    with pytest.raises(StorageError, match="no store, or an empty one"):
        list_store(str(tmp_path))
