from __future__ import annotations

import multiprocessing

import pytest

from coverage_job.counting.task import TASK_OUTPUT
from coverage_job.engines.local import LocalEngine
from coverage_job.errors import CorpusError, EngineError
from tests.engines import tasks


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
