"""The mask audit: a mergeable state, and what a run says of it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coverage_job.corpus.audit import COUNTS, MAX_TEXTS, THRESHOLDS, MaskAudit, findings
from coverage_job.corpus.chat import Rendered

small = st.integers(0, 3)
texts = st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), max_size=3)
audits = st.builds(
    MaskAudit,
    **dict.fromkeys(COUNTS, small),
    end_of_turn=st.dictionaries(st.sampled_from("xy"), st.lists(small, min_size=2, max_size=2)),
    unknown_roles=texts,
    failures=texts,
    unmaskable_reasons=texts,
)


@settings(deadline=None)
@given(audits, audits, audits)
def test_merge_is_associative_and_commutative(a: MaskAudit, b: MaskAudit, c: MaskAudit) -> None:
    assert a.merge(b) == b.merge(a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(MaskAudit()) == a


@settings(deadline=None)
@given(audits)
def test_it_travels_as_plain_values(audit: MaskAudit) -> None:
    assert MaskAudit.from_dict(audit.to_dict()) == audit


def test_merge_leaves_its_parts_alone() -> None:
    a, b = MaskAudit(end_of_turn={"e": [1, 0]}), MaskAudit(end_of_turn={"e": [2, 2]})
    assert a.merge(b).end_of_turn == {"e": [3, 2]}
    assert (a.end_of_turn, b.end_of_turn) == ({"e": [1, 0]}, {"e": [2, 2]})


def test_what_rendering_found_is_counted() -> None:
    audit = MaskAudit()
    audit.add_rendered(Rendered(b"", [], unmaskable="why"), "f:1")
    audit.add_rendered(Rendered(b"", [], special_texts=3, media=2, lost_tool_calls=2), "f:2")
    audit.add_rendered(Rendered(b"", [], unknown_roles=["x", "x", "y"]), "f:3")
    audit.add_failure("template says no", "f:4")
    assert (audit.unmaskable, audit.unmaskable_reasons) == (1, {"why": 1})
    assert (audit.with_special_text, audit.special_texts) == (1, 3)
    assert (audit.with_media, audit.with_lost_tool_calls, audit.lost_tool_calls) == (1, 1, 2)
    assert (audit.with_unknown_role, audit.unknown_roles) == (1, {"x": 1, "y": 1})
    assert (audit.failed, audit.failures) == (1, {"template says no": 1})
    assert audit.examples["failed"] == ["f:4"]


def test_texts_and_examples_are_bounded() -> None:
    audit = MaskAudit()
    for i in range(100):
        audit.add_failure(f"message {i}", f"f:{i}")
    assert len(audit.failures) == MAX_TEXTS + 1
    assert sum(audit.failures.values()) == 100
    assert audit.examples["failed"] == ["f:0", "f:1", "f:2"]
    assert len(audit.merge(audit).failures) == MAX_TEXTS + 1


def test_each_threshold_warns_when_passed_and_not_before() -> None:
    for rule in THRESHOLDS:
        at = int(rule.share * 1000)
        # Failed records are not among `records`.
        below = MaskAudit(records=1000, **{rule.name: at})
        if at:
            (finding,) = findings(below)
            assert not finding.warns
        over = MaskAudit(records=1000 - (rule.name == "failed") * (at + 1), **{rule.name: at + 1})
        (finding,) = findings(over)
        assert (finding.name, finding.count, finding.warns) == (rule.name, at + 1, True)
        assert finding.text.startswith(f"{at + 1:,} of 1,000 records: ")
    assert findings(MaskAudit(records=1000)) == []


def test_thresholds_can_be_set() -> None:
    audit = MaskAudit(records=10, with_seams=10, seam_tokens=12)
    (finding,) = findings(audit, {"with_seams": 1.0})
    assert not finding.warns
    assert "(12 tokens)" in finding.text


def test_an_end_of_turn_that_is_never_a_target_is_named() -> None:
    # Fault 4.
    audit = MaskAudit(records=5, supervised_tokens=50, end_of_turn={"<|im_end|>": [10, 5], "</s>": [5, 0]})
    (finding,) = findings(audit)
    assert finding.warns
    assert finding.text == "the end-of-turn token '</s>' is never trained, though it occurs 5 times"


def test_a_finding_names_reasons_and_a_place() -> None:
    audit = MaskAudit(records=1)
    audit.add_failure("roles must alternate", "a.jsonl:3")
    (finding,) = findings(audit)
    assert finding.text == (
        "1 of 2 records: the chat template failed, and they are not counted "
        "(roles must alternate (1); such as a.jsonl:3)"
    )
