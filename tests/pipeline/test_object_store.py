"""The planted job with tokenizer, corpora, store and output on an S3 server that throttles."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from coverage_job import storage
from coverage_job.config import parse_job
from coverage_job.corpus import reader as reading
from coverage_job.errors import BadFileError
from coverage_job.pipeline.run import run as run_job
from coverage_job.progress import Steps
from coverage_job.storage import Run
from tests.object_store import SECRET, Faults, s3_server
from tests.planted import write_corpora

pytest.importorskip("moto.moto_server.werkzeug_app", reason="needs moto[server]")
s3fs = pytest.importorskip("s3fs")

TABLES = (
    "histogram.parquet",
    "coverage.parquet",
    "manifest.parquet",
    "summary.parquet",
)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    with s3_server() as (address, faults):
        for name, value in {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        # The client's own tries would hide ours.
        monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
        monkeypatch.setattr(storage, "_BACKOFF", (0.01,) * 5)
        s3fs.S3FileSystem().mkdir("bucket")
        yield faults
        s3fs.S3FileSystem.clear_instance_cache()


def job(folder: Path, place: str | None) -> dict[str, Any]:
    """The planted job, on the store at `place` or in `folder`."""
    tree = write_corpora(folder)
    tree["engine"] |= {"kernel": "reference", "conf": {"spark.hadoop.fs.s3a.secret.key": SECRET}}
    if place is None:
        return tree | {"output": str(folder / "runs")}
    fs = s3fs.S3FileSystem()
    for name in ("tokenizer.json", "web.jsonl", "chat.jsonl", "tasks.jsonl"):
        fs.put(str(folder / name), f"{place}/data/{name}")
    corpora = [c | {"path": f"{place}/data/{c['path']}"} for c in tree["corpora"]]
    corpora[0]["path"] = f"{place}/data/w*.jsonl"
    return tree | {
        "tokenizer": f"{place}/data/tokenizer.json",
        "corpora": corpora,
        "store": f"{place}/store",
        "output": f"{place}/runs",
    }


def run(tree: dict[str, Any], folder: Path) -> Run:
    return Run(run_job(parse_job(tree, base=folder), "local", None, Steps(quiet=True)).path)


def test_a_store_that_throttles_and_is_slow_gives_equal_counts(tmp_path: Path, faults: Faults) -> None:
    local = run(job(tmp_path, None), tmp_path)
    tree = job(tmp_path, "s3://bucket")
    faults.period, faults.burst, faults.slow = 7, 2, "web.jsonl"
    first = run(tree, tmp_path)
    assert faults.throttled > 10
    assert faults.slowed > 0
    for name in TABLES:
        assert first.table(name).equals(local.table(name)), name
    faults.slow = ""
    second = run(tree, tmp_path)
    assert [c["files_reused"] for c in second.info["corpora"]] == [1, 1, 1]
    assert second.table("histogram.parquet").equals(local.table("histogram.parquet"))
    second.verify()


def test_no_secret_is_written_down(tmp_path: Path, faults: Faults) -> None:
    found = run(job(tmp_path, "s3://bucket"), tmp_path)
    assert found.info["job"]["engine"]["conf"] == {"spark.hadoop.fs.s3a.secret.key": "***"}
    fs = s3fs.S3FileSystem()
    paths = fs.find("bucket/runs") + fs.find("bucket/store")
    assert len(paths) > 10
    for path in paths:
        data = fs.cat_file(path)
        text = data if not path.endswith(".parquet") else str(_parquet(data)).encode()
        assert SECRET.encode() not in text, path


def _parquet(data: bytes) -> Any:
    table = pq.read_table(io.BytesIO(data))
    return table.to_pylist(), table.schema.metadata


def test_an_object_replaced_while_it_is_read_ends_the_run(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = job(tmp_path, "s3://bucket")
    batches = reading.PieceReader.batches

    def then(self: Any) -> Any:
        yield from batches(self)
        if self.piece.path.endswith("web.jsonl"):
            data = (tmp_path / "web.jsonl").read_bytes().replace(b"alpha", b"omega")
            s3fs.S3FileSystem().pipe_file("bucket/data/web.jsonl", data)

    monkeypatch.setattr(reading.PieceReader, "batches", then)
    with pytest.raises(BadFileError, match=r"s3://bucket/data/web\.jsonl: changed while it was read"):
        run(tree, tmp_path)


def test_a_store_that_only_throttles_is_named(tmp_path: Path, faults: Faults) -> None:
    tree = job(tmp_path, "s3://bucket")
    faults.period = faults.burst = 1
    with pytest.raises(storage.StorageError, match=r"s3://bucket/data/.*: gave up after 6 tries"):
        run(tree, tmp_path)
