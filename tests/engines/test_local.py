from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from coverage_job.config import RankFile
from coverage_job.counting.preload import announced
from coverage_job.counting.task import TASK_OUTPUT
from coverage_job.engines.local import LocalEngine
from coverage_job.errors import CorpusError, EngineError
from tests.engines import tasks
from tests.planted import write_tokenizer


@pytest.mark.parametrize("workers", [1, 2])
def test_counts_are_summed_and_reports_set_aside(workers: int) -> None:
    done = []
    with LocalEngine(workers) as engine:
        counts, reports = engine.count(tasks.count_to, [3, 1, 2, 3], lambda: done.append(1))
    assert dict(zip(counts["token_id"].to_pylist(), counts["occurrences"].to_pylist(), strict=True)) == {
        0: 4,
        1: 3,
        2: 2,
    }
    assert sorted(reports) == ["report 1", "report 2", "report 3", "report 3"]
    assert len(done) == 4


def test_map_puts_output_together() -> None:
    with LocalEngine(2) as engine:
        table = engine.map(tasks.count_to, [1, 2], TASK_OUTPUT, lambda: None)
    assert sorted(table["token_id"].to_pylist()) == [-1, -1, 0, 0, 1]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_tasks_own_error_comes_through_and_nothing_keeps_running(workers: int) -> None:
    with LocalEngine(workers) as engine, pytest.raises(CorpusError, match=r"item \d is bad; mend it"):
        engine.count(tasks.fail, [1, 2, 3], lambda: None)
    assert not [p for p in multiprocessing.active_children() if p.name.startswith("ForkServerProcess")]


def test_a_killed_worker_is_named() -> None:
    with LocalEngine(2) as engine, pytest.raises(EngineError, match="a worker process was killed"):
        engine.count(tasks.die, [1, 2, 3], lambda: None)


def test_a_tasks_lost_connection_is_not_called_a_killed_worker() -> None:
    with LocalEngine(2) as engine, pytest.raises(ConnectionResetError, match="the store of item"):
        engine.count(tasks.lose_connection, [1, 2], lambda: None)


