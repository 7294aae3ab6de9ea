from __future__ import annotations

import os
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from coverage_job.errors import RunDirectoryError, StorageError
from coverage_job.storage import Run, RunWriter, read_parquet, write_bytes, write_parquet

TABLE = pa.table({"x": [1, 2, 3]})


def written(path: Path) -> Path:
    writer = RunWriter.create(str(path), str(path / "run"))
    writer.write_table("a.parquet", TABLE)
    writer.write_json("b.json", {"k": 1})
    writer.finish({"job": "j"})
    return path / "run"


def test_a_finished_run_reads_back(tmp_path: Path) -> None:
    run = Run(str(written(tmp_path)))
    run.verify()
    assert run.table("a.parquet").equals(TABLE)
    assert run.json("b.json") == {"k": 1}
    assert run.info["job"] == "j"


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    writer = RunWriter.create(str(tmp_path), str(tmp_path / "run"))
    writer.write_table("a.parquet", TABLE)
    with pytest.raises(RunDirectoryError, match=r"no run\.json"):
        Run(writer.path)


@pytest.mark.parametrize("fault", ["cut", "changed", "gone"])
def test_a_file_that_is_not_as_written_is_refused_by_name(tmp_path: Path, fault: str) -> None:
    path = written(tmp_path)
    victim = path / "a.parquet"
    data = victim.read_bytes()
    if fault == "gone":
        victim.unlink()
    else:
        victim.write_bytes(data[:-1] if fault == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(RunDirectoryError, match=r"a\.parquet"):
        Run(str(path)).table("a.parquet")


def test_torn_and_foreign_run_json_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    info = orjson.loads((path / "run.json").read_bytes())
    (path / "run.json").write_bytes(orjson.dumps(info)[:-5])
    with pytest.raises(RunDirectoryError, match="torn"):
        Run(str(path))
    (path / "run.json").write_bytes(orjson.dumps({**info, "format": 99}))
    with pytest.raises(RunDirectoryError, match="format 99"):
        Run(str(path))


def test_a_directory_that_exists_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="exists already"):
        RunWriter.create("unused", str(tmp_path))


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"x\.bin.*No space"):
        write_bytes(str(tmp_path / "x.bin"), b"data")
    assert list(tmp_path.iterdir()) == []


def test_a_torn_parquet_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(str(path), TABLE)
    assert read_parquet(str(path)).equals(TABLE)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(StorageError, match=r"t\.parquet"):
        read_parquet(str(path))
