from __future__ import annotations

from typing import Any

import pytest

from coverage_job.checks import Facts, evaluate
from coverage_job.config import Check


def row(by: str, value: str, **counts: int) -> dict[str, Any]:
    base = {"tokens": 100, "covered": 60, "under": 30, "critical": 10, "absent": 12, "exempt": 10}
    return {"by": by, "value": value, **base, **counts}


FACTS = Facts(
    summary=[
        row("kind", "base"),
        row("kind", "byte", tokens=20, under=2, exempt=0),
        row("language", "ja", under=45),
    ],
    corpora=[
        {"name": "a", "records": 50, "bad_records": 1, "tokens": 7, "mask_audit": {"seams": 3}},
        {"name": "b", "records": 50, "bad_records": 0, "tokens": 8},
    ],
    drift={
        "lm_head": {
            "overall": {"mean": 0.98, "min": 0.3, "under_0.95": {"count": 4, "share": 0.04}},
            "by": {"language": {"ja": {"mean": 0.7, "min": 0.3, "under_0.95": {"count": 4, "share": 0.9}}}},
        }
    },
)


def outcome(baseline: Facts | None = None, **check: Any) -> Any:
    (result,) = evaluate([Check(**check)], FACTS, lambda _: baseline)
    return result


@pytest.mark.parametrize(
    ("check", "value"),
    [
        ({"metric": "flagged", "max": 99}, 32),
        ({"metric": "flagged_rate", "max": 1}, 32 / 110),
        ({"metric": "flagged_rate", "where": {"language": "ja"}, "max": 1}, 45 / 90),
        ({"metric": "critical", "max": 99}, 20),
        ({"metric": "tokens", "min": 0}, 15),
        ({"metric": "tokens", "corpus": "b", "min": 0}, 8),
        ({"metric": "bad_fraction", "max": 1}, 0.01),
        ({"metric": "mask_audit", "audit": "seams", "max": 5}, 3),
        ({"metric": "drift_under", "threshold": 0.95, "max": 1}, 0.04),
        ({"metric": "drift_mean", "min": 0}, 0.98),
        ({"metric": "drift_mean", "where": {"language": "ja"}, "min": 0}, 0.7),
    ],
)
def test_figures_are_those_of_the_run(check: dict[str, Any], value: float) -> None:
    result = outcome(**check)
    assert result.verdict == "pass"
    assert result.value == pytest.approx(value)


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [
        ({"max": 32}, "pass"),
        ({"max": 31}, "fail"),
        ({"min": 33}, "fail"),
        ({"warn_max": 31}, "warn"),
        ({"max": 40, "warn_max": 31}, "warn"),
        ({"max": 31, "warn_max": 20}, "fail"),
    ],
)
def test_limits_pass_warn_and_fail(limits: dict[str, float], verdict: str) -> None:
    assert outcome(metric="flagged", **limits).verdict == verdict


@pytest.mark.parametrize(
    "check",
    [
        {"metric": "flagged", "where": {"language": "xx"}, "max": 10**9},
        {"metric": "tokens", "corpus": "nothing", "min": 0},
        {"metric": "mask_audit", "audit": "nothing", "max": 10**9},
        {"metric": "mask_audit", "audit": "seams", "corpus": "b", "max": 10**9},
        {"metric": "mixed_script_rate", "max": 1},
        {"metric": "drift_under", "threshold": 0.9, "max": 1},
        {"metric": "drift_mean", "where": {"language": "ko"}, "min": -1},
    ],
)
def test_a_check_on_something_missing_fails(check: dict[str, Any]) -> None:
    result = outcome(**check)
    assert result.verdict == "fail"
    assert result.value is None
    assert "no such figure" in result.reason


def test_change_against_a_baseline() -> None:
    before = Facts(summary=[row("kind", "base", under=16)], corpora=[])
    assert outcome(before, metric="flagged", change="absolute", max=16).value == 16
    assert outcome(before, metric="flagged", change="relative", max=1).verdict == "pass"
    assert outcome(before, metric="flagged", change="relative", max=0.9).verdict == "fail"


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (None, "no such run"),
        (Facts(summary=[], corpora=[]), "no such figure"),
        (Facts(summary=[row("kind", "base", under=0)], corpora=[]), "baseline is 0"),
    ],
)
def test_a_missing_baseline_fails(before: Facts | None, why: str) -> None:
    result = outcome(before, metric="flagged", change="relative", max=10)
    assert result.verdict == "fail"
    assert why in result.reason


def test_a_figure_that_is_no_number_fails() -> None:
    facts = Facts(summary=[], corpora=[], drift={"lm_head": {"overall": {"mean": float("nan")}, "by": {}}})
    (result,) = evaluate([Check(metric="drift_mean", min=0.5)], facts, lambda _: None)
    assert result.verdict == "fail"


@pytest.mark.parametrize(
    "check",
    [
        {"metric": "flagged"},
        {"metric": "flagged", "corpus": "a", "max": 1},
        {"metric": "tokens", "where": {"language": "ja"}, "max": 1},
        {"metric": "mask_audit", "max": 1},
        {"metric": "drift_under", "max": 1},
        {"metric": "nonsense", "max": 1},
    ],
)
def test_a_check_that_says_too_little_is_refused(check: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Check(**check)
