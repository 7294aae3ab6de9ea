"""Which language a word or piece of a word is spelled in, where languages share a script.

Two steps. An alphabet excludes: a language that does not write a letter of the text is none of the text's; a
single language that is left decides. Among several, sequences of up to four letters weigh: how likely each
language writes the text (interpolated estimates as of Witten and Bell, 1991, learnt from `words.yaml`), times
how common the language is on the web, and more for a language that has the whole word in its list. The
probability is flattened, since letters are not independent, and a language is named where it has `_SURE` of
it. Otherwise the spelling leaves the language open. A few letters inside a word, and a few capitals, which
may be an abbreviation, must be surer (`_SURE_OF_FEW`) unless they are a word of some list.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

import numpy as np
import numpy.typing as npt
import yaml

_VIETNAMESE = (
    "àáâãèéêìíòóôõùúýăđĩũơư" + "".join(map(chr, range(0x1EA0, 0x1EFA))) + "\u0300\u0301\u0303\u0309\u0323"
)
_MARKS = "\u0640" + "".join(map(chr, range(0x64B, 0x653)))
_RUSSIAN = "абвгдеёжзийклмнопрстуфхцчшщъыьэюя"
_ARABIC = "ءآأؤإئابةتثجحخدذرزسشصضطظعغفقكلمنهوىي" + _MARKS
_PERSIAN = "ءآأؤئابپتثجچحخدذرزژسشصضطظعغفقکگلمنهوی" + _MARKS
_DEVANAGARI = "".join(map(chr, range(0x900, 0x964)))

# script: language: (how common it is on the web, its letters; in Latin script those outside ASCII)
_LANGUAGES: dict[str, dict[str, tuple[float, str]]] = {
    "Latin": {
        "en": (45, ""), "de": (5.5, "äöüß"), "fr": (4.5, "àâæçèéêëîïôœùûüÿ"), "es": (5, "áéíñóúü"),
        "pt": (3, "áâãàçéêíóôõúü"), "it": (2.5, "àèéìòóù"), "nl": (2, "ëïéèöüê"), "pl": (2, "ąćęłńóśźż"),
        "tr": (2, "çğıöşüâî\u0307"), "vi": (1.3, _VIETNAMESE), "id": (1.2, ""), "cs": (1, "áčďéěíňóřšťúůýž"),
        "sv": (0.8, "åäöé"), "ro": (0.7, "ăâîșşțţ"), "hu": (0.7, "áéíóöőúüű"), "da": (0.5, "åæøé"),
        "fi": (0.5, "äöå"), "sk": (0.4, "áäčďéíĺľňóôŕšťúýž"), "nb": (0.5, "åæøéòô"), "hr": (0.5, "čćđšž"),
        "lt": (0.2, "ąčęėįšųūž"), "sl": (0.2, "čšž"), "ca": (0.3, "àçèéíïòóúü·"), "lv": (0.15, "āčēģīķļņšūž"),
        "tl": (0.2, "ñ"), "et": (0.15, "äõöüšž"),
    },
    "Cyrillic": {
        "ru": (6, _RUSSIAN), "uk": (0.6, "абвгґдеєжзиіїйклмнопрстуфхцчшщьюя"),
        "bg": (0.25, "абвгдежзийклмнопрстуфхцчшщъьюя"), "sr": (0.2, "абвгдђежзијклљмнњопрстћуфхцчџш"),
        "mk": (0.05, "абвгдѓежзѕијклљмнњопрстќуфхцчџш"), "be": (0.05, "абвгдеёжзійклмнопрстуўфхцчшыьэюя"),
        "kk": (0.05, _RUSSIAN + "әғқңөұүһі"), "ky": (0.02, _RUSSIAN + "ңөү"), "mn": (0.04, _RUSSIAN + "өү"),
        "ba": (0.01, _RUSSIAN + "әғҙҡңөҫүһ"), "tt": (0.02, _RUSSIAN + "әөүҗңһ"),
    },
    "Arabic": {"ar": (1.2, _ARABIC), "fa": (0.8, _PERSIAN), "ur": (0.1, _PERSIAN + "ٹڈڑںھہےۂۓ")},
    "Devanagari": {"hi": (0.3, _DEVANAGARI), "mr": (0.02, _DEVANAGARI), "ne": (0.02, _DEVANAGARI)},
}  # fmt: skip

_VOWELS = frozenset("aeiouy")
_ORDER, _WEIGHT = 4, 4.0
_LONGEST = 40  # letters looked at
_FLATTEN, _SURE = 0.65, 0.7
_KNOWN = 2.5  # log of what a known word weighs
_PIECE, _ABBREVIATION, _SURE_OF_FEW = 4, 6, 0.9  # few letters inside a word; few capitals
_PLURAL_S = frozenset(("en", "fr", "es", "pt", "ca", "nl"))


class Spelling:
    """What is known of the languages of one script."""

    def __init__(self, script: str, words: dict[str, str]) -> None:
        of = _LANGUAGES[script]
        self.languages = tuple(of)
        self._alphabets = [frozenset(letters) for _, letters in of.values()]
        self._ascii = script == "Latin"
        self._cased = script in ("Latin", "Cyrillic")
        self._prior = np.log(np.array([weight for weight, _ in of.values()]))
        self._words: dict[str, list[int]] = {}  # the languages, by position, that have a word
        self._row: dict[str, int] = {}
        counts: list[list[int]] = []
        for column, language in enumerate(of):
            for word in sorted(set(words[language].split())):
                self._words.setdefault(word, []).append(column)
                marked = f"_{word}_"
                for start in range(len(marked)):
                    for end in range(start + 1, min(start + _ORDER, len(marked)) + 1):
                        row = self._row.setdefault(marked[start:end], len(self._row))
                        if row == len(counts):
                            counts.append([0] * len(of))
                        counts[row][column] += 1
        self._counts = np.array(counts, np.float32)
        single = [row for gram, row in self._row.items() if len(gram) == 1]
        self._letters, self._kinds = self._counts[single].sum(axis=0), len(single)
        self._none = np.zeros(len(of), np.float32)
        self._chances: dict[str, npt.NDArray[np.float32]] = {}
        self._likelies: dict[str, npt.NDArray[np.float64]] = {}
        self._decided: dict[tuple[str, bool, bool], tuple[str, str]] = {}
        self._fitting: dict[frozenset[str], tuple[list[int], npt.NDArray[np.float64]]] = {}

    def _chance(self, gram: str) -> npt.NDArray[np.float32]:
        """float32[languages]: the probability of a gram's last letter after those before it."""
        if (known := self._chances.get(gram)) is None:
            row = self._row.get(gram)
            count = self._none if row is None else self._counts[row]
            if len(gram) == 1:
                known = (count + 0.5) / (self._letters + 0.5 * self._kinds)
            else:
                known = self._chance(gram[1:])
                if (before := self._row.get(gram[:-1])) is not None:
                    known = (count + _WEIGHT * known) / (self._counts[before] + _WEIGHT)
            self._chances[gram] = known
        return known

    def _likely(self, gram: str) -> npt.NDArray[np.float64]:
        """float64[languages]: the flattened log of a gram's chance, kept."""
        likely: npt.NDArray[np.float64] = _FLATTEN * np.log(self._chance(gram).astype(np.float64))
        self._likelies[gram] = likely
        return likely

    def _writing(self, letters: frozenset[str]) -> tuple[list[int], npt.NDArray[np.float64]]:
        """The languages, by position, that write all of these letters; and the log of how common they are,
        float64[languages], minus infinity for the others."""
        writing = [n for n, own in enumerate(self._alphabets) if letters <= own]
        prior = np.full(len(self.languages), -np.inf)
        prior[writing] = self._prior[writing]
        return writing, prior

    def _having(self, text: str) -> list[int]:
        """The languages, by position, whose lists have a word, or have it without its plural's s."""
        having = self._words.get(text, [])
        if text.endswith("s") and (singular := self._words.get(text[:-1])) is not None:
            having = list({*having, *(n for n in singular if self.languages[n] in _PLURAL_S)})
        return having

    def decide(self, text: str, begins: bool, capitals: bool = False) -> tuple[str, str]:
        """Language (`und` where it stays open) and rule of letters and marks, in small letters.

        begins: whether a word begins with them. capitals: whether all were written as capitals. Looked at
        are the first `_LONGEST`.
        """
        # Many of a vocabulary's words stand in it twice: with a capital, after a space.
        asked = text[:_LONGEST], begins, capitals and len(text) <= _ABBREVIATION
        if (decided := self._decided.get(asked)) is None:
            decided = self._decided[asked] = self._decide(*asked)
        return decided

    def _decide(self, text: str, begins: bool, abbreviation: bool) -> tuple[str, str]:
        plain = text.isascii()
        letters = frozenset(() if plain else (c for c in text if not (self._ascii and c.isascii())))
        if (fitting := self._fitting.get(letters)) is None:
            fitting = self._fitting[letters] = self._writing(letters)
        writing, prior = fitting
        if len(writing) == 1:
            return self.languages[writing[0]], "alphabet"
        if not writing:
            return "und", "alphabet_unknown"
        if len(text) < (2 if begins else 3):
            return "und", "short"
        if plain and _VOWELS.isdisjoint(text):
            return "und", "no_vowel"
        having = self._having(text)
        few = self._cased and (abbreviation or (not begins and len(text) <= _PIECE))
        if abbreviation and not having and len(text) <= _PIECE:
            return "und", "abbreviation"
        begins = begins or (few and bool(having))
        weights, likelies = prior.copy(), self._likelies
        marked = f"_{text}" if begins else text
        for end in range(2 if begins else 1, len(marked) + 1):
            gram = marked[end - _ORDER if end > _ORDER else 0 : end]
            weights += known if (known := likelies.get(gram)) is not None else self._likely(gram)
        if begins and having:
            weights[having] += _KNOWN
        best = int(weights.argmax())
        sure = _SURE_OF_FEW if few and not having else _SURE
        if np.exp(weights - weights[best]).sum() * sure <= 1:
            return self.languages[best], "spelling"
        return "und", "spelling_open"


@lru_cache(maxsize=1)
def _words() -> dict[str, str]:
    text = (resources.files("coverage_job.tokenizer") / "words.yaml").read_text(encoding="utf-8")
    return {str(language): str(words) for language, words in yaml.safe_load(text).items()}


@lru_cache(maxsize=len(_LANGUAGES))
def spelling(script: str) -> Spelling | None:
    """The spellings of a script that languages share; None for one where nothing is known of them."""
    return Spelling(script, _words()) if script in _LANGUAGES else None
