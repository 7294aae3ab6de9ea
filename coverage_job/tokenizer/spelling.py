"""Which language a word or piece of a word is spelled in, where languages share a script.

Two steps. An alphabet excludes: a language that does not write a letter of the text is none of the text's; a
single language that is left decides. Among several, three things weigh: how common the language is in
vocabularies; how likely its spelling has sequences of up to four letters like these (interpolated estimates
as of Witten and Bell, 1991, learnt from its words, frequent ones weighing more); and, where a word begins,
the share of the language's running words that begin so, or are the word (`word_lists.py`). All are flattened,
since they are not independent, and a language is named where it has `_SURE` of the probability. Otherwise the
spelling leaves the language open. A few letters inside a word, and a few capitals, which may be an
abbreviation, must be surer (`_SURE_OF_FEW`) unless they are a word in use.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from string import ascii_letters
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from coverage_job.tokenizer.word_lists import word_frequencies

_VIETNAMESE = (
    "àáâãèéêìíòóôõùúýăđĩũơư" + "".join(map(chr, range(0x1EA0, 0x1EFA))) + "\u0300\u0301\u0303\u0309\u0323"
)
_MARKS = "\u0640" + "".join(map(chr, range(0x64B, 0x653)))
_RUSSIAN = "абвгдеёжзийклмнопрстуфхцчшщъыьэюя"
_ARABIC = "ءآأؤإئابةتثجحخدذرزسشصضطظعغفقكلمنهوىي" + _MARKS
_PERSIAN = "ءآأؤئابپتثجچحخدذرزژسشصضطظعغفقکگلمنهوی" + _MARKS
_DEVANAGARI = "".join(map(chr, range(0x900, 0x964)))

# script: language: (how common it is, its letters; in Latin script those outside ASCII). Per cent of the web;
# more for English, whose share of a vocabulary is greater.
_LANGUAGES: dict[str, dict[str, tuple[float, str]]] = {
    "Latin": {
        "en": (190, ""), "de": (5.5, "äöüß"), "fr": (4.5, "àâæçèéêëîïôœùûüÿ"), "es": (5, "áéíñóúü"),
        "pt": (3, "áâãàçéêíóôõúü"), "it": (2.5, "àèéìòóù"), "nl": (2, "ëïéèöüê"), "pl": (2, "ąćęłńóśźż"),
        "tr": (2, "çğıöşüâî\u0307"), "vi": (1.3, _VIETNAMESE), "id": (1.2, ""), "cs": (1, "áčďéěíňóřšťúůýž"),
        "sv": (0.8, "åäöé"), "ro": (0.7, "ăâîșşțţ"), "hu": (0.7, "áéíóöőúüű"), "da": (0.5, "åæøé"),
        "fi": (0.5, "äöå"), "sk": (0.4, "áäčďéíĺľňóôŕšťúýž"), "nb": (0.5, "åæøéòô"), "hr": (0.5, "čćđšž"),
        "lt": (0.2, "ąčęėįšųūž"), "sl": (0.2, "čšž"), "ca": (0.3, "àçèéíïòóúü·"), "lv": (0.15, "āčēģīķļņšūž"),
        "tl": (0.2, "ñ"), "et": (0.15, "äõöüšž"),
        "is": (0.1, "áéíóúýðþæö"), "az": (0.1, "çğıöşüə\u0307"), "sq": (0.1, "çë"), "sw": (0.1, ""),
        "so": (0.06, ""), "zu": (0.06, ""), "xh": (0.04, ""), "st": (0.04, "š"), "sn": (0.04, ""),
        "rw": (0.04, ""), "mg": (0.05, "àâèéìôñ"), "sm": (0.03, "āēīōūʻ"), "haw": (0.03, "āēīōūʻ"),
        "mi": (0.04, "āēīōū"), "hmn": (0.05, ""), "ht": (0.05, "àèéò"), "tk": (0.05, "äçňöşüýž"),
        "uz": (0.08, "ʻʼ"), "eu": (0.08, "ñ"), "cy": (0.06, "âêîôûŵŷïë"), "ga": (0.06, "áéíóú"),
        "kl": (0.03, ""), "mt": (0.06, "ċġħżàèìòù"), "ha": (0.05, "ɓɗƙƴ"), "ku": (0.05, "çêîşû"),
        "af": (0.06, "áéèêëíîïóôöúûü"), "la": (0.1, ""), "om": (0.03, ""), "jv": (0.04, "éèê"),
    },
    "Cyrillic": {
        "ru": (6, _RUSSIAN), "uk": (0.6, "абвгґдеєжзиіїйклмнопрстуфхцчшщьюя"),
        "bg": (0.25, "абвгдежзийклмнопрстуфхцчшщъьюя"), "sr": (0.2, "абвгдђежзијклљмнњопрстћуфхцчџш"),
        "mk": (0.05, "абвгдѓежзѕијклљмнњопрстќуфхцчџш"), "be": (0.05, "абвгдеёжзійклмнопрстуўфхцчшыьэюя"),
        "kk": (0.05, _RUSSIAN + "әғқңөұүһі"), "ky": (0.02, _RUSSIAN + "ңөү"), "mn": (0.04, _RUSSIAN + "өү"),
        "ba": (0.01, _RUSSIAN + "әғҙҡңөҫүһ"), "tt": (0.02, _RUSSIAN + "әөүҗңһ"),
        "tg": (0.03, _RUSSIAN + "ғӣқӯҳҷ"),
        "ug": (0.01, _RUSSIAN + "әғқңөүһҗ"),
        "ab": (0.01, _RUSSIAN + "ӷҕӡқҟԥҧҭҳҵҷҽҿҩџә"),
    },
    "Arabic": {
        "ar": (1.2, _ARABIC), "fa": (0.8, _PERSIAN), "ur": (0.1, _PERSIAN + "ٹڈڑںھہےۂۓ"),
        "ug": (0.03, "ئابپتجچخدرزژسشغفقكگڭلمنھوۇۆۈۋېىيە"),
        "ps": (0.03, _PERSIAN + "يكټځڅډړږښګڼېۍ"),
        "sd": (0.03, _PERSIAN + "يٻڀٿٽٺٹڄڃڇڌڏڊڍڙھڦڪڳڱڻ۽۾"),
    },
    "Devanagari": {"hi": (0.3, _DEVANAGARI), "mr": (0.02, _DEVANAGARI), "ne": (0.02, _DEVANAGARI)},
}  # fmt: skip

_VOWELS = frozenset("aeiouy")
_ORDER, _WEIGHT = 4, 4.0
_LEARNT = 6000  # of a language's words, those that letter sequences are learnt from
_POWER = 0.4  # of a word's frequency: its weight among them
_LONGEST = 40  # letters looked at
_PRIOR, _FLATTEN, _BEGUN = 0.7, 0.55, 0.8  # powers of the three probabilities
_WHOLE, _UNSEEN = 8.0, 1e-7  # a word itself over one that only begins so; the share of words never seen
_SURE = 0.75
_PIECE, _ABBREVIATION, _INITIALS = 5, 6, 4  # few letters inside a word; few capitals, and very few
_SURE_OF_FEW = 0.85
_JOINED = 1.2  # log of what speaks for English where words are joined to a program's names
_IN_USE = 3e-5  # the share of running words that makes a word of a piece or of capitals
_LAST = "\U0010ffff"
_BATCH = 8192  # texts weighed at once


class Asked(NamedTuple):
    """Letters and marks, in small letters, whose language is asked for; looked at are the first `_LONGEST`.

    begins: whether a word begins with them. capitals: whether all were written as capitals. joined:
    whether a capital begins them and no space, as in the names of programs.
    """

    text: str
    begins: bool
    capitals: bool = False
    joined: bool = False


class Spelling:
    """What is known of the languages of one script.

    frequencies: each language's words, the most frequent first, with their share of its running words.
    """

    def __init__(self, script: str, frequencies: Mapping[str, Mapping[str, float]]) -> None:
        of = _LANGUAGES[script]
        self.languages = tuple(of)
        self._alphabets = [frozenset(letters) for _, letters in of.values()]
        self._ascii = script == "Latin"
        # Two letters of the Arabic script may be a word, and its short vowels are not written.
        self._dense = script == "Arabic"
        self._joined = _JOINED * np.array([language == "en" for language in of])
        self._prior = _PRIOR * np.log(np.array([weight for weight, _ in of.values()]))
        words = self._usable(frequencies)
        self._row, self._counts = _letter_sequences(words, len(of))
        self._letters = self._counts[[r for gram, r in self._row.items() if len(gram) == 1]].sum(axis=0)
        self._kinds = sum(len(gram) == 1 for gram in self._row)
        # Words in order, so that those which begin alike stand together.
        words = words.sort("word", "language")
        self._words: list[str] = words["word"].to_list()
        self._owners, self._shares = words["language"].to_numpy(), words["share"].to_numpy()

    def _usable(self, frequencies: Mapping[str, Mapping[str, float]]) -> pl.DataFrame:
        """word, language (its position), share: the words that consist of their language's letters."""
        parts = []
        for position, (language, alphabet) in enumerate(zip(self.languages, self._alphabets, strict=True)):
            letters = alphabet | set(ascii_letters) if self._ascii else alphabet
            words = {word: share for word, share in frequencies[language].items() if letters.issuperset(word)}
            part = pl.DataFrame({"word": list(words), "share": list(words.values())})
            parts.append(part.with_columns(language=pl.lit(position, pl.UInt8)))
        return pl.concat(parts)

    def _outside(self, text: str) -> frozenset[str]:
        """The letters of a text that an alphabet may lack: in Latin script those outside ASCII."""
        return frozenset(c for c in text if not (self._ascii and c.isascii() and c.isalpha()))

    def _writing(self, letters: frozenset[str]) -> npt.NDArray[np.bool_]:
        """bool[languages]: which write all of these letters."""
        return np.array([letters <= own for own in self._alphabets])

    def decide(self, asked: Sequence[Asked]) -> list[tuple[str, str]]:
        """Language (`und` where it stays open) and rule of each, decided together since arrays are fast."""
        asked = [
            one if len(one.text) <= _LONGEST else one._replace(text=one.text[:_LONGEST]) for one in asked
        ]
        decided: dict[Asked, tuple[str, str]] = {}
        left: list[Asked] = []
        writing: list[npt.NDArray[np.bool_]] = []
        known: dict[frozenset[str], npt.NDArray[np.bool_]] = {}
        # Many of a vocabulary's words stand in it twice: with a capital, after a space.
        for one in dict.fromkeys(asked):
            letters = self._outside(one.text)
            if (fitting := known.get(letters)) is None:
                fitting = known[letters] = self._writing(letters)
            if (verdict := self._excluded(one, fitting)) is not None:
                decided[one] = verdict
            else:
                left.append(one)
                writing.append(fitting)
        for start in range(0, len(left), _BATCH):
            batch = slice(start, start + _BATCH)
            decided |= zip(left[batch], self._weighed(left[batch], np.stack(writing[batch])), strict=True)
        return [decided[one] for one in asked]

    def _excluded(self, one: Asked, writing: npt.NDArray[np.bool_]) -> tuple[str, str] | None:
        """What alphabets and lengths decide; None where the spelling must."""
        languages = np.flatnonzero(writing)
        if len(languages) == 1:
            return self.languages[languages[0]], "alphabet"
        if not len(languages):
            return "und", "alphabet_unknown"
        if len(one.text) < (2 if one.begins or self._dense else 3):
            return "und", "short"
        if one.text.isascii() and _VOWELS.isdisjoint(one.text):
            return "und", "no_vowel"
        return None

    def _weighed(self, asked: list[Asked], writing: npt.NDArray[np.bool_]) -> list[tuple[str, str]]:
        """Decisions by what speaks for each language. writing: bool[asked, languages]."""
        # The words that begin with a text; the first of them are the text, in each language that has it.
        begun = np.array([self._begun(one.text) for one in asked])
        whole = self._shares_of(begun[:, :2])
        in_use = (whole * writing).max(axis=1) > _IN_USE
        size = np.array([len(one.text) for one in asked])
        begins, capitals, joined = np.array([one[1:] for one in asked]).T
        abbreviation = capitals & (size <= _ABBREVIATION)
        few = (not self._dense) & (abbreviation | (~begins & (size <= _PIECE)))
        begins = begins | (few & in_use)
        weights = np.where(writing, self._prior, -np.inf)
        marks = np.where(begins, "_", "").tolist()
        weights += self._likely([mark + one.text for mark, one in zip(marks, asked, strict=True)])
        shares = self._shares_of(begun[:, ::2]) + _WHOLE * whole + _UNSEEN
        counts = begins & (begun[:, 0] < begun[:, 2])
        weights[counts] += _BEGUN * np.log(shares[counts])
        if self._ascii:
            weights[joined] += self._joined
        best = weights.argmax(axis=1)
        over = np.exp(weights - weights.max(axis=1, keepdims=True)).sum(axis=1)
        sure = over * np.where(few & ~in_use, _SURE_OF_FEW, _SURE) <= 1
        initials = abbreviation & ~in_use & (size <= _INITIALS)
        return [
            ("und", "abbreviation")
            if short
            else (self.languages[n], "spelling")
            if certain
            else ("und", "spelling_open")
            for short, certain, n in zip(initials, sure, best, strict=True)
        ]

    def _begun(self, text: str) -> tuple[int, int, int]:
        """Where the words that begin with a text stand: from, to where they are the text, to."""
        first = bisect_left(self._words, text)
        last = bisect_left(self._words, text + _LAST, first)
        return first, bisect_right(self._words, text, first, last), last

    def _shares_of(self, ranges: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """float64[ranges, languages]: the share of running words that the words in a range make.

        ranges: int64[ranges, 2], from and to, of the words in order.
        """
        size = ranges[:, 1] - ranges[:, 0]
        of = np.repeat(np.arange(len(size)), size)
        at = np.arange(len(of)) + np.repeat(ranges[:, 0] - (np.cumsum(size) - size), size)
        cells = of * len(self.languages) + self._owners[at]
        sums = np.bincount(cells, self._shares[at], len(size) * len(self.languages))
        return sums.reshape(len(size), -1).astype(np.float64, copy=False)

    def _likely(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """float64[texts, languages]: the flattened log of how likely letters follow one another so.

        The `_` that begins a word is given, and has no chance of its own.
        """
        rows: dict[str, int] = {}
        used: list[int] = []
        starts = []
        for text in texts:
            starts.append(len(used))
            for end in range(2 if text[0] == "_" else 1, len(text) + 1):
                used.append(rows.setdefault(text[end - _ORDER if end > _ORDER else 0 : end], len(rows)))
        logs = _FLATTEN * np.log(self._chances(list(rows)).astype(np.float64))
        return np.add.reduceat(logs[used], starts, axis=0)

    def _chances(self, grams: Sequence[str]) -> npt.NDArray[np.float32]:
        """float32[grams, languages]: the probability of a gram's last letter after those before it."""
        size = np.array([len(gram) for gram in grams])
        found = np.empty((len(grams), len(self.languages)), np.float32)
        for n in np.unique(size):
            of_size = np.flatnonzero(size == n)
            some = [grams[i] for i in of_size.tolist()]
            count = self._counted(some)
            if n == 1:
                found[of_size] = (count + 0.5) / (self._letters + 0.5 * self._kinds)
                continue
            # Without its first letter; where what stands before the last was never seen, that is all.
            shorter: dict[str, int] = {}
            rows = [shorter.setdefault(gram[1:], len(shorter)) for gram in some]
            lower = self._chances(list(shorter))[rows]
            before = self._counted([gram[:-1] for gram in some])
            found[of_size] = (count + _WEIGHT * lower) / (before + _WEIGHT)
        return found

    def _counted(self, grams: Sequence[str]) -> npt.NDArray[np.float32]:
        """float32[grams, languages]: how often they were learnt."""
        return self._counts[[self._row.get(gram, -1) for gram in grams]]


def _letter_sequences(words: pl.DataFrame, languages: int) -> tuple[dict[str, int], npt.NDArray[np.float32]]:
    """Sequences of up to `_ORDER` letters with their rows, and float32[sequences + 1, languages]: their
    counts, the last row zeros.

    words: as `Spelling._usable` gives them. `_` marks the beginning and the end of a word. A word counts by
    its frequency's `_POWER`, as many times as makes the words of a language count once on average.
    """
    power = pl.col("share") ** _POWER
    learnt = words.group_by("language", maintain_order=True).head(_LEARNT)
    # Whole thousandths: their sums do not depend on the order.
    learnt = learnt.with_columns(
        weight=(1000 * power / power.mean().over("language")).round().cast(pl.UInt32)
    )
    codes = np.frombuffer("".join(f"_{w}_\n" for w in learnt["word"]).encode("utf-16-le"), np.uint16)
    ends = codes == ord("\n")
    at = (np.cumsum(ends) - ends).astype(np.uint32)  # the word that a letter is of
    of_size = []
    for size in range(1, _ORDER + 1):
        windows = np.lib.stride_tricks.sliding_window_view(codes, size)
        starts = np.flatnonzero(~np.lib.stride_tricks.sliding_window_view(ends, size).any(axis=1))
        key = np.zeros(len(starts), np.uint64)
        for n in range(size):
            key |= windows[starts, n].astype(np.uint64) << np.uint64(16 * (_ORDER - 1 - n))
        found = learnt.select("language", "weight")[at[starts]].with_columns(key=pl.Series(key))
        of_size.append(found.group_by("key", "language").agg(pl.col("weight").cast(pl.Int64).sum()))
    counted = pl.concat(of_size)
    unique, rows = np.unique(counted["key"].to_numpy(), return_inverse=True)
    counts = np.zeros((len(unique) + 1, languages), np.float32)  # the last row: of what was never seen
    counts[rows, counted["language"].to_numpy()] = counted["weight"].to_numpy() / 1000
    letters = np.stack(
        [unique >> np.uint64(16 * (_ORDER - 1 - n)) & np.uint64(0xFFFF) for n in range(_ORDER)], 1
    )
    grams = letters.astype(np.uint32).view(f"<U{_ORDER}").ravel().tolist()
    return {gram: row for row, gram in enumerate(grams)}, counts


@lru_cache(maxsize=len(_LANGUAGES))
def spelling(script: str) -> Spelling | None:
    """The spellings of a script that languages share; None for one where nothing is known of them."""
    if script not in _LANGUAGES:
        return None
    return Spelling(script, {language: word_frequencies(language) for language in _LANGUAGES[script]})
