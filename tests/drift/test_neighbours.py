from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coverage_job.drift.neighbours import nearest, overlap
from tests.checkpoint.make import matrix
from tests.drift.test_score import head


def brute_force(rows: torch.Tensor, ids: np.ndarray, k: int) -> np.ndarray:
    """In float64; cosines equal to 12 digits tie, the lowest id first."""
    x = rows.double().numpy()
    usable = np.isfinite(x).all(1) & x.any(1)
    unit = np.where(usable[:, None], x, 0) / np.where(usable, np.linalg.norm(x, axis=1), 1)[:, None]
    result = np.full((len(ids), k), -1)
    for i, query in enumerate(ids):
        if not usable[query]:
            continue
        cosine = np.round(unit @ unit[query], 12)
        order = [j for j in np.lexsort((np.arange(len(x)), -cosine)) if usable[j] and j != query][:k]
        result[i, : len(order)] = order
    return result


def awkward(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Duplicates, scaled duplicates, an opposite, zero and broken rows; one group larger than k."""
    x = matrix(rows, columns, 3)
    x[20] = x[3]
    x[rows - 1] = x[3]
    x[30] = 4 * x[5]
    x[31] = -x[5]
    x[40:60] = x[7]
    x[61], x[62] = 0, 0
    x[63, 0], x[64, 1] = float("nan"), float("inf")
    x[65] = 2.0**-80 * x[66]
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("memory", [1 << 16, 1 << 30])
def test_nearest_is_brute_force(tmp_path: Path, dtype: torch.dtype, memory: int) -> None:
    rows = awkward(700, 48, dtype)
    found = head(tmp_path / "c", rows)
    everything = np.arange(700)
    np.testing.assert_array_equal(
        nearest(found, everything, 10, memory=memory), brute_force(rows, everything, 10)
    )
    some = np.array([699, 3, 45, 61, 63, 5])
    np.testing.assert_array_equal(nearest(found, some, 4, memory=memory), brute_force(rows, some, 4))


def test_fewer_rows_than_neighbours(tmp_path: Path) -> None:
    rows = matrix(4, 16, 1)
    found = nearest(head(tmp_path / "c", rows), np.arange(4), 10)
    np.testing.assert_array_equal(found, brute_force(rows, np.arange(4), 10))
    assert (found[:, 3:] == -1).all()


def test_no_queries(tmp_path: Path) -> None:
    assert nearest(head(tmp_path / "c", matrix(4, 16)), np.array([], dtype=np.int64), 5).shape == (0, 5)


def test_overlap() -> None:
    before = np.array([[1, 2, 3], [1, 2, -1], [-1, -1, -1]], dtype=np.int32)
    after = np.array([[3, 9, 1], [2, 1, -1], [-1, -1, -1]], dtype=np.int32)
    np.testing.assert_array_equal(overlap(before, after), [2 / 3, 1.0, np.nan])
