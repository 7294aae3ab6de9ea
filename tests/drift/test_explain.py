from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coverage_job.drift.explain import by_bucket, calibrated_minimum, spearman


def test_buckets() -> None:
    counts = np.array([0, 0, 1, 4, 5, 19, 20, 99, 100, 5000, 7])
    cosine = np.array([0.5, 0.9, 0.94, 0.96, 0.97, 0.97, 0.98, 0.98, 0.99, 0.99, np.nan])
    rows = by_bucket(counts, cosine, 1 - cosine)
    assert [(r["supervised"], r["tokens"]) for r in rows] == [
        ("0", 2),
        ("1-4", 2),
        ("5-19", 2),
        ("20-99", 2),
        ("100+", 2),
    ]
    assert [r["under"] for r in rows] == [1.0, 0.5, 0.0, 0.0, 0.0]
    assert rows[0]["cosine"] == pytest.approx(0.7)
    assert rows[0]["l2"] == pytest.approx(0.3)


def test_spearman_shares_ranks_of_ties_and_drops_undefined() -> None:
    # Ranks 1.5 1.5 3 4 against 1 2 4 3: covariance 3.5 over sqrt(4.5 x 5).
    assert spearman(np.array([0, 0, 3, 9, 5]), np.array([0.1, 0.2, 0.9, 0.4, np.nan])) == pytest.approx(
        3.5 / np.sqrt(4.5 * 5)
    )
    assert spearman(np.array([1, 1]), np.array([0.1, 0.2])) is None


@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40),
    st.floats(0.05, 0.9),
)
def test_the_minimum_is_the_smallest_count_that_suffices(rows: list[tuple[int, bool]], target: float) -> None:
    counts = np.array([c for c, _ in rows])
    cosine = np.where([low for _, low in rows], 0.5, 0.99)
    expected = None
    for minimum in sorted(set(counts.tolist())):
        if (cosine[counts >= minimum] < 0.95).mean() < target:
            expected = minimum
            break
    result = calibrated_minimum(counts, cosine, target=target, resamples=10)
    assert result["minimum"] == expected
    assert result["tokens"] == (0 if expected is None else int((counts >= expected).sum()))


def test_the_interval_is_that_of_drawing_rows() -> None:
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 60, 3000)
    cosine = np.where(rng.random(3000) < np.exp(-counts / 6), 0.8, 0.99)
    result = calibrated_minimum(counts, cosine, target=0.02, resamples=400)
    drawn = []
    for _ in range(400):
        pick = rng.integers(0, 3000, 3000)
        drawn.append(calibrated_minimum(counts[pick], cosine[pick], target=0.02, resamples=1)["minimum"])
    low, high = np.quantile(drawn, [0.025, 0.975], method="inverted_cdf")
    assert result["low"] <= result["minimum"] <= result["high"]
    assert abs(result["low"] - low) <= 2
    assert abs(result["high"] - high) <= 2
    assert result["none_share"] == 0
    assert result == calibrated_minimum(counts, cosine, target=0.02, resamples=400)


def test_where_no_count_suffices() -> None:
    result = calibrated_minimum(np.arange(50), np.full(50, 0.5), resamples=20)
    assert result["minimum"] is None
    assert result["none_share"] == 1
    assert result["high"] is None
    assert calibrated_minimum(np.arange(3), np.full(3, np.nan))["minimum"] is None
