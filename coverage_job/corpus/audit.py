"""The mask audit: how far what is trained is what a corpus' owner thinks is trained.

`MaskAudit` is a mergeable state of plain counts, one per corpus and task; `findings` holds it against
thresholds and says in words where a run should warn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from coverage_job.corpus.chat import Rendered

MAX_TEXTS = 20
MAX_EXAMPLES = 3


@dataclass(slots=True)
class MaskAudit:
    """Counts over the records of one corpus; empty on construction, added to record by record.

    records: records that were rendered or read as tokens. failed: records whose template failed, which
        are not among `records`. The other `records_...` and names without a prefix count records.
    tokens, supervised_tokens, seam_tokens: counts of tokens; a seam token straddles a span's border.
    special_texts, lost_tool_calls: counts of occurrences.
    labels, label_mismatches: of token corpora, positions with a label, and those whose label is another id
        than the input's.
    end_of_turn: token text -> [occurrences, supervised ones].
    unknown_roles, failures, unmaskable_reasons: text -> records; at most 20 texts each, what is over
        counts under ''.
    examples: name of a count -> places of a few records.
    """

    records: int = 0
    failed: int = 0
    unmaskable: int = 0
    without_target: int = 0
    without_labels: int = 0
    with_seams: int = 0
    with_two_bos: int = 0
    with_special_text: int = 0
    with_unknown_role: int = 0
    with_media: int = 0
    with_lost_tool_calls: int = 0
    truncated: int = 0
    truncated_answers: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    seam_tokens: int = 0
    special_texts: int = 0
    lost_tool_calls: int = 0
    labels: int = 0
    label_mismatches: int = 0
    end_of_turn: dict[str, list[int]] = field(default_factory=dict)
    unknown_roles: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    unmaskable_reasons: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add_rendered(self, rendered: Rendered, place: str = "") -> None:
        """Count what rendering found in one record. place: its file and position. Tokens come later."""
        if rendered.unmaskable:
            self.unmaskable += 1
            _count(self.unmaskable_reasons, rendered.unmaskable)
            self.example("unmaskable", place)
        if rendered.special_texts:
            self.with_special_text += 1
            self.special_texts += rendered.special_texts
            self.example("with_special_text", place)
        if rendered.unknown_roles:
            self.with_unknown_role += 1
            for role in dict.fromkeys(rendered.unknown_roles):
                _count(self.unknown_roles, role[:80])
            self.example("with_unknown_role", place)
        if rendered.media:
            self.with_media += 1
            self.example("with_media", place)
        if rendered.lost_tool_calls:
            self.with_lost_tool_calls += 1
            self.lost_tool_calls += rendered.lost_tool_calls
            self.example("with_lost_tool_calls", place)

    def add_labels(self, labels: int, mismatches: int, place: str = "") -> None:
        """Count the labels of a token corpus. place: where they stand."""
        self.labels += labels
        self.label_mismatches += mismatches
        if mismatches:
            self.example("label_mismatches", place)

    def add_unlabelled(self, records: int, place: str = "") -> None:
        """Count records of ids that come with neither labels nor a loss mask."""
        self.without_labels += records
        if records:
            self.example("without_labels", place)

    def add_failure(self, message: str, place: str = "") -> None:
        """Count a record whose template failed, with the template's own message."""
        self.failed += 1
        _count(self.failures, " ".join(message.split()))
        self.example("failed", place)

    def example(self, name: str, place: str) -> None:
        if not place:
            return
        places = self.examples.setdefault(name, [])
        if len(places) < MAX_EXAMPLES and place not in places:
            places.append(place)

    def merge(self, other: MaskAudit) -> MaskAudit:
        """The audit of both: counts add up, texts and examples stay bounded."""
        out = MaskAudit(
            **{name: getattr(self, name) + getattr(other, name) for name in COUNTS},
            end_of_turn={text: list(pair) for text, pair in self.end_of_turn.items()},
        )
        for text, pair in other.end_of_turn.items():
            mine = out.end_of_turn.setdefault(text, [0, 0])
            mine[0] += pair[0]
            mine[1] += pair[1]
        for name in ("unknown_roles", "failures", "unmaskable_reasons"):
            texts: dict[str, int] = getattr(out, name)
            for source in (self, other):
                for text, number in getattr(source, name).items():
                    _count(texts, text, number)
        for source in (self, other):
            for name, places in source.examples.items():
                for place in places:
                    out.example(name, place)
        return out

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `run.json`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MaskAudit:
        return cls(**data)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def _count(texts: dict[str, int], text: str, number: int = 1) -> None:
    if text not in texts and len(texts) >= MAX_TEXTS:
        text = ""
    texts[text] = texts.get(text, 0) + number


