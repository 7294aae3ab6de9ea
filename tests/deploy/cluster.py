"""A standalone Spark cluster and a Connect server on this machine, which end with the test."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def environment(**more: str) -> dict[str, str]:
    """The environment of Spark's processes: on the loopback interface alone."""
    dropped = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT")
    kept = {k: v for k, v in os.environ.items() if k not in dropped}
    return {**kept, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1", **more}


def wait_for(
    what: Callable[[], Any], process: subprocess.Popen[bytes], log: Path, seconds: float = 120
) -> Any:
    """What `what` gives once it is true; fails with the end of the log where the process ends before."""
    deadline = time.monotonic() + seconds
    while True:
        if found := what():
            return found
        text = log.read_text(errors="replace")[-3000:]
        assert process.poll() is None, f"ended with {process.returncode}: {text}"
        assert time.monotonic() < deadline, f"nothing after {seconds} s: {text}"
        time.sleep(0.1)


def said(log: Path, pattern: str) -> str | None:
    match = re.search(pattern, log.read_text(errors="replace"))
    return match[1] if match else None


def stop_tree(process: subprocess.Popen[bytes]) -> None:
    """End a process that a test started, and all that it started."""
    try:
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        tree = []
    for one in tree:
        try:
            one.terminate()
        except psutil.NoSuchProcess:
            continue
    for one in psutil.wait_procs(tree, timeout=10)[1]:
        one.kill()
    process.wait()


@contextmanager
def started(command: list[str], log: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=env)
    try:
        yield process
    finally:
        stop_tree(process)


@dataclass
class Cluster:
    url: str
    workers: list[subprocess.Popen[bytes]]
    work: Path

    def executors(self) -> list[psutil.Process]:
        return [
            child
            for worker in self.workers
            for child in psutil.Process(worker.pid).children(recursive=True)
            if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline())
        ]


@contextmanager
def standalone(folder: Path) -> Iterator[Cluster]:
    """A master and two workers of one core each."""
    spark_class = str(spark_home() / "bin" / "spark-class")
    env = environment(SPARK_DAEMON_MEMORY="256m")
    place = ["--host", "127.0.0.1", "--webui-port", "0"]
    log = folder / "master.log"
    command = [spark_class, "org.apache.spark.deploy.master.Master", "--port", "0", *place]
    with started(command, log, env) as master:
        url = wait_for(lambda: said(log, r"Starting Spark master at (spark://\S+)"), master, log)
        kind = "org.apache.spark.deploy.worker.Worker"
        more = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work"), url]
        logs = [folder / "worker-0.log", folder / "worker-1.log"]
        with (
            started([spark_class, kind, *place, *more], logs[0], env) as first,
            started([spark_class, kind, *place, *more], logs[1], env) as second,
        ):
            for worker, own in zip((first, second), logs, strict=True):
                wait_for(lambda own=own: said(own, "(Successfully registered)"), worker, own)
            yield Cluster(url, [first, second], folder / "work")


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """The address of a Spark Connect server that runs tasks in itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "connect.log"
    env = environment(PYTHONPATH=str(ROOT), PYSPARK_PYTHON=sys.executable)
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--master", "local[2]", "--driver-memory", "1g"),
        *("--conf", "spark.ui.enabled=false"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        "spark-internal",
    ]

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    with started(command, log, env) as server:
        wait_for(listens, server, log)
        yield f"sc://127.0.0.1:{port}"
