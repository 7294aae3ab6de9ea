from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coverage_job.checkpoint.matrix import Matrix
from coverage_job.checkpoint.read import open_checkpoint
from coverage_job.drift import score as module
from coverage_job.drift.score import COSINE_TOLERANCE, LENGTH_TOLERANCE, RowScores, resolve_device, score_rows
from coverage_job.errors import CheckpointError, JobError
from tests.checkpoint.make import matrix, save_single
from tests.drift.planted import (
    DUPLICATE,
    INF,
    NAN,
    PLANTED,
    ZERO_AFTER,
    ZERO_BOTH,
    planted,
    reference,
    save_planted,
)


def head(path: Path, tensor: torch.Tensor, **extra: torch.Tensor) -> Matrix:
    found = open_checkpoint(str(save_single(path, {"lm_head.weight": tensor, **extra}))).lm_head
    assert found is not None
    return found


def agree(scores: RowScores, before: torch.Tensor, after: torch.Tensor) -> None:
    for name, expected in reference(before, after).items():
        got = getattr(scores, name)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected), err_msg=name)
        if name == "cosine":
            np.testing.assert_allclose(got, expected, rtol=0, atol=COSINE_TOLERANCE)
        else:
            np.testing.assert_allclose(got, expected, rtol=LENGTH_TOLERANCE, atol=1e-7, err_msg=name)


# On a machine without a GPU the torch path is exercised on the CPU: the same code, the same numbers.
PATHS = ["kernels", "torch"]


@pytest.fixture(params=PATHS)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(module._Work, "_sums", module._Work._sums_torch)
    return "cpu"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("columns", [64, 1000, 1537])
