"""The whole road on an S3 server of this machine: range reads, scores, a drift directory, a restored copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from coverage_job.checkpoint.read import open_checkpoint
from coverage_job.drift.command import run_drift
from coverage_job.drift.restore import restore
from tests.checkpoint.make import matrix, others, save_sharded
from tests.drift.planted import planted
from tests.drift.test_command import coverage, write_run

moto_server = pytest.importorskip("moto.server", reason="needs moto[server]")
s3fs = pytest.importorskip("s3fs")

ROWS, COLUMNS = 3000, 64


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("models")
    yield "s3://models"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_checkpoints_on_an_object_store(tmp_path: Path, bucket: str) -> None:
    head = planted(ROWS, COLUMNS, torch.bfloat16)
    fs = s3fs.S3FileSystem()
    for side, name in ((0, "before"), (1, "after")):
        layers = others(20, COLUMNS, torch.bfloat16)
        names = list(layers)
        shards = {
            "model-1.safetensors": {"model.embed_tokens.weight": matrix(ROWS, COLUMNS, 9, torch.bfloat16)}
            | {n: layers[n] for n in names[:10]},
            "model-2.safetensors": {"lm_head.weight": head[side]} | {n: layers[n] for n in names[10:]},
        }
        save_sharded(tmp_path / name, shards)
        fs.put(str(tmp_path / name), f"models/{name}", recursive=True)
    run = write_run(tmp_path / "run", coverage(ROWS, np.arange(ROWS) % 40))

    result = run_drift(
        f"{bucket}/before", f"{bucket}/after", f"{bucket}/drift", run_directory=run, neighbours="none"
    )
    local = run_drift(
        str(tmp_path / "before"),
        str(tmp_path / "after"),
        str(tmp_path / "drift"),
        run_directory=run,
        neighbours="none",
    )
    assert result.table.equals(local.table)
    with fs.open("models/drift/drift.parquet", "rb") as file:
        assert pq.read_table(file).equals(local.table)

    checkpoint = open_checkpoint(f"{bucket}/after")
    checkpoint.rows("lm_head", 0, ROWS)
    checkpoint.rows("embedding", 0, ROWS)
    assert checkpoint.bytes_read <= 1.02 * 2 * ROWS * COLUMNS * 2

    restored = restore(f"{bucket}/before", f"{bucket}/after", f"{bucket}/drift", f"{bucket}/restored")
    again = restore(
        str(tmp_path / "before"), str(tmp_path / "after"), str(tmp_path / "drift"), str(tmp_path / "restored")
    )
    assert restored.rows == again.rows > 0
    for path in (tmp_path / "restored").iterdir():
        if path.suffix == ".safetensors":
            assert fs.cat_file(f"models/restored/{path.name}") == path.read_bytes()
