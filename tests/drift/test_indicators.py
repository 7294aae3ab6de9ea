from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from coverage_job.drift.indicators import candidates, unused_indicators
from tests.checkpoint.make import matrix
from tests.drift.test_score import head


def test_indicators_agree_with_their_definitions(tmp_path: Path) -> None:
    rows, columns = 600, 40
    common = 3 * matrix(1, columns, 9)
    x = (matrix(rows, columns, 1) + common).double()
    x[500:520] = common + 0.05 * matrix(20, columns, 2)
    x[30], x[31, 0] = 0, float("nan")
    unused = np.zeros(rows, dtype=bool)
    unused[500:510] = True
    result = unused_indicators(head(tmp_path / "c", x.float()), unused)
    assert result is not None
    finite = torch.isfinite(x).all(1)
    reference, mean = x[500:510].mean(0), x[finite].mean(0)
    first = torch.linalg.svd(x[finite], full_matrices=False)[2][0]

    def without(rows: torch.Tensor) -> torch.Tensor:
        return rows - (rows @ first)[..., None] * first

    expected = {
        "cosine": torch.cosine_similarity(x, reference[None]),
        "l2": (x - reference).norm(dim=1),
        "centred": torch.cosine_similarity(x - mean, (reference - mean)[None]),
        "without_first": torch.cosine_similarity(without(x), without(reference)[None]),
    }
    for name, values in expected.items():
        got = getattr(result, name)
        assert np.isnan(got[[30, 31]]).all()
        others = np.delete(np.arange(rows), [30, 31])
        np.testing.assert_allclose(got[others], values.numpy()[others], atol=2e-4, err_msg=name)


def test_candidates_are_the_rows_nearest_to_unused_ones(tmp_path: Path) -> None:
    rows = 1000
    x = matrix(rows, 64, 1)
    anchor = matrix(1, 64, 5)
    x[990:] = anchor + 0.01 * matrix(10, 64, 6)
    x[[3, 40, 77]] = anchor + 0.05 * matrix(3, 64, 7)
    unused = np.arange(rows) >= 990
    indicators = unused_indicators(head(tmp_path / "c", x), unused)
    chosen = candidates(None, indicators, ~unused, share=3 / 990)
    assert chosen is not None
    assert np.flatnonzero(chosen).tolist() == [3, 40, 77]


def test_candidates_of_untied_models_have_the_shortest_embeddings() -> None:
    norm = np.array([1.0, 0.2, np.nan, 0.1, 0.3, 0.0])
    eligible = np.array([True, True, True, True, True, False])
    chosen = candidates(norm, None, eligible, share=0.5)
    assert chosen is not None
    assert np.flatnonzero(chosen).tolist() == [1, 3]
    assert candidates(None, None, eligible) is None


def test_without_unused_rows_there_is_no_reference(tmp_path: Path) -> None:
    assert unused_indicators(head(tmp_path / "c", matrix(5, 4)), np.zeros(5, dtype=bool)) is None
