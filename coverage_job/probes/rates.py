"""Rates with intervals, and two probe results side by side."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from coverage_job.errors import ProbeError
from coverage_job.probes.judge import Verdict

_Z = 1.959963984540054  # 95 %


def wilson(successes: int, trials: int, z: float = _Z) -> tuple[float, float]:
    """The score interval of a proportion (Wilson 1927); of nothing tried, (0, 1).

    >>> tuple(round(x, 3) for x in wilson(13, 16))
    (0.57, 0.934)
    """
    if trials == 0:
        return 0.0, 1.0
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / trials + spread / trials / 4)
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, slots=True)
class Rate:
    """A proportion with its 95 % Wilson interval; `rate` is None of nothing tried."""

    successes: int
    trials: int
    rate: float | None
    low: float
    high: float

    @classmethod
    def of(cls, successes: int, trials: int) -> Rate:
        return cls(successes, trials, successes / trials if trials else None, *wilson(successes, trials))


def newcombe(before: Rate, after: Rate) -> tuple[float, float]:
    """95 % interval of after - before for independent proportions (Newcombe 1998, method 10)."""
    p, q = before.rate or 0.0, after.rate or 0.0
    low = (q - p) - math.hypot(q - after.low, before.high - p)
    high = (q - p) + math.hypot(after.high - q, p - before.low)
    return max(-1.0, low), min(1.0, high)


def mcnemar(lost: int, gained: int) -> float:
    """Two-sided exact p-value that losses and gains of the same prompts are equally likely.

    >>> mcnemar(9, 0), mcnemar(2, 2)
    (0.00390625, 1.0)
    """
    trials, fewer = lost + gained, min(lost, gained)
    tail = sum(math.comb(trials, i) for i in range(fewer + 1))
    return float(min(1.0, 2 * tail / 2**trials))


def _groups(records: list[dict[str, Any]]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {"overall": {"all": records}}
    for by in ("language", "kind"):
        of = groups.setdefault(f"by_{by}", {})
        for record in records:
            of.setdefault(record[by], []).append(record)
        groups[f"by_{by}"] = dict(sorted(of.items()))
    return groups


def summarize(table: pa.Table) -> dict[str, Any]:
    """Of a PROBE table: per group the verdicts' counts and the rate of ``written``, with interval."""
    summary: dict[str, Any] = {}
    for by, groups in _groups(table.select(["language", "kind", "verdict"]).to_pylist()).items():
        summary[by] = {}
        for name, records in groups.items():
            counts = {v.value: sum(r["verdict"] == v.value for r in records) for v in Verdict}
            written = Rate.of(counts[Verdict.WRITTEN.value], len(records))
            summary[by][name] = {"prompts": len(records), "written": asdict(written), "verdicts": counts}
    return {**summary, "overall": summary["overall"]["all"]}


def compare(baseline: pa.Table, experiment: pa.Table) -> dict[str, Any]:
    """Two PROBE tables on the prompts that both answer: rates, their difference, what was lost and gained.

    difference: experiment - baseline, with Newcombe's interval; p_value: McNemar's exact test on the pairs.
    Raises ProbeError where no prompt is in both.
    """
    columns = ["prompt_id", "prompt", "language", "kind", "token_id", "token", "verdict", "substitute"]
    before = {r["prompt_id"]: r for r in baseline.select(columns).to_pylist()}
    after = {r["prompt_id"]: r for r in experiment.select(columns).to_pylist()}
    # The same id over another text (chosen anew, or another tokenizer) is another prompt.
    both = [i for i in before if i in after and before[i]["prompt"] == after[i]["prompt"]]
    if not both:
        raise ProbeError(
            "the two results have no prompt in common; probe the experiment with the baseline's prompts"
        )
    written = Verdict.WRITTEN.value
    pairs = [
        {
            **before[i],
            "was": before[i]["verdict"] == written,
            "now": after[i]["verdict"] == written,
            "verdict_now": after[i]["verdict"],
            "substitute_now": after[i]["substitute"],
        }
        for i in both
    ]
    result: dict[str, Any] = {
        "prompts": len(both),
        "only_in_baseline": len(before) - len(both),
        "only_in_experiment": len(after) - len(both),
    }
    for by, groups in _groups(pairs).items():
        result[by] = {}
        for name, records in groups.items():
            old = Rate.of(sum(r["was"] for r in records), len(records))
            new = Rate.of(sum(r["now"] for r in records), len(records))
            lost = sum(r["was"] and not r["now"] for r in records)
            gained = sum(r["now"] and not r["was"] for r in records)
            low, high = newcombe(old, new)
            result[by][name] = {
                "prompts": len(records),
                "baseline": asdict(old),
                "experiment": asdict(new),
                "difference": (new.rate or 0.0) - (old.rate or 0.0),
                "difference_low": low,
                "difference_high": high,
                "lost": lost,
                "gained": gained,
                "p_value": mcnemar(lost, gained),
            }
    result["overall"] = result["overall"]["all"]
    result["lost"] = [
        {
            "token_id": r["token_id"],
            "token": r["token"],
            "language": r["language"],
            "kind": r["kind"],
            "verdict": r["verdict_now"],
            "substitute": r["substitute_now"],
        }
        for r in pairs
        if r["was"] and not r["now"]
    ]
    return result
