"""Which language a word is spelled in: the evidence itself, and what is decided from it."""

from __future__ import annotations

import math

import pytest

from coverage_job.tokenizer import spelling as module
from coverage_job.tokenizer.spelling import spelling

LANGUAGES = [(script, language) for script, of in module._LANGUAGES.items() for language in of]


@pytest.mark.parametrize(("script", "language"), LANGUAGES)
def test_words_are_written_with_their_languages_letters(script: str, language: str) -> None:
    words = module._words()[language]
    alphabet = module._LANGUAGES[script][language][1]
    strange = {c for c in words if not c.isspace() and not (script == "Latin" and c.isascii())} - set(
        alphabet
    )
    assert strange <= {"'", "-"}
    assert words == words.lower()
    assert len(set(words.split())) >= 60


def slow(script: str, text: str, begins: bool) -> tuple[str, float]:
    """The likeliest language of a text and its share, letter by letter from the words themselves."""
    of, weights = module._LANGUAGES[script], {}
    everything = {c for language in of for word in module._words()[language].split() for c in f"_{word}_"}
    for language, (common, alphabet) in of.items():
        if not {c for c in text if not (script == "Latin" and c.isascii())} <= set(alphabet):
            continue
        marked = [f"_{word}_" for word in set(module._words()[language].split())]
        joined = "\n".join(marked)

        def count(gram: str, joined: str = joined) -> int:
            return sum(joined.startswith(gram, at) for at in range(len(joined)))

        total, start = math.log(common), "_" if begins else ""
        for at in range(len(text)):
            before = (start + text[:at])[-3:]
            p = (count(text[at]) + 0.5) / (sum(map(len, marked)) + 0.5 * len(everything))
            for size in range(1, len(before) + 1):
                context = before[-size:]
                p = (count(context + text[at]) + module._WEIGHT * p) / (count(context) + module._WEIGHT)
            total += module._FLATTEN * math.log(p)
        if begins and text in module._words()[language].split():
            total += module._KNOWN
        weights[language] = total
    best = max(weights, key=weights.__getitem__)
    return best, 1 / sum(math.exp(w - weights[best]) for w in weights.values())


@pytest.mark.parametrize(
    ("script", "text", "begins"),
    [
        ("Cyrillic", "хотела", True),
        ("Cyrillic", "мотив", True),
        ("Cyrillic", "ів", False),
        ("Cyrillic", "ськи", False),
        ("Arabic", "ستان", False),
        ("Devanagari", "होता", True),
        ("Latin", "tä", True),
    ],
)
def test_it_decides_as_the_plain_computation_does(script: str, text: str, begins: bool) -> None:
    known = spelling(script)
    assert known is not None
    best, share = slow(script, text, begins)
    expected = best if share >= module._SURE else "und"
    language, rule = known.decide(text, begins)
    if rule in ("spelling", "spelling_open"):
        assert language == expected
    else:
        assert (language, rule) == ("und", "short")


def test_a_letter_that_one_language_writes_decides_alone() -> None:
    latin = spelling("Latin")
    assert latin is not None
    assert latin.decide("ß", False) == ("de", "alphabet")
    assert latin.decide("ƿ", False) == ("und", "alphabet_unknown")
    assert latin.decide("e" * 100_000, False)[0] == latin.decide("e" * module._LONGEST, False)[0]


def test_scripts_of_one_language_need_no_spelling() -> None:
    assert spelling("Thai") is None
