from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from coverage_job.config import parse_job
from coverage_job.counting.kept_cuts import cuts_bytes
from coverage_job.counting.task import TASK_OUTPUT
from coverage_job.engines import spark as module
from coverage_job.engines.spark import SparkEngine
from coverage_job.errors import CorpusError
from coverage_job.pipeline.run import run as run_job
from coverage_job.progress import Steps
from coverage_job.storage import Run
from coverage_job.tokenizer.load import describe
from tests.engines import tasks
from tests.planted import write_corpora, write_lines, write_tokenizer

pytestmark = pytest.mark.spark

TABLES = (
    "histogram.parquet",
    "coverage.parquet",
    "manifest.parquet",
    "summary.parquet",
    "bad_records.parquet",
)


def run(tree: dict[str, Any], folder: Path, engine: str, output: Path) -> Run:
    return Run(run_job(parse_job(tree, base=folder), engine, str(output), Steps(quiet=True)).path)


def jobs(spark: SparkEngine) -> set[int]:
    # All jobs that the session has run, whatever their state.
    tracker = spark.session.sparkContext.statusTracker()
    return set(tracker.getJobIdsForGroup(None))


def test_batches_are_bounded_by_bytes_where_this_spark_can(spark: SparkEngine) -> None:
    frame = spark.session.range(0, 20_000, 1, numPartitions=1).mapInArrow(tasks.rows_of_each, "rows bigint")
    rows = [row[0] for row in frame.collect()]
    try:
        most = spark.session.conf.get("spark.sql.execution.arrow.maxBytesPerBatch")
    except Exception:  # this Spark bounds rows alone
        assert max(rows) == 512
        return
    assert most == str(64 << 20)
    # 20,000 numbers are far from it.
    assert rows == [20_000]


