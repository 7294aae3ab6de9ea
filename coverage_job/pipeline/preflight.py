"""Before counting on a cluster: do the executors fit the driver, and will what is written stay?"""

from __future__ import annotations

import secrets

from coverage_job.config import Job
from coverage_job.engines import Engine
from coverage_job.engines.preflight import Question
from coverage_job.engines.spark import SparkEngine
from coverage_job.errors import EngineError, JobError
from coverage_job.pipeline.plan import Plan
from coverage_job.progress import Steps
from coverage_job.storage import is_local, join, remove, write_bytes


def refuse_lost_output(job: Job, directory: str | None, engine: Engine) -> None:
    """Raises JobError where `output` or `store` is a local folder and the driver runs on a cluster's node."""
    if not isinstance(engine, SparkEngine) or not engine.driver_on_cluster:
        return
    for key, path in (("output", directory or job.output), ("store", job.store)):
        # A full file: URL says that its author means a file system that is mounted everywhere.
        if path is not None and is_local(path) and not path.startswith(("file:", "local:")):
            raise JobError(
                f"{key}: {path} is a local folder of the driver's node, and would be lost with it; "
                "name an object store, or write file:///path for a file system that is mounted on every node"
            )


def preflight(plan: Plan, engine: Engine, steps: Steps) -> None:
    """Ask the executors of a Spark cluster for their facts; with the local engine nobody is asked.

    Raises EngineError with a line per way in which they do not fit.
    """
    if not isinstance(engine, SparkEngine):
        return
    if engine.in_driver:
        steps.say(f"preflight: not needed, {engine.master} counts in this very environment")
        return
    firsts = [(f"corpus {c.corpus.name}", c.files[0].path, False) for c in plan.corpora if c.files]
    files = (("tokenizer", plan.tokenizer.path, True), *firsts)
    with steps.step("preflight", "ask the executors"):
        if plan.job.store is None:
            found = engine.preflight(Question(files))
        else:
            token = f"preflight-{secrets.token_hex(8)}"
            folder = join(plan.job.store, token)
            write_bytes(join(folder, token), token.encode())
            try:
                found = engine.preflight(Question(files, folder, token))
            finally:
                remove(folder, folder=True)
    if found:
        raise EngineError("\n".join(found))
    steps.say("preflight: the executors fit the driver")
