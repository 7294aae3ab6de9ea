"""Which language a word is spelled in: the evidence itself, and what is decided from it."""

from __future__ import annotations

import math

import pytest

from coverage_job.tokenizer import spelling as module
from coverage_job.tokenizer.spelling import Asked, Spelling, spelling
from coverage_job.tokenizer.word_lists import _LISTED, _own_words, word_frequencies

WRITTEN = [(script, language) for script, of in module._LANGUAGES.items() for language in of]


def test_every_language_has_words_from_one_place() -> None:
    assert _LISTED.keys() | _own_words().keys() == {language for _, language in WRITTEN}
    assert not _LISTED.keys() & _own_words().keys()


@pytest.mark.parametrize(("script", "language"), [w for w in WRITTEN if w[1] in _own_words()])
def test_own_words_are_written_with_their_languages_letters(script: str, language: str) -> None:
    known = spelling(script)
    assert known is not None
    own = known._owners == known.languages.index(language)
    assert own.sum() >= 60
    words = set(_own_words()[language].split())
    scripts = sum(written == language for _, written in WRITTEN)
    assert scripts > 1 or own.sum() == len(words), "none is left out"
    assert all(word == word.lower() for word in words)


@pytest.mark.parametrize(("script", "language"), [w for w in WRITTEN if w[1] in _LISTED])
def test_most_listed_words_are_written_with_their_languages_letters(script: str, language: str) -> None:
    """What the alphabet leaves out is foreign: names, digits, words with an apostrophe."""
    known = spelling(script)
    assert known is not None
    shares = list(word_frequencies(language).values())
    assert (known._owners == known.languages.index(language)).sum() >= 0.75 * len(shares) >= 7_500
    assert shares[:100] == sorted(shares[:100], reverse=True)
    assert 0.5 < sum(shares) < 1.1


def few_words(script: str) -> dict[str, dict[str, float]]:
    return {
        language: dict(list(word_frequencies(language).items())[:150])
        for language in module._LANGUAGES[script]
    }


def slow(script: str, text: str, begins: bool) -> tuple[str, float]:
    """The likeliest language of a text and its share, letter by letter from the words themselves."""
    of, lists, weights = module._LANGUAGES[script], few_words(script), {}

    def writes(language: str, word: str) -> bool:
        return {c for c in word if not (script == "Latin" and c.isascii() and c.isalpha())} <= set(
            of[language][1]
        )

    lists = {k: {w: f for w, f in words.items() if writes(k, w)} for k, words in lists.items()}
    everything = {c for words in lists.values() for word in words for c in f"_{word}_"}
    for language, (common, _) in of.items():
        if not writes(language, text):
            continue
        words = lists[language]
        mean = sum(f**module._POWER for f in words.values()) / len(words)
        marked = [(f"_{w}_", round(1000 * f**module._POWER / mean) / 1000) for w, f in words.items()]

        def count(gram: str, marked: list[tuple[str, float]] = marked) -> float:
            return sum(w * sum(m.startswith(gram, at) for at in range(len(m))) for m, w in marked)

        letters = sum(len(m) * w for m, w in marked)
        total, start = module._PRIOR * math.log(common), "_" if begins else ""
        for at in range(len(text)):
            before = (start + text[:at])[-3:]
            p = (count(text[at]) + 0.5) / (letters + 0.5 * len(everything))
            for size in range(1, len(before) + 1):
                context = before[-size:]
                p = (count(context + text[at]) + module._WEIGHT * p) / (count(context) + module._WEIGHT)
            total += module._FLATTEN * math.log(p)
        if begins:
            begun = sum(f for w, f in words.items() if w.startswith(text))
            whole = module._WHOLE * words.get(text, 0.0)
            total += module._BEGUN * math.log(begun + whole + module._UNSEEN)
        weights[language] = total
    best = max(weights, key=weights.__getitem__)
    return best, 1 / sum(math.exp(w - weights[best]) for w in weights.values())


@pytest.mark.parametrize(
    ("script", "text", "begins"),
    [
        ("Cyrillic", "хотела", True),
        ("Cyrillic", "мотив", True),
        ("Cyrillic", "меняется", False),
        ("Arabic", "ستان", False),
        ("Arabic", "است", True),
        ("Devanagari", "होता", True),
        ("Latin", "tä", True),
        ("Latin", "the", True),
        ("Latin", "lichkeiten", False),
    ],
)
def test_it_decides_as_the_plain_computation_does(script: str, text: str, begins: bool) -> None:
    best, share = slow(script, text, begins)
    expected = (best, "spelling") if share >= module._SURE else ("und", "spelling_open")
    assert Spelling(script, few_words(script)).decide([Asked(text, begins)]) == [expected]


def test_a_letter_that_one_language_writes_decides_alone() -> None:
    latin = spelling("Latin")
    assert latin is not None
    asked = [Asked("ß", False), Asked("ƿ", False), Asked("e" * 100_000, False)]
    own, unknown, long = latin.decide(asked)
    assert own == ("de", "alphabet")
    assert unknown == ("und", "alphabet_unknown")
    assert long == latin.decide([Asked("e" * module._LONGEST, False)])[0]


def test_together_they_are_decided_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    latin = spelling("Latin")
    assert latin is not None
    words = ["the", "straße", "nación", "qui", "ƿ", "x", "zz", "ing", "hel", "usa", "getname", "że"]
    flags = [(begins, capitals, joined) for begins in (0, 1) for capitals in (0, 1) for joined in (0, 1)]
    asked = [Asked(word, *map(bool, f)) for word in words for f in flags]
    alone = [latin.decide([one])[0] for one in asked]
    assert latin.decide(asked + asked[::-1]) == alone + alone[::-1]
    assert len(set(alone)) == 8, "all kinds of verdict"
    assert latin.decide([]) == []
    monkeypatch.setattr(module, "_BATCH", 3)
    assert latin.decide(asked) == alone


def test_scripts_of_one_language_need_no_spelling() -> None:
    assert spelling("Thai") is None
