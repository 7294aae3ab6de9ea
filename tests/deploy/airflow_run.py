"""Runs the DAG by a real Airflow, once passing and once failing; for the Python that has Airflow.

    python -m tests.deploy.airflow_run COVERAGE_JOB     # the command of another environment

`make test-airflow` makes both environments. Exits 1 where a task ended otherwise than it should.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

JOB = {
    "tokenizer": "tokenizer.json",
    "chat_template": "none",
    "corpora": [{"name": "sft", "stage": "posttraining", "path": "sft.jsonl"}],
}
# A WordLevel tokenizer of two words, one of which SFT never writes.
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "model": {"type": "WordLevel", "vocab": {"alpha": 0, "beta": 1}, "unk_token": "alpha"},
}
RECORD = {"messages": [{"role": "user", "content": "beta"}, {"role": "assistant", "content": "alpha"}]}


def write_job(folder: Path, most_absent: int) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "sft.jsonl").write_text(json.dumps(RECORD) + "\n")
    checks = [{"metric": "absent", "max": most_absent}]
    path = folder / f"job-{most_absent}.yaml"
    path.write_text(json.dumps({**JOB, "output": str(folder / "runs"), "checks": checks}))
    return path


def states(folder: Path, command: str, job: Path) -> dict[str, str]:
    """The state of each task after a run of the DAG."""
    os.environ["COVERAGE_JOB_RUN"] = f"{command} run {job} --engine local --set engine.workers=1"
    os.environ["COVERAGE_JOB_CHECK"] = f"{command} check"
    os.environ["COVERAGE_JOB_SFT"] = f'test -s "$RUN_DIRECTORY/run.json" && touch {folder}/started'
    sys.path.insert(0, str(ROOT / "deploy"))
    dag: Any = importlib.import_module("airflow_dag").coverage_job()
    run = dag.test()
    return {ti.task_id: str(ti.state) for ti in run.get_task_instances()}


def main() -> None:
    command = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if len(sys.argv) == 3:
            found = states(folder, command, write_job(folder, int(sys.argv[2])))
            print(json.dumps({"states": found, "started": (folder / "started").exists()}))
            return
    expected = {
        "2": {"states": {"run": "success", "check": "success", "gate": "success", "start_sft": "success",
                         "stop": "skipped"}, "started": True},
        "0": {"states": {"run": "success", "check": "success", "gate": "success", "start_sft": "skipped",
                         "stop": "failed"}, "started": False},
    }  # fmt: skip
    for most_absent, wanted in expected.items():
        # A database of its own each time: a run would wait for another one's schedule.
        with tempfile.TemporaryDirectory() as home:
            env = {**os.environ, "AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
                   "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "deploy")}  # fmt: skip
            subprocess.run([sys.executable, "-m", "airflow", "db", "migrate"], env=env, check=True,
                           capture_output=True)  # fmt: skip
            done = subprocess.run([sys.executable, "-m", "tests.deploy.airflow_run", command, most_absent],
                                  env=env, cwd=ROOT, capture_output=True, text=True)  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"states"')]
        if not lines or json.loads(lines[-1]) != wanted:
            print(done.stdout, done.stderr, sep="\n")
            sys.exit(f"absent <= {most_absent}: wanted {wanted}, got {lines}")
        print(f"absent <= {most_absent}: {lines[-1]}")
    print("2 passed, 0 failed")


if __name__ == "__main__":
    main()
