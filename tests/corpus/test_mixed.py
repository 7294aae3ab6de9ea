"""Letters of a foreign script in dialogues: which places are kept."""

from __future__ import annotations

from coverage_job.corpus.mixed import MixedScripts
from coverage_job.corpus.shapes import Dialogue


def dialogue(*answers: str) -> Dialogue:
    size = len(answers)
    return Dialogue(texts=[[text] for text in answers], supervised=[True] * size, weights=[None] * size)


def test_a_long_dialogue_leaves_room_for_the_places_of_others() -> None:
    found = MixedScripts()
    found.look(dialogue("мир " * 5000, "猫"), "en", "all_assistant", "first")
    found.look(dialogue("plain", "мир"), "en", "all_assistant", "second")
    assert (found.documents, found.mixed) == ({"en": 2}, {"en": 2})
    assert [p["place"] for p in found.places] == ["first"] * 20 + ["second"]
    assert (found.places[-1]["message"], found.places[-1]["start"], found.places[-1]["end"]) == (1, 0, 3)
