"""Letters of scripts that a language is not written in."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

# Scripts that texts of a language are written in; Latin stands in texts of every language (names, terms)
# and is no sign of a mixed answer by itself.
_SCRIPTS = {
    "ja": {"HAN", "HIRAGANA", "KATAKANA"},
    "zh": {"HAN", "BOPOMOFO"},
    "ko": {"HANGUL"},
    "ar": {"ARABIC"},
    "fa": {"ARABIC"},
    "ur": {"ARABIC"},
    "hi": {"DEVANAGARI"},
    "el": {"GREEK"},
    "he": {"HEBREW"},
    "th": {"THAI"},
    **{language: {"CYRILLIC"} for language in ("ru", "uk", "bg", "be", "mk")},
}
_NAMES = {"CJK": "HAN", "KANGXI": "HAN", "IDEOGRAPHIC": "HAN", "HALFWIDTH": "KATAKANA"}

_ASIDE = (
    re.compile(r"```.*?(?:```|\Z)", re.DOTALL),
    re.compile(r"`[^`\n]*`"),
    re.compile(r"\b(?:https?://|www\.)\S+"),
    re.compile(r"\S+@\S+\.\S+"),
)
_GLOSS = re.compile(r"[(（]([^()（）\n]{1,40})[)）]")
_QUOTED = re.compile(r"[「『\"“«《]([^「」『』\"“”«»《》\n]{1,60})[」』\"”»》]")


@dataclass(frozen=True, slots=True)
class Mix:
    """letters: letters that were looked at. foreign: letters by script that is not the language's."""

    letters: int
    foreign: dict[str, int]


def _script(character: str) -> str | None:
    if not character.isalpha():
        return None
    word = unicodedata.name(character, "").partition(" ")[0].partition("-")[0]
    # Marks that Japanese shares with others, Greek letters in formulas, units: no language's own.
    if word in ("MODIFIER", "FULLWIDTH", "MICRO", "OHM", "FEMININE", "MASCULINE", "MATHEMATICAL", ""):
        return None
    return _NAMES.get(word, word)


def mixed_script(text: str, language: str, quoted: Iterable[str] = ()) -> Mix:
    """Count letters of scripts that `language` is not written in, Latin apart.

    Set aside: code, addresses, glosses in parentheses, quoted words, and foreign words that one of the
    `quoted` texts (the prompt) has too.

    >>> mixed_script("これは очень 大事です(важно)", "ja").foreign
    {'Cyrillic': 5}
    """
    for pattern in _ASIDE:
        text = pattern.sub(" ", text)
    own = _SCRIPTS.get(language, {"LATIN"})
    given = set().union(*(_foreign_words(q, own) for q in quoted)) if quoted else set()
    for pattern in (_GLOSS, _QUOTED):
        text = pattern.sub(lambda m: " " if _foreign_words(m[1], own) else m[0], text)
    letters, foreign = 0, dict[str, int]()
    for word in re.findall(r"[^\W\d_]+", text):
        for run, script in _runs(word):
            letters += len(run)
            if script not in own and script != "LATIN" and run not in given:
                name = script.capitalize()
                foreign[name] = foreign.get(name, 0) + len(run)
    return Mix(letters, foreign)


def _runs(word: str) -> list[tuple[str, str]]:
    runs: list[tuple[str, str]] = []
    for character in word:
        script = _script(character)
        if script is None:
            continue
        if runs and runs[-1][1] == script:
            runs[-1] = (runs[-1][0] + character, script)
        else:
            runs.append((character, script))
    return runs


def _foreign_words(text: str, own: set[str]) -> set[str]:
    found = (run for word in re.findall(r"[^\W\d_]+", text) for run in _runs(word))
    return {run for run, script in found if script not in own and script != "LATIN"}
