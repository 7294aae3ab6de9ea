"""What is built, where it will run: a wheel in another environment, a packed archive on a real cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import psutil
import pytest

from coverage_job.config import parse_job
from coverage_job.engines import spark as spark_module
from coverage_job.pipeline.run import count_only
from coverage_job.progress import Steps
from coverage_job.storage import Run
from tests.deploy.cluster import (
    ROOT,
    connect_server,
    environment,
    spark_home,
    standalone,
    started,
    wait_for,
)
from tests.pipeline.test_faults import write_job
from tests.planted import write_corpora

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SMALL = [
    *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false"),
    *("--driver-memory", "512m", "--executor-memory", "512m", "--conf", "spark.executor.cores=1"),
]


@pytest.fixture(scope="module", autouse=True)
def _needs_java() -> None:
    why_not = spark_module.unavailable()
    if why_not is not None:
        pytest.skip(f"Spark cannot start: {why_not}")


def locally(tree: dict[str, Any], folder: Path) -> Run:
    tree = {k: v for k, v in tree.items() if k != "store"} | {"output": str(folder / "local")}
    return Run(count_only(parse_job(tree, base=folder), "local", None, Steps(quiet=True)).path)


def planted(folder: Path) -> dict[str, Any]:
    tree = write_corpora(folder)
    tree["engine"] = {"kernel": "reference"}
    (folder / "job.yaml").write_text(json.dumps(tree))
    return tree


def same_counts(found: Path, tree: dict[str, Any], folder: Path) -> None:
    run = Run(str(found))
    run.verify()
    expected = locally(tree, folder)
    assert run.table("histogram.parquet").equals(expected.table("histogram.parquet"))
    for one, other in zip(run.info["corpora"], expected.info["corpora"], strict=True):
        for key in ("records", "documents", "bad_records", "tokens", "supervised_tokens", "bytes"):
            assert one[key] == other[key], key


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the built wheel; its dependencies are this environment's."""
    folder = tmp_path_factory.mktemp("fresh")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # Without the checkout's own folder on the path, where pip would find the package installed.
    env = environment()
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True, env=env)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    install = [*pip, "--python", str(python), "install", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, env=env, cwd=folder)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    where = subprocess.run(
        [str(python), "-c", "import coverage_job; print(coverage_job.__file__)"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(site)
    return python


def submit(
    python: Path, folder: Path, *arguments: str, executors: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """spark-submit in a clean directory, on two executors of this machine."""
    clean = folder / "clean"
    clean.mkdir(exist_ok=True)
    return subprocess.run(
        [str(spark_home() / "bin" / "spark-submit"), "--master", "local-cluster[2,1,1024]", *SMALL,
         *("--conf", f"spark.pyspark.driver.python={python}"),
         *("--conf", f"spark.pyspark.python={executors or python}"),
         str(ROOT / "deploy" / "main.py"), *arguments],
        cwd=clean, env=environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_the_wheel_runs_on_executors_of_their_own(fresh: Path, tmp_path: Path) -> None:
    tree = planted(tmp_path)
    run = tmp_path / "run"
    done = submit(fresh, tmp_path, "count", str(tmp_path / "job.yaml"), "--output", str(run))
    assert done.returncode == 0, done.stderr[-3000:]
    # spark-submit sends both streams of a Python driver to its own output.
    assert "preflight: the executors fit the driver" in done.stdout
    assert done.stdout.strip().splitlines()[-1] == str(run)
    same_counts(run, tree, tmp_path)


def test_executors_without_the_packages_are_named_before_anything_is_counted(
    fresh: Path, tmp_path: Path
) -> None:
    planted(tmp_path)
    bare = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    lacks = subprocess.run(
        [str(bare), "-c", "import pyarrow"], capture_output=True, env=environment()
    ).returncode
    if not lacks:
        pytest.skip("the interpreter that this environment was made from has the packages itself")
    job = str(tmp_path / "job.yaml")
    done = submit(fresh, tmp_path, "count", job, "--output", str(tmp_path / "run"), executors=bare)
    assert done.returncode == 2, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("coverage-job: ")]
    assert lines
    assert "executors cannot import" in lines[0]
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the packed environment, made by the script itself."""
    out = os.environ.get("COVERAGE_JOB_PACKED")
    if out is not None:
        return Path(out)
    folder = tmp_path_factory.mktemp("packed")
    done = subprocess.run(
        ["bash", str(ROOT / "deploy" / "pack.sh")],
        env={**environment(), "OUT": str(folder), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_a_packed_environment_holds_no_link_that_leads_out_of_it(packed: Path) -> None:
    environment_ = (packed / "environment").resolve()
    links = [p for p in environment_.rglob("*") if p.is_symlink()]
    assert not [p for p in links if not p.resolve().is_relative_to(environment_)]
    version = subprocess.run(
        [str(environment_ / "bin" / "python"), "-c", "import coverage_job; print(coverage_job.__file__)"],
        cwd="/", env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(version.stdout.strip()).is_relative_to(environment_)


def test_a_node_without_the_python_is_told_so(packed: Path) -> None:
    script = packed / "environment" / "bin" / "python"
    text = script.read_text()
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    other = script.with_name("python-of-another-version")
    other.write_text(text.replace(version, "3.99"))
    try:
        done = subprocess.run(["sh", str(other), "-V"], env=environment(), capture_output=True, text=True)
    finally:
        other.unlink()
    assert done.returncode == 127
    assert "has no Python 3.99; set COVERAGE_JOB_PYTHON" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_executor_killed_at_mid_run_changes_nothing(packed: Path, tmp_path: Path) -> None:
    tree = write_job(tmp_path, 80, lines=4000) | {"store": str(tmp_path / "store")}
    (tmp_path / "job.yaml").write_text(json.dumps(tree))
    run, log = tmp_path / "run", tmp_path / "submit.log"
    env = environment(OUT=str(packed), COVERAGE_JOB_PYTHON=sys.executable)
    with standalone(tmp_path) as cluster:
        command = [
            *("bash", str(ROOT / "deploy" / "submit.sh"), "--master", cluster.url, "--deploy-mode", "client"),
            *(*SMALL, "--conf", f"spark.executorEnv.COVERAGE_JOB_PYTHON={sys.executable}"),
            *("--", "count", str(tmp_path / "job.yaml"), "--output", str(run)),
        ]
        with started(command, log, env) as process:
            wait_for(lambda: len(list(tmp_path.glob("store/web-*/parts/*.parquet"))) >= 3, process, log, 400)
            victim = cluster.executors()[0]
            victim.kill()
            assert process.wait(timeout=240) == 0, log.read_text(errors="replace")[-3000:]
        # Two executors at first, and one more in the place of the killed one.
        assert len(list(cluster.work.glob("app-*/*"))) >= 3
        left = [*cluster.workers]
    assert not any(psutil.pid_exists(worker.pid) for worker in left)
    assert "preflight: the executors fit the driver" in log.read_text(errors="replace")
    same_counts(run, tree, tmp_path)


def test_spark_connect_gives_the_same_counts(tmp_path: Path) -> None:
    jars = spark_home() / "jars"
    if not list(jars.glob("spark-connect_*.jar")):
        pytest.skip("this release of pyspark ships no Connect server")
    pytest.importorskip("grpc")
    tree = planted(tmp_path)
    run, log = tmp_path / "run", tmp_path / "client.log"
    with connect_server(tmp_path) as address:
        command = [
            *(sys.executable, "-m", "coverage_job", "count", str(tmp_path / "job.yaml"), "--engine", "spark"),
            *("--set", f"engine.master={address}", "--output", str(run)),
        ]
        with started(command, log, environment(PYTHONPATH=str(ROOT))) as process:
            assert process.wait(timeout=240) == 0, log.read_text(errors="replace")[-3000:]
    assert "preflight: the executors fit the driver" in log.read_text(errors="replace")
    same_counts(run, tree, tmp_path)


def test_nothing_is_left_running() -> None:
    ours = [p for p in psutil.Process().children(recursive=True) if "java" in p.name()]
    assert not ours