def test_a_killed_fork_server_is_one_line(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text("""
import os, signal
from multiprocessing import forkserver
from coverage_job.engines import local
from coverage_job.errors import EngineError
from tests.engines import tasks
if __name__ == "__main__":
    local._start_fork_server()
    # It dies after it was last seen to run.
    local._start_fork_server = lambda: None
    forkserver.ensure_running = lambda: None
    forkserver._forkserver.ensure_running = lambda: None
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    os.waitpid(forkserver._forkserver._forkserver_pid, 0)
    try:
        local.LocalEngine(2).count(tasks.count_to, [1, 2], lambda: None)
    except EngineError as error:
        print(error)
""")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert ran.stdout.startswith("a worker process was killed"), ran.stderr


def test_a_single_task_needs_no_worker_process(tmp_path: Path) -> None:
    """Where none can be started: here the name of a socket is too long."""
    (tmp_path / ("x" * 120)).mkdir()
    code = """
from coverage_job.config import RankFile
from coverage_job.counting.preload import announced
from coverage_job.counting.task import TASK_OUTPUT
from coverage_job.engines.local import LocalEngine
from tests.engines import tasks
engine = LocalEngine(2)
engine.prepare("tokenizer.json", 16)
print(engine.map(tasks.count_to, [2], TASK_OUTPUT, lambda: None).num_rows)
engine.map(tasks.count_to, [2, 2], TASK_OUTPUT, lambda: None)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path / ("x" * 120))},
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "3\n"
    assert "set TMPDIR to a short path" in ran.stderr


def test_what_no_process_could_be_started_with_is_not_announced() -> None:
    special = {f"<|reserved_special_token_{i}|>": i for i in range(5000)}
    before = dict(os.environ)
    with announced(RankFile(path="x.tiktoken", pattern="x", special_tokens=special), 16):
        assert dict(os.environ) == before


def test_workers_begin_with_the_tokenizer_and_its_kernel(tmp_path: Path) -> None:
    """In a process of its own: the fork server of this one may run already."""
    write_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "broken.json").write_text("{")
    code = """
import sys
from coverage_job.counting.kept_cuts import cuts_bytes
from coverage_job.config import RankFile
from coverage_job.counting.preload import announced
from coverage_job.counting.task import TASK_OUTPUT
from coverage_job.engines.local import LocalEngine
from coverage_job.tokenizer.load import describe
from tests.engines import tasks
if __name__ == "__main__":
    folder, name, fast = sys.argv[1], sys.argv[2], sys.argv[3] == "fast"
    cuts_bytes(describe(f"{folder}/tokenizer.json"))
    engine = LocalEngine(2)
    engine.prepare(f"{folder}/{name}", 16 if fast else None)
    held = engine.map(tasks.held, [1, 2], TASK_OUTPUT, lambda: None)
    print(held["report"].to_pylist())
"""
    script = tmp_path / "held.py"
    script.write_text(code)

    def held(name: str, kernel: str) -> str:
        command = [sys.executable, str(script), str(tmp_path), name, kernel]
        folders = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": folders, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout.strip()

    assert held("tokenizer.json", "fast") == "['1 tokenizers, 1 kernels', '1 tokenizers, 1 kernels']"
    assert held("tokenizer.json", "reference") == "['1 tokenizers, 0 kernels', '1 tokenizers, 0 kernels']"
    # What cannot be loaded is told by the task that needs it.
    for name in ("broken.json", "missing.json"):
        assert held(name, "fast") == "['0 tokenizers, 0 kernels', '0 tokenizers, 0 kernels']"


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_driver(tmp_path: Path, how: signal.Signals) -> None:
    files = [tmp_path / "0", tmp_path / "1"]
    program = (
        "from coverage_job.engines.local import LocalEngine\n"
        "from tests.engines import tasks\n"
        f"LocalEngine(2).count(tasks.tell_and_wait, {[str(f) for f in files]}, lambda: None)"
    )
    root = Path(__file__).resolve().parents[2]
    driver = subprocess.Popen([sys.executable, "-c", program], cwd=root, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    try:
        while not all(f.exists() and f.read_text() for f in files):
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        driver.send_signal(how)
        driver.wait()
    workers = [int(f.read_text()) for f in files]
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [w for w in workers if alive(w)]
    for worker in left:
        os.kill(worker, signal.SIGKILL)
    assert not left


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="signals to a group of processes are of POSIX")
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_stopped_ends_quietly_and_leaves_nothing(
    tmp_path: Path, how: signal.Signals, code: int
) -> None:
    files = [tmp_path / "0", tmp_path / "1"]
    program = (
        "import signal, sys\n"
        # Whoever runs these tests may ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from coverage_job.cli import app, main\n"
        "from coverage_job.engines.local import LocalEngine\n"
        "from tests.engines import tasks\n"
        "@app.command()\n"
        "def wait() -> None:\n"
        f"    LocalEngine(2).count(tasks.tell_and_wait, {[str(f) for f in files]}, lambda: None)\n"
        "sys.exit(main(['wait']))"
    )
    # Not under tmp_path: the name of a socket in it has to stay under 108 bytes.
    temporary = Path(tempfile.mkdtemp(prefix="stopped"))
    driver = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    try:
        while not all(f.exists() and f.read_text() for f in files) and time.monotonic() < deadline:
            time.sleep(0.05)
        # A terminal's Ctrl-C goes to the whole group, a scheduler's SIGTERM to the process it started.
        os.killpg(driver.pid, how) if how is signal.SIGINT else driver.send_signal(how)
        _, said = driver.communicate(timeout=60)
    finally:
        driver.kill()
    assert driver.returncode == code
    assert said == ""
    assert not any(alive(int(f.read_text())) for f in files)
    assert list(temporary.iterdir()) == []
    temporary.rmdir()
