"""The client against transformers' own server, which is killed in the middle and started again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from coverage_job.errors import ProbeError
from coverage_job.probes.endpoint import Endpoint
from coverage_job.probes.generate import TransformersModel
from coverage_job.probes.prompts import encode_prompt, write_prompts
from coverage_job.probes.run import probe_run
from tests.probes.tiny import as_tokens, byte_tokenizer, save_model

pytest.importorskip("fastapi", reason="transformers' server needs fastapi, uvicorn and openai")
pytest.importorskip("uvicorn", reason="transformers' server needs fastapi, uvicorn and openai")
pytest.importorskip("openai", reason="transformers' server needs fastapi, uvicorn and openai")

TOKENIZER = byte_tokenizer()
LIMIT = 12


class ServeProcess:
    """`transformers serve` in a process of its own."""

    def __init__(self, model: Path, port: int, log: Path) -> None:
        self.log = log
        self.url = f"http://127.0.0.1:{port}"
        command = Path(sys.executable).with_name("transformers")
        program = [str(command)] if command.exists() else [shutil.which("transformers") or "transformers"]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*program, "serve", str(model), "--device", "cpu", "--dtype", "float32", "--port", str(port)],
                stdout=output,
                stderr=output,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            )

    def wait(self) -> None:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-2000:]
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.3)
        raise AssertionError("the server did not come up")

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def served(self) -> int:
        return self.log.read_text(errors="replace").count('chat/completions HTTP/1.1" 200')


@pytest.mark.slow
def test_a_server_killed_and_restarted_loses_and_repeats_nothing(tmp_path):
    model = save_model(tmp_path / "model", TOKENIZER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ids = range(259, 360)
    prompts = [p for p in write_prompts(as_tokens(ids, TOKENIZER, "ja"), TOKENIZER) if p.text is not None]
    assert len(prompts) > 60
    journal = tmp_path / "probe" / "responses.jsonl"

    def answered() -> list[str]:
        if not journal.exists():
            return []
        return [json.loads(line)["prompt_id"] for line in journal.read_text().splitlines()[1:]]

    # First without patience: the run ends with the server, and is gone on with by hand.
    first = ServeProcess(model, port, tmp_path / "serve.log")
    try:
        first.wait()
        endpoint = Endpoint(f"{first.url}/v1", str(model), concurrency=2, attempts=2, pause=0.05)

        def kill_after(done: int, _: int) -> None:
            if done >= 15:
                first.kill()

        with pytest.raises(ProbeError, match=rf"of {len(prompts)} answers are kept"):
            probe_run(
                prompts,
                journal.parent,
                TOKENIZER,
                endpoint=endpoint,
                max_new_tokens=LIMIT,
                progress=kill_after,
            )
    finally:
        first.kill()
    kept = answered()
    assert 15 <= len(kept) < 30
    before = journal.read_bytes()

    # Then with patience: it is killed and started again under the client's feet.
    servers = [ServeProcess(model, port, tmp_path / "serve.log")]
    try:
        servers[0].wait()
        patient = Endpoint(f"{first.url}/v1", str(model), concurrency=2, attempts=60, pause=0.1)

        def restart(done: int, _: int) -> None:
            if done == 40:
                servers[0].kill()
                servers.append(ServeProcess(model, port, tmp_path / "serve.log"))

        result = probe_run(
            prompts, journal.parent, TOKENIZER, endpoint=patient, max_new_tokens=LIMIT, progress=restart
        )
        assert len(servers) == 2
        served = servers[-1].served()
    finally:
        for server in servers:
            server.kill()

    assert journal.read_bytes().startswith(before)
    assert sorted(answered()) == sorted(p.prompt_id for p in prompts)
    assert result.unasked == 0
    # What was on its way when the server died may have been computed twice, and nothing else.
    assert len(prompts) <= served <= len(prompts) + 2 * endpoint.concurrency

    # And the answers are those of the same model asked here.
    local = TransformersModel(str(model), device="cpu")
    here = local.generate([encode_prompt(p, TOKENIZER, local.chat()) for p in prompts], LIMIT)
    answers = {r["prompt_id"]: r["response"] for r in result.table.to_pylist()}
    for prompt, made in zip(prompts, here, strict=True):
        assert answers[prompt.prompt_id] == TOKENIZER.decode(made, skip_special_tokens=True)
