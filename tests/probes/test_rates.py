from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coverage_job.errors import ProbeError
from coverage_job.probes.rates import Rate, compare, mcnemar, newcombe, summarize, wilson
from coverage_job.schemas import PROBE


def probe_table(verdicts: dict[str, str], prompt: str = "say {}") -> pa.Table:
    rows = [
        {
            "prompt_id": name,
            "token_id": 1,
            "token": "x",
            "language": name[:2],
            "kind": "copy",
            "prompt": prompt.format(name),
            "response": "",
            "verdict": verdict,
        }
        for name, verdict in verdicts.items()
    ]
    return pa.Table.from_pylist(rows, schema=PROBE)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_solves_its_own_equation(case):
    successes, trials = case
    share, z = successes / trials, 1.959963984540054
    low, high = wilson(successes, trials)
    assert 0 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1
    for bound in (low, high):
        # Each end is a proportion from which the observed one is z standard errors away.
        if 1e-12 < bound < 1 - 1e-12:
            assert math.isclose(abs(share - bound), z * math.sqrt(bound * (1 - bound) / trials), rel_tol=1e-6)


def test_nothing_tried_has_no_rate():
    assert Rate.of(0, 0) == Rate(0, 0, None, 0.0, 1.0)


def test_newcombe_on_the_published_example():
    # Newcombe (1998), table II, case (a), method 10: 56/70 - 48/80 has 0.0524 to 0.3339.
    low, high = newcombe(Rate.of(48, 80), Rate.of(56, 70))
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)


def test_mcnemar_is_symmetric_and_bounded():
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(3, 11) == mcnemar(11, 3)
    assert math.isclose(mcnemar(0, 5), 0.0625)


def test_summary_adds_up():
    table = probe_table({"ja1": "written", "ja2": "omitted", "ko1": "written", "ko2": "written"})
    summary = summarize(table)
    assert summary["overall"]["written"]["successes"] == 3
    assert summary["by_language"]["ja"]["written"]["rate"] == 0.5
    assert summary["by_language"]["ko"]["verdicts"]["written"] == 2
    assert sum(summary["overall"]["verdicts"].values()) == summary["overall"]["prompts"] == 4


def test_compare_pairs_prompts():
    old = probe_table(
        {"ja1": "written", "ja2": "written", "ko1": "omitted", "ko2": "written", "xx": "written"}
    )
    new = probe_table({"ja1": "substituted", "ja2": "written", "ko1": "written", "ko2": "refused"})
    result = compare(old, new)
    assert result["prompts"] == 4
    assert result["only_in_baseline"] == 1
    assert (result["overall"]["lost"], result["overall"]["gained"]) == (2, 1)
    assert result["overall"]["difference"] == -0.25
    assert result["overall"]["difference_low"] < -0.25 < result["overall"]["difference_high"]
    assert result["by_language"]["ja"]["lost"] == 1
    assert [r["verdict"] for r in result["lost"]] == ["substituted", "refused"]


def test_other_prompts_under_the_same_ids_are_not_compared():
    with pytest.raises(ProbeError, match="no prompt in common"):
        compare(probe_table({"ja1": "written"}), probe_table({"ja1": "written"}, prompt="write {}"))