def test_scores_agree_with_float64(
    tmp_path: Path, device: str, dtype: torch.dtype, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOCAL_BLOCK", 7 * columns)  # several blocks, the last one short
    before, after = planted(203, columns, dtype)
    scores = score_rows(head(tmp_path / "b", before), head(tmp_path / "a", after), device=device)
    agree(scores, before, after)
    # A planted value of bfloat16 moves by its rounding.
    slack = 2e-3 if dtype in (torch.float16, torch.bfloat16) else 1e-6
    for row, cosine in PLANTED.items():
        assert scores.cosine[row] == pytest.approx(cosine, abs=slack)
    assert scores.faults == {
        "zero_before": [ZERO_BOTH],
        "zero_after": [ZERO_BOTH, ZERO_AFTER],
        "nan_before": [NAN],
        "inf_after": [INF],
    }


def test_float8_with_block_scales_on_one_side(tmp_path: Path, device: str) -> None:
    before = matrix(300, 256, 1)
    fp8, scale = (before / 0.5).to(torch.float8_e4m3fn), torch.full((3, 2), 0.5)
    scores = score_rows(
        head(tmp_path / "b", before.bfloat16()),
        head(tmp_path / "a", fp8, **{"lm_head.weight_scale_inv": scale}),
        device=device,
    )
    agree(scores, before.bfloat16(), fp8.double() * 0.5)


def test_extreme_values_are_not_lost(tmp_path: Path, device: str) -> None:
    before = matrix(4, 64, 1).double() * torch.tensor([[1e-30], [1e25], [1.0], [1.0]])
    after = before * torch.tensor([[2.0], [0.5], [1.0], [1e-32]])
    before, after = before.bfloat16(), after.bfloat16()
    scores = score_rows(head(tmp_path / "b", before), head(tmp_path / "a", after), device=device)
    expected = reference(before, after)
    np.testing.assert_allclose(scores.cosine, expected["cosine"], atol=COSINE_TOLERANCE)
    np.testing.assert_allclose(scores.norm_after, expected["norm_after"], rtol=LENGTH_TOLERANCE)
    assert scores.faults == {}


def test_an_unmoved_row_has_cosine_one_exactly(tmp_path: Path) -> None:
    rows = matrix(500, 768, 3, torch.bfloat16)
    scores = score_rows(head(tmp_path / "b", rows), head(tmp_path / "a", rows.clone()))
    assert (scores.cosine == 1.0).all()
    assert (scores.l2 == 0.0).all()


def test_more_rows_on_either_side(tmp_path: Path) -> None:
    before, after = planted(60, 32)
    scores = score_rows(head(tmp_path / "b", before[:50].clone()), head(tmp_path / "a", after))
    assert scores.compared.sum() == 50
    agree(
        RowScores(*(getattr(scores, n)[:50] for n in reference(before, after)), scores.compared),
        before[:50],
        after[:50],
    )
    assert np.isnan(scores.cosine[50:]).all()
    np.testing.assert_allclose(scores.norm_after[50:], after[50:].norm(dim=1), rtol=1e-6)
    scores = score_rows(head(tmp_path / "b2", before), head(tmp_path / "a2", after[:50].clone()))
    assert len(scores.cosine) == 50


@pytest.mark.parametrize("scaled", [False, True])
def test_rows_matched_by_a_map(tmp_path: Path, scaled: bool) -> None:
    before, after = planted(200, 32)
    row_map = np.random.default_rng(0).permutation(200)
    row_map[[20, 30]] = -1
    extra = {}
    if scaled:
        before, extra = before.to(torch.float8_e4m3fn), {"lm_head.weight_scale": torch.rand(200)}
    scores = score_rows(head(tmp_path / "b", before, **extra), head(tmp_path / "a", after), row_map=row_map)
    whole = before.double() * extra["lm_head.weight_scale"].double()[:, None] if scaled else before
    kept = row_map >= 0
    agree(
        RowScores(*(getattr(scores, n)[kept] for n in reference(before, after)), scores.compared),
        whole[row_map[kept]],
        after[kept],
    )
    assert np.isnan(scores.cosine[~kept]).all()


def test_one_checkpoint_alone(tmp_path: Path) -> None:
    _, after = planted(60, 32)
    scores = score_rows(None, head(tmp_path / "a", after))
    assert np.isnan(scores.cosine).all()
    assert scores.faults == {"zero_after": [ZERO_BOTH, ZERO_AFTER], "inf_after": [INF]}
    assert scores.norm_after[0] == pytest.approx(float(after[0].norm()), rel=1e-6)


def test_rank_puts_the_most_drifted_first_and_ties_by_id(tmp_path: Path) -> None:
    before, after = planted(60, 32)
    scores = score_rows(head(tmp_path / "b", before), head(tmp_path / "a", after))
    rank = scores.rank()
    assert rank[4] == 1
    assert rank[3] == 2
    assert rank[[ZERO_BOTH, ZERO_AFTER, NAN, INF]].tolist() == [0] * 4
    assert sorted(rank[rank > 0]) == list(range(1, 57))
    assert scores.cosine[5] == scores.cosine[DUPLICATE]
    assert rank[[5, DUPLICATE, DUPLICATE + 1]].tolist() == list(range(rank[5], rank[5] + 3))


def test_matrices_that_do_not_match(tmp_path: Path) -> None:
    a, b = head(tmp_path / "a", matrix(8, 4)), head(tmp_path / "b", matrix(8, 6))
    with pytest.raises(CheckpointError, match="rows of 4 values"):
        score_rows(a, b)
    with pytest.raises(CheckpointError, match="id map has 3 entries"):
        score_rows(a, a, row_map=np.arange(3))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there() -> None:
    assert resolve_device("auto") == "cpu"
    with pytest.raises(JobError, match="--device cuda"):
        resolve_device("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_numbers(tmp_path: Path) -> None:
    before, after = save_planted(tmp_path, 5000, 512, torch.bfloat16)
    opened = [open_checkpoint(str(p)).lm_head for p in (before, after)]
    assert opened[1] is not None
    on_cpu, on_cuda = (score_rows(opened[0], opened[1], device=d) for d in ("cpu", "cuda"))
    np.testing.assert_allclose(on_cuda.cosine, on_cpu.cosine, atol=COSINE_TOLERANCE)
    np.testing.assert_allclose(on_cuda.l2, on_cpu.l2, rtol=LENGTH_TOLERANCE, atol=1e-7)
    assert on_cuda.faults == on_cpu.faults
