"""What was read of a corpus, beside the counts: a mergeable state, like them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from coverage_job.corpus.audit import MaskAudit
from coverage_job.corpus.mixed import MixedScripts
from coverage_job.corpus.reader import BadRecord, PieceStats, locate

# Located bad records kept of a corpus; all are counted.
_MAX_BAD = 10_000
_SUMS = ("records", "documents", "bad_records", "empty_documents", "bytes", "labelled", "shifted_labels")


@dataclass
class PieceReport:
    """What counting one piece of a file gave. error: why its file cannot be used; '' where it can."""

    stats: PieceStats
    error: str = ""
    tokens: int = 0
    supervised_tokens: int = 0
    mask_audit: dict[str, Any] = field(default_factory=dict)
    mixed: dict[str, Any] = field(default_factory=dict)
    bad: list[BadRecord] = field(default_factory=list)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PieceReport:
        bad = [BadRecord(**{**b, "first_bytes": bytes.fromhex(b["first_bytes"])}) for b in data["bad"]]
        return cls(**{**data, "stats": PieceStats(**data["stats"]), "bad": bad})


@dataclass
class Tally:
    """Sums over pieces that ended well.

    missing: files that could not be used, with the error. bad: located in their files, at most 10,000.
    reasons, notes: records by what was wrong with them, or worth a note.
    """

    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0))
    tokens: int = 0
    supervised_tokens: int = 0
    seconds: float = 0.0
    mask_audit: MaskAudit = field(default_factory=MaskAudit)
    mixed: MixedScripts = field(default_factory=MixedScripts)
    reasons: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    bad: list[BadRecord] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, pieces: Iterable[PieceReport]) -> None:
        """Add pieces; all of a file at once, so that its bad records can be placed."""
        pieces = list(pieces)
        for piece in pieces:
            if piece.error:
                self.missing[piece.stats.file] = piece.error
                continue
            for name in _SUMS:
                self.sums[name] += getattr(piece.stats, name)
            self.tokens += piece.tokens
            self.supervised_tokens += piece.supervised_tokens
            if piece.mask_audit:
                self.mask_audit = self.mask_audit.merge(MaskAudit.from_dict(piece.mask_audit))
            if piece.mixed:
                self.mixed.merge(MixedScripts.from_dict(piece.mixed))
            self.reasons.update(piece.stats.reasons)
            self.notes.update(piece.stats.notes)
        read = [p for p in pieces if not p.error]
        self._add_bad(locate([b for p in read for b in p.bad], [p.stats for p in read]))

    def merge(self, other: Tally) -> None:
        """Add what another tally holds."""
        for name in _SUMS:
            self.sums[name] += other.sums[name]
        self.tokens += other.tokens
        self.supervised_tokens += other.supervised_tokens
        self.mask_audit = self.mask_audit.merge(other.mask_audit)
        self.mixed.merge(other.mixed)
        self.reasons.update(other.reasons)
        self.notes.update(other.notes)
        self.missing |= other.missing
        self._add_bad(other.bad)

    def _add_bad(self, bad: list[BadRecord]) -> None:
        merged = sorted([*self.bad, *bad], key=lambda b: (b.file, b.position))
        self.bad = merged[:_MAX_BAD]

    def to_dict(self) -> dict[str, Any]:
        """As plain values. Seconds and missing files belong to a run, and are left out."""
        bad = [{**asdict(b), "first_bytes": b.first_bytes.hex()} for b in self.bad]
        return {
            "sums": self.sums,
            "tokens": self.tokens,
            "supervised_tokens": self.supervised_tokens,
            "mask_audit": self.mask_audit.to_dict(),
            "mixed": self.mixed.to_dict(),
            "reasons": dict(self.reasons),
            "notes": dict(self.notes),
            "bad": bad,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tally:
        bad = [BadRecord(**{**b, "first_bytes": bytes.fromhex(b["first_bytes"])}) for b in data["bad"]]
        return cls(
            **{
                **data,
                "mask_audit": MaskAudit.from_dict(data["mask_audit"]),
                "mixed": MixedScripts.from_dict(data["mixed"]),
                "reasons": Counter(data["reasons"]),
                "notes": Counter(data["notes"]),
                "bad": bad,
            }
        )
