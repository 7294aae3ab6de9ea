"""Thresholds and history -> pass, warn or fail. Decision code: figures in, verdicts out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from coverage_job.config import Check
from coverage_job.errors import did_you_mean

_OF_CORPUS = ("tokens", "supervised_tokens", "documents", "bad_fraction", "mask_audit", "mixed_script_rate")
Verdict = Literal["pass", "warn", "fail"]


@dataclass(frozen=True)
class Facts:
    """The figures of a run.

    summary: rows of schema SUMMARY as dicts. corpora: the list of `run.json`. drift: what `drift.json`
    holds, where drift was scored.
    """

    summary: Sequence[Mapping[str, Any]]
    corpora: Sequence[Mapping[str, Any]]
    drift: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Result:
    """A check's outcome. value is None where the figure is missing, which fails."""

    name: str
    value: float | None
    threshold: str
    verdict: Verdict
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(checks: Sequence[Check], facts: Facts, baseline: Callable[[str], Facts | None]) -> list[Result]:
    """The outcome of every check.

    baseline: the figures of a run by name (`previous`, or a path); None where there is no such run.
    """
    return [_evaluate(check, facts, baseline) for check in checks]


def _evaluate(check: Check, facts: Facts, baseline: Callable[[str], Facts | None]) -> Result:
    value = figure(check, facts)
    limits = _limits(check)
    if value is None:
        why = f"this run has no such figure: {check.label}{_near(check, facts)}"
        return Result(check.label, None, limits, "fail", why)
    if check.change is not None:
        before_facts = baseline(check.baseline)
        before = figure(check, before_facts) if before_facts is not None else None
        if before is None:
            why = "there is no such run" if before_facts is None else "that run has no such figure"
            return Result(check.label, None, limits, "fail", f"no baseline ({check.baseline}): {why}")
        difference = value - before
        if check.change == "relative":
            if before == 0 and difference != 0:
                return Result(
                    check.label, None, limits, "fail", "the baseline is 0: no relative change exists"
                )
            difference = difference / before if before else 0.0
        value = difference
    if bad := _outside(value, check.min, check.max):
        return Result(check.label, value, limits, "fail", f"{value:g} {bad}")
    if bad := _outside(value, check.warn_min, check.warn_max):
        return Result(check.label, value, limits, "warn", f"{value:g} {bad}")
    return Result(check.label, value, limits, "pass", "")


def _near(check: Check, facts: Facts) -> str:
    """What a name that the run does not have may have been meant to be."""
    audited: Mapping[str, Any] = next((c["mask_audit"] for c in facts.corpora if "mask_audit" in c), {})
    if check.audit is not None:
        return did_you_mean(check.audit, audited) if check.audit not in audited else ""
    for by, value in check.where.items():
        known = [r["value"] for r in facts.summary if r["by"] == by]
        return did_you_mean(value, known) if value not in known else ""
    return ""


def _outside(value: float, low: float | None, high: float | None) -> str:
    # Written so that NaN is outside of any limit.
    if high is not None and not value <= high:
        return f"is above {high:g}"
    if low is not None and not value >= low:
        return f"is below {low:g}"
    return ""


def _limits(check: Check) -> str:
    named = (
        ("max", check.max),
        ("min", check.min),
        ("warn_max", check.warn_max),
        ("warn_min", check.warn_min),
    )
    return ", ".join(f"{name} {limit:g}" for name, limit in named if limit is not None)


def figure(check: Check, facts: Facts) -> float | None:
    """The figure that a check is about, or None where the run has none."""
    if check.metric.startswith("drift"):
        return _drift(check, facts.drift)
    if check.metric in _OF_CORPUS:
        return _of_corpora(check, facts.corpora)
    return _of_tokens(check, facts.summary)


def _of_tokens(check: Check, summary: Sequence[Mapping[str, Any]]) -> float | None:
    (by, value) = next(iter(check.where.items())) if check.where else ("kind", None)
    rows = [r for r in summary if r["by"] == by and value in (None, r["value"])]
    if not rows:
        return None
    total = {
        name: sum(r[name] for r in rows)
        for name in ("tokens", "covered", "under", "critical", "absent", "exempt")
    }
    asked = total["tokens"] - total["exempt"]
    counts = {"flagged": "under", "absent": "absent", "critical": "critical"}
    if check.metric in counts:
        return float(total[counts[check.metric]])
    rates = {"flagged_rate": "under", "absent_rate": "absent", "covered_rate": "covered"}
    return total[rates[check.metric]] / asked if asked else None


def _of_corpora(check: Check, corpora: Sequence[Mapping[str, Any]]) -> float | None:
    chosen = [c for c in corpora if check.corpus in (None, c["name"])]
    if not chosen:
        return None
    if check.metric == "bad_fraction":
        records = sum(c["records"] for c in chosen)
        return sum(c["bad_records"] for c in chosen) / records if records else None
    if check.metric == "mask_audit":
        values = [c["mask_audit"][check.audit] for c in chosen if check.audit in c.get("mask_audit", {})]
        return float(sum(values)) if values else None
    if check.metric == "mixed_script_rate":
        audited = [c["mixed_script"] for c in chosen if c.get("mixed_script")]
        documents = sum(a["documents"] for a in audited)
        return sum(a["mixed"] for a in audited) / documents if documents else None
    return float(sum(c[check.metric] for c in chosen))


def _drift(check: Check, drift: Mapping[str, Any] | None) -> float | None:
    if drift is None or "lm_head" not in drift:
        return None
    part: Mapping[str, Any] | None = drift["lm_head"]["overall"]
    for by, value in check.where.items():
        part = drift["lm_head"]["by"].get(by, {}).get(value)
    if part is None:
        return None
    if check.metric == "drift_under":
        entry = part.get(f"under_{check.threshold:.2f}")
        found = None if entry is None else entry["share"]
    else:
        found = part["mean" if check.metric == "drift_mean" else "min"]
    return None if found is None else float(found)