COUNTS = tuple(f.name for f in fields(MaskAudit) if f.default == 0)


@dataclass(frozen=True, slots=True)
class Threshold:
    """A share of records over which a run warns, and what it then says."""

    name: str
    share: float
    text: str


# Shares of all records, failed ones included; 0 warns at the first one.
THRESHOLDS = (
    Threshold("failed", 0.0, "the chat template failed, and they are not counted"),
    Threshold("unmaskable", 0.0, "what bears loss cannot be found exactly, so nothing is taken as trained"),
    Threshold("without_target", 0.01, "no token is trained"),
    Threshold("without_labels", 0.0, "neither labels nor a loss mask, so all is taken as trained"),
    Threshold("with_seams", 0.5, "a token straddles the border between prompt and answer"),
    Threshold("with_two_bos", 0.0, "more than one BOS"),
    Threshold("with_special_text", 0.01, "special-token text inside a message"),
    Threshold("with_unknown_role", 0.0, "roles that are not known, taken as not trained"),
    Threshold("with_media", 0.01, "image, audio or video parts, of which the text alone is counted"),
    Threshold("with_lost_tool_calls", 0.0, "tool calls that the template leaves out"),
    Threshold("truncated_answers", 0.05, "an answer is cut by max_length"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the audit.

    name: the count, or `end_of_turn`. count, share: records (labels for `label_mismatches`, occurrences for
    `end_of_turn`). warns: past the threshold. text: in words.
    """

    name: str
    count: int
    share: float
    threshold: float
    warns: bool
    text: str


def findings(audit: MaskAudit, thresholds: Mapping[str, float] | None = None) -> list[Finding]:
    """The audit held against its thresholds, one finding per count that is not 0.

    thresholds: shares by name, where they differ from the documented ones.
    """
    total = audit.records + audit.failed
    own = thresholds or {}
    out: list[Finding] = []
    for rule in THRESHOLDS:
        count = getattr(audit, rule.name)
        if not count:
            continue
        limit = own.get(rule.name, rule.share)
        share = count / total if total else 0.0
        text = f"{count:,} of {total:,} records: {rule.text}{_detail(audit, rule.name)}"
        out.append(Finding(rule.name, count, share, limit, share > limit, text))
    if audit.label_mismatches:
        # Past 1 % they are taken for shifted ones, and the run ends.
        limit = own.get("label_mismatches", 0.0)
        share = audit.label_mismatches / audit.labels
        text = f"{audit.label_mismatches:,} of {audit.labels:,} labels: another id than their own position's"
        text += _detail(audit, "label_mismatches")
        out.append(Finding("label_mismatches", audit.label_mismatches, share, limit, share > limit, text))
    for token, (seen, supervised) in sorted(audit.end_of_turn.items()):
        if supervised:
            continue
        text = f"the end-of-turn token {token!r} is never trained"
        text += f", though it occurs {seen:,} times" if seen else ", and never occurs"
        out.append(Finding("end_of_turn", seen, 1.0, 0.0, audit.supervised_tokens > 0, text))
    return out


def _detail(audit: MaskAudit, name: str) -> str:
    texts = {
        "failed": audit.failures,
        "unmaskable": audit.unmaskable_reasons,
        "with_unknown_role": audit.unknown_roles,
    }.get(name, {})
    shown = sorted(texts.items(), key=lambda item: (-item[1], item[0]))[:3]
    parts = [f"{text or 'others'} ({number:,})" for text, number in shown]
    if name == "with_seams":
        parts = [f"{audit.seam_tokens:,} tokens"]
    if places := audit.examples.get(name):
        parts.append(f"such as {places[0]}")
    return f" ({'; '.join(parts)})" if parts else ""