@pytest.mark.parametrize("few", [0, 32])
def test_counts_are_summed_in_one_pass(spark: SparkEngine, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Spark where tasks are many, by the driver where they are few."""
    monkeypatch.setattr(module, "_FEW", few)
    done: list[int] = []
    before = jobs(spark)
    # Items of their own, as splits are: two reports of one key would be one.
    counts, reports = spark.count(tasks.count_to, [3, 1, 2, 4], lambda: done.append(1))
    assert dict(zip(counts["token_id"].to_pylist(), counts["occurrences"].to_pylist(), strict=True)) == {
        0: 4,
        1: 3,
        2: 2,
        3: 1,
    }
    assert sorted(reports) == ["report 1", "report 2", "report 3", "report 4"]
    assert len(done) == 4
    stages = {
        stage
        for job in jobs(spark) - before
        for stage in spark.session.sparkContext.statusTracker().getJobInfo(job).stageIds
    }
    tasks_of_stages = [spark.session.sparkContext.statusTracker().getStageInfo(s) for s in stages]
    # One stage ran the tasks; whatever else Spark did, it read no split again. A later job lists the stage
    # once more, as one that it skipped.
    ran = [s.numCompletedTasks for s in tasks_of_stages if s is not None and s.numTasks == 4]
    assert sum(ran) <= 4


@pytest.mark.parametrize("few", [0, 32])
def test_the_planted_job_is_equal_on_both_engines(
    spark: SparkEngine, tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FEW", few)
    tree = write_corpora(tmp_path)
    local = run(tree, tmp_path, "local", tmp_path / "local")
    on_spark = run(tree, tmp_path, "spark", tmp_path / "spark")
    for name in TABLES:
        assert local.table(name).equals(on_spark.table(name)), name


def test_a_corpus_is_read_once(spark: SparkEngine, tmp_path: Path) -> None:
    tree = write_corpora(tmp_path)
    before = jobs(spark)
    info = run(tree, tmp_path, "spark", tmp_path / "run").info
    assert [c["records"] for c in info["corpora"]] == [3, 3, 2]
    # One that has workers ready, and one for all corpora of files together.
    assert len(jobs(spark) - before) == 2


def test_workers_are_ready_before_they_count(spark: SparkEngine, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    cuts_bytes(describe(str(tmp_path / "tokenizer.json")))
    spark.prepare(str(tmp_path / "tokenizer.json"), 16)
    held = spark.map(tasks.held, [1, 2], TASK_OUTPUT, lambda: None)["report"].to_pylist()
    # These workers may have served earlier tests.
    assert all(int(number) > 0 for said in held for number in re.findall(r"\d+", said)), held
    before = jobs(spark)
    # What cannot be loaded is told by the task that needs it, and hinders no other.
    spark.prepare(str(tmp_path / "missing.json"), 16)
    spark.map(tasks.held, [1], TASK_OUTPUT, lambda: None)
    ran = jobs(spark) - before
    assert len(ran) == 2
    # Nor does Spark tell of it.
    tracker = spark.session.sparkContext.statusTracker()
    assert [tracker.getJobInfo(job).status for job in ran] == ["SUCCEEDED"] * 2


def test_a_run_that_ends_early_waits_for_no_worker(spark: SparkEngine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "endless.json")
    with SparkEngine() as engine:
        engine.prepare(str(tmp_path / "endless.json"), 16)
    assert engine._preparing is not None
    assert not engine._preparing.is_alive()
    # The session, which was there before, goes on.
    assert spark.map(tasks.count_to, [2], TASK_OUTPUT, lambda: None).num_rows == 3


@pytest.mark.parametrize(("times", "done"), [(1, True), (2, False)])
def test_an_end_asked_for_waits_until_a_jvm_has_started(times: int, done: bool) -> None:
    """Unless it is asked for again."""
    began: list[int] = []

    def begin() -> None:
        with module._unhurried():
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
            began.append(1)

    with pytest.raises(KeyboardInterrupt):
        begin()
    assert bool(began) == done


def test_a_table_is_counted_by_the_same_code(spark: SparkEngine, tmp_path: Path) -> None:
    tree = write_corpora(tmp_path)
    files = run(tree, tmp_path, "spark", tmp_path / "files")
    frame = spark.session.read.json(str(tmp_path / "web.jsonl"))
    frame.createOrReplaceTempView("web_pages")
    corpora = [{**tree["corpora"][0], "table": "web_pages"}, *tree["corpora"][1:]]
    del corpora[0]["path"]
    table = run({**tree, "corpora": corpora}, tmp_path, "spark", tmp_path / "table")
    for name in ("histogram.parquet", "coverage.parquet", "manifest.parquet"):
        assert files.table(name).equals(table.table(name)), name


def test_a_table_of_dialogues_is_counted_as_their_file_is(spark: SparkEngine, tmp_path: Path) -> None:
    tree = write_corpora(tmp_path)
    lines = (tmp_path / "chat.jsonl").read_text().splitlines()
    records = [json.loads(lines[i]) for i in (0, 2)]
    records[0]["images"] = ["a.png"]
    write_lines(tmp_path / "chat.jsonl", records)
    files = run(tree, tmp_path, "spark", tmp_path / "files")
    spark.session.read.json(str(tmp_path / "chat.jsonl")).createOrReplaceTempView("chats")
    chat = {k: v for k, v in tree["corpora"][1].items() if k != "path"} | {"table": "chats"}
    table = run(
        {**tree, "corpora": [tree["corpora"][0], chat, tree["corpora"][2]]},
        tmp_path,
        "spark",
        tmp_path / "table",
    )
    assert files.table("histogram.parquet").equals(table.table("histogram.parquet"))
    for result in (files, table):
        assert result.info["corpora"][1]["mask_audit"]["with_media"] == 1


def test_a_tasks_own_error_crosses_the_jvm(spark: SparkEngine) -> None:
    with pytest.raises(CorpusError, match=r"^corpus x: item 1 is bad; mend it$"):
        spark.count(tasks.fail, [1], lambda: None)


def test_a_missing_table_is_named(spark: SparkEngine) -> None:
    with pytest.raises(CorpusError, match="table nowhere"):
        spark.table_schema("nowhere")
