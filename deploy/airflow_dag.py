"""An Airflow DAG (Airflow 3): run the job, hold the run against its checks, then start SFT or stop.

    run -> check -> gate -> start_sft
                        \\-> stop          (fails the DAG run, so that Airflow's own alerts go out)

Read from the environment of the scheduler and the workers:

    COVERAGE_JOB_RUN      the run command, whose last line names the run directory (default: coverage-job run
                          "$COVERAGE_JOB_FILE"; on a cluster deploy/submit.sh --master yarn -- run JOB.yaml)
    COVERAGE_JOB_CHECK    the check command, to which the run directory is added (coverage-job check)
    COVERAGE_JOB_SFT      what starts SFT; RUN_DIRECTORY is in its environment
    COVERAGE_JOB_SCHEDULE a cron expression; without one the DAG runs when it is triggered
"""

from __future__ import annotations

import os
import shlex
import subprocess
from datetime import datetime, timedelta, timezone

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

RUN = os.environ.get("COVERAGE_JOB_RUN", 'coverage-job run "$COVERAGE_JOB_FILE"')
CHECK = os.environ.get("COVERAGE_JOB_CHECK", "coverage-job check")
SFT = os.environ.get("COVERAGE_JOB_SFT", 'echo "set COVERAGE_JOB_SFT to what starts SFT" >&2; exit 1')


@dag(
    dag_id="coverage_job",
    schedule=os.environ.get("COVERAGE_JOB_SCHEDULE"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    tags=["sft", "tokenizer"],
)
def coverage_job() -> None:
    # A run that was interrupted goes on from the job's store, so a retry costs what was missing.
    run = BashOperator(task_id="run", bash_command=RUN, retries=2, retry_delay=timedelta(minutes=5))

    @task(retries=0)
    def check(run_directory: str) -> bool:
        """Whether the run passes. A check that cannot be made is an error, never a pass."""
        done = subprocess.run([*shlex.split(CHECK), run_directory], capture_output=True, text=True)
        print(done.stdout, done.stderr, sep="\n")
        if done.returncode not in (0, 1):
            raise AirflowException(f"the check ended with exit code {done.returncode}: {done.stderr.strip()}")
        return done.returncode == 0

    @task.branch
    def gate(passed: bool) -> str:
        return "start_sft" if passed else "stop"

    @task(retries=0)
    def stop(run_directory: str) -> None:
        raise AirflowFailException(f"a check failed: see report.html and checks.json in {run_directory}")

    start_sft = BashOperator(
        task_id="start_sft",
        bash_command=SFT,
        env={"RUN_DIRECTORY": "{{ ti.xcom_pull(task_ids='run') }}"},
        append_env=True,
        retries=0,
    )
    gate(check(run.output)) >> [start_sft, stop(run.output)]


coverage_job()
