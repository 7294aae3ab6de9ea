"""Scripts that are foreign to a dialogue's language, in what it teaches: one cause of mixed answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from coverage_job.config import TrainOn
from coverage_job.corpus.shapes import Dialogue
from coverage_job.tokenizer.scripts import mixed_script

# Places kept, and of one dialogue, so that a long one leaves room for others; all documents are counted.
_MOST_PLACES = 1000
_OF_ONE = 20
_AROUND = 12


@dataclass
class MixedScripts:
    """Per language the supervised documents, and those that hold letters of a foreign script.

    A mergeable state. documents, mixed: by language. places: dicts of schema MIXED_SCRIPT less the
    corpus, at most 1,000, and at most 20 of one dialogue.
    """

    documents: dict[str, int] = field(default_factory=dict)
    mixed: dict[str, int] = field(default_factory=dict)
    places: list[dict[str, Any]] = field(default_factory=list)

    def look(self, dialogue: Dialogue, language: str, train_on: TrainOn, place: str) -> None:
        """Look at the supervised messages of a dialogue; what the others hold may be quoted."""
        trained = dialogue.trained(train_on)
        if not language or not any(trained):
            return
        quoted = "\n".join(
            t for texts, ok in zip(dialogue.texts, trained, strict=True) if not ok for t in texts
        )
        found = 0
        for message, (texts, ok) in enumerate(zip(dialogue.texts, trained, strict=True)):
            for text in texts if ok else ():
                for start, end, script in mixed_script(text, language, quoted):
                    found += 1
                    if found <= _OF_ONE and len(self.places) < _MOST_PLACES:
                        excerpt = text[max(0, start - _AROUND) : end + _AROUND]
                        self.places.append(
                            {
                                "place": place,
                                "language": language,
                                "script": script,
                                "message": message,
                                "start": start,
                                "end": end,
                                "excerpt": excerpt,
                            }
                        )
        self.documents[language] = self.documents.get(language, 0) + 1
        if found:
            self.mixed[language] = self.mixed.get(language, 0) + 1

    def merge(self, other: MixedScripts) -> None:
        """Add what another holds."""
        for mine, theirs in ((self.documents, other.documents), (self.mixed, other.mixed)):
            for language, number in theirs.items():
                mine[language] = mine.get(language, 0) + number
        self.places = [*self.places, *other.places][:_MOST_PLACES]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MixedScripts:
        return cls(**data)
