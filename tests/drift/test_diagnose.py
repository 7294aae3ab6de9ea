from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from coverage_job.checkpoint.files import Files
from coverage_job.drift.diagnose import Group, diagnose, sum_of_learning_rates
from coverage_job.drift.score import score_rows
from coverage_job.errors import CheckpointError
from tests.checkpoint.make import matrix
from tests.drift.test_score import head


def test_a_common_push_is_told_from_learning(tmp_path: Path) -> None:
    rows, columns = 400, 96
    before = matrix(rows, columns, 1)
    push, own = matrix(1, columns, 2), matrix(rows, columns, 3)
    change = torch.where(torch.arange(rows)[:, None] < 250, 0.2 * push + 0.05 * own, 0.2 * own)
    change[7] = 0
    after = before + change
    a, b = head(tmp_path / "a", before), head(tmp_path / "b", after)
    masks = {"uncovered": np.arange(rows) < 250, "covered": np.arange(rows) >= 250}
    groups = [Group(name, mask) for name, mask in masks.items()]
    scores = score_rows(a, b)
    result = diagnose(a, b, scores, groups, learning_rates=0.02)
    for name, mask in masks.items():
        d = (after - before).double()[torch.from_numpy(mask)]
        d = d[d.norm(dim=1) > 0]
        unit = d / d.norm(dim=1, keepdim=True)
        cosines = unit @ unit.T
        n = len(d)
        got = result[name]
        assert got["changed"] == n
        assert got["pairwise_cosine"] == pytest.approx(float(cosines.sum() - n) / (n * (n - 1)), abs=1e-6)
        values = torch.linalg.svdvals(d) ** 2
        assert got["first_component"] == pytest.approx(float(values[0] / values.sum()), rel=1e-4)
        x, y = before.double()[torch.from_numpy(mask)], after.double()[torch.from_numpy(mask)]
        assert got["growth"] == pytest.approx(float((y.norm(dim=1) / x.norm(dim=1)).mean()), rel=1e-6)
        assert got["relative_change"] == pytest.approx(float((y - x).norm() / x.norm()), rel=1e-6)
        rms = (x**2).mean(1).sqrt()
        assert got["steps_over_rms"] == pytest.approx(0.02 / float(rms.median()), rel=0.02)
    assert result["uncovered"]["rows"] == 250
    assert result["uncovered"]["pairwise_cosine"] > 0.8 > 0.1 > result["covered"]["pairwise_cosine"]


def test_rows_matched_by_a_map_and_sampled_components(tmp_path: Path) -> None:
    before = matrix(300, 32, 1)
    order = np.random.default_rng(0).permutation(300)
    push = matrix(1, 32, 2)
    after = before[order] + push * torch.rand(300, 1)
    a, b = head(tmp_path / "a", before), head(tmp_path / "b", after)
    scores = score_rows(a, b, row_map=order)
    group = [Group("all", np.ones(300, dtype=bool))]
    result = diagnose(a, b, scores, group, row_map=order, component_rows=50)["all"]
    assert result["pairwise_cosine"] == pytest.approx(1.0, abs=1e-5)
    assert result["first_component"] == pytest.approx(1.0, abs=1e-5)


def test_nothing_moved(tmp_path: Path) -> None:
    a, b = head(tmp_path / "a", matrix(10, 8)), head(tmp_path / "b", matrix(10, 8))
    result = diagnose(
        a,
        b,
        score_rows(a, b),
        [Group("all", np.ones(10, dtype=bool)), Group("none", np.zeros(10, dtype=bool))],
    )
    assert result["all"]["changed"] == 0
    assert result["all"]["pairwise_cosine"] is None
    assert result["all"]["growth"] == 1.0
    assert result["none"]["growth"] is None


def test_learning_rates_are_summed_over_the_steps_between_entries(tmp_path: Path) -> None:
    history = [
        {"step": 10, "learning_rate": 1e-3, "loss": 2.0},
        {"step": 10, "eval_loss": 3.0},
        {"step": 20, "learning_rate": 5e-4},
        {"step": 25, "learning_rate": 1e-4},
        {"step": 25, "train_runtime": 9.0},
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert sum_of_learning_rates(Files(), str(tmp_path)) == pytest.approx(10 * 1e-3 + 10 * 5e-4 + 5 * 1e-4)
    assert sum_of_learning_rates(Files(), str(tmp_path / "none")) is None
    assert sum_of_learning_rates(Files(), None) is None
    (tmp_path / "trainer_state.json").write_text("{")
    with pytest.raises(CheckpointError, match="trainer_state"):
        sum_of_learning_rates(Files(), str(tmp_path))
