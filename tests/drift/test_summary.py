from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from coverage_job.drift.summary import new_neighbours, summarize


def test_figures_overall_and_by_group_leave_out_undefined_rows() -> None:
    cosine = np.array([1.0, 0.94, 0.5, np.nan, 0.95, 0.90])
    labels = pl.DataFrame(
        {"language": ["en", "ja", "ja", "ja", "en", "zh"], "kind": ["base"] * 6, "other": range(6)}
    )
    summary = summarize(cosine, labels)
    overall = summary["overall"]
    assert overall["tokens"] == 5
    assert overall["mean"] == pytest.approx((1.0 + 0.94 + 0.5 + 0.95 + 0.90) / 5)
    assert overall["min"] == 0.5
    assert overall["under_0.95"] == {"count": 3, "share": 0.6}
    assert overall["under_0.90"] == {"count": 1, "share": 0.2}
    assert overall["under_0.65"] == {"count": 1, "share": 0.2}
    assert set(summary["by"]) == {"language", "kind"}
    assert summary["by"]["language"]["ja"] == {
        "tokens": 2,
        "mean": pytest.approx(0.72),
        "min": 0.5,
        "under_0.95": {"count": 2, "share": 1.0},
        "under_0.90": {"count": 1, "share": 0.5},
        "under_0.65": {"count": 1, "share": 0.5},
    }
    assert sum(f["tokens"] for f in summary["by"]["language"].values()) == 5


def test_no_defined_row_gives_no_figures() -> None:
    summary = summarize(np.array([np.nan, np.nan]), pl.DataFrame({"language": ["en", "ja"]}))
    assert summary["overall"]["tokens"] == 0
    assert summary["overall"]["mean"] is None
    assert summary["overall"]["under_0.95"] == {"count": 0, "share": None}
    assert summary["by"] == {"language": {}}


def test_new_neighbours_by_language() -> None:
    languages = ["en", "ja", "ru", "ja", "ru"]
    special = np.array([False, False, True, False, False])
    found = new_neighbours(
        np.array([1, 3]),
        np.array([[0, 3], [1, -1]], dtype=np.int32),
        np.array([[2, 3], [4, 2]], dtype=np.int32),
        languages,
        special,
    )
    assert found == {
        "rows": 2,
        "gained": 3,
        "special_share": pytest.approx(2 / 3),
        "languages": {"ja": {"ru": 3}},
    }
