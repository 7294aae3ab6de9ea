from __future__ import annotations

import os
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from coverage_job import storage
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


class SlowDown(OSError):
    """What a store raises that is asked too often."""


def test_a_throttled_operation_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(storage.time, "sleep", pauses.append)
    answers = iter([SlowDown("503"), TimeoutError(), b"data"])

    def operation() -> bytes:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert storage.with_retries(operation, "s3://b/x") == b"data"
    assert pauses == [0.5, 1.0]


def test_a_store_that_never_recovers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.time, "sleep", lambda _: None)

    def operation() -> bytes:
        raise SlowDown("Please reduce your request rate")

    with pytest.raises(StorageError, match=r"s3://b/x: gave up after 6 tries: Please reduce"):
        storage.with_retries(operation, "s3://b/x")


def test_errors_of_remote_packages_are_told_apart_by_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    exceptions = pytest.importorskip("botocore.exceptions")
    monkeypatch.setattr(storage.time, "sleep", lambda _: None)

    def fail(error: Exception) -> str:
        calls = []

        def operation() -> None:
            calls.append(1)
            raise error

        with pytest.raises(Exception, match=r".") as caught:
            storage.with_retries(operation, "s3://b/x")
        return f"{len(calls)} {type(caught.value).__name__}"

    assert fail(exceptions.ReadTimeoutError(endpoint_url="http://h")) == "6 StorageError"
    assert fail(exceptions.NoCredentialsError()) == "1 StorageError"
    assert fail(FileNotFoundError("x")) == "1 FileNotFoundError"
    assert fail(ValueError("a fault of ours")) == "1 ValueError"


def test_secrets_are_masked_wherever_they_stand() -> None:
    tree = {
        "path": [
            "s3://key:s3cr3t@bucket/x",
            "https://h/x?X-Amz-Signature=s3cr3t&X-Amz-Credential=s3cr3t&a=1",
        ],
        "template": "a key=value pair; token=none; user@host",
    }
    masked = storage.mask_urls(tree)
    assert "s3cr3t" not in str(masked)
    assert masked["path"][1].endswith("&a=1")
    assert masked["template"] == tree["template"]
    settings = {
        "spark.hadoop.fs.s3a.secret.key": "s3cr3t",
        "spark.hadoop.fs.s3a.access.key": "s3cr3t",
        "spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net": "s3cr3t",
        "spark.hadoop.fs.s3a.session.token": "s3cr3t",
        "spark.ssl.keyStorePassword": "s3cr3t",
        "spark.jars": "https://u:s3cr3t@h/x.jar",
        "spark.executor.memory": "2g",
    }
    assert "s3cr3t" not in str(storage.mask_settings(settings))
    assert storage.mask_settings(settings)["spark.executor.memory"] == "2g"
