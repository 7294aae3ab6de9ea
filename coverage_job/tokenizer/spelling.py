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
from collections.abc import Mapping
from functools import lru_cache
from string import ascii_letters

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
        self._none = np.zeros(len(of), np.float32)
        self._chances: dict[str, npt.NDArray[np.float32]] = {}
        self._likelies: dict[str, npt.NDArray[np.float64]] = {}
        self._decided: dict[tuple[str, bool, bool, bool], tuple[str, str]] = {}
        self._fitting: dict[frozenset[str], tuple[list[int], npt.NDArray[np.float64]]] = {}

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

    def decide(
        self, text: str, begins: bool, *, capitals: bool = False, joined: bool = False
    ) -> tuple[str, str]:
        """Language (`und` where it stays open) and rule of letters and marks, in small letters.

        begins: whether a word begins with them. capitals: whether all were written as capitals. joined:
        whether a capital begins them and no space, as in the names of programs. Looked at are the first
        `_LONGEST`.
        """
        # Many of a vocabulary's words stand in it twice: with a capital, after a space.
        asked = text[:_LONGEST], begins, capitals and len(text) <= _ABBREVIATION, joined and self._ascii
        if (decided := self._decided.get(asked)) is None:
            decided = self._decided[asked] = self._decide(*asked)
        return decided

    def _shares_of(self, first: int, last: int) -> npt.NDArray[np.float64]:
        """float64[languages]: the share of running words that some of the words in order make."""
        shares = np.bincount(self._owners[first:last], self._shares[first:last], len(self.languages))
        return shares.astype(np.float64, copy=False)

    def _decide(self, text: str, begins: bool, abbreviation: bool, joined: bool) -> tuple[str, str]:
        plain = text.isascii()
        letters = frozenset() if plain else self._outside(text)
        if (fitting := self._fitting.get(letters)) is None:
            fitting = self._fitting[letters] = self._writing(letters)
        writing, prior = fitting
        if len(writing) == 1:
            return self.languages[writing[0]], "alphabet"
        if not writing:
            return "und", "alphabet_unknown"
        if len(text) < (2 if begins or self._dense else 3):
            return "und", "short"
        if plain and _VOWELS.isdisjoint(text):
            return "und", "no_vowel"
        # The words that begin with the text; the first of them are the text, in each language that has it.
        first = bisect_left(self._words, text)
        last = bisect_left(self._words, text + _LAST, first)
        equal = bisect_right(self._words, text, first, last)
        whole = self._shares_of(first, equal) if equal > first else self._none
        in_use = equal > first and whole[writing].max() > _IN_USE
        if abbreviation and not in_use and len(text) <= _INITIALS:
            return "und", "abbreviation"
        few = not self._dense and (abbreviation or (not begins and len(text) <= _PIECE))
        begins = begins or (few and in_use)
        weights, likelies = prior.copy(), self._likelies
        marked = f"_{text}" if begins else text
        for end in range(2 if begins else 1, len(marked) + 1):
            gram = marked[end - _ORDER if end > _ORDER else 0 : end]
            weights += known if (known := likelies.get(gram)) is not None else self._likely(gram)
        if begins and last > first:
            weights += _BEGUN * np.log(self._shares_of(first, last) + _WHOLE * whole + _UNSEEN)
        if joined:
            weights += self._joined
        best = int(weights.argmax())
        sure = _SURE_OF_FEW if few and not in_use else _SURE
        if np.exp(weights - weights[best]).sum() * sure <= 1:
            return self.languages[best], "spelling"
        return "und", "spelling_open"


def _letter_sequences(words: pl.DataFrame, languages: int) -> tuple[dict[str, int], npt.NDArray[np.float32]]:
    """Sequences of up to `_ORDER` letters with their rows, and float32[sequences, languages]: their counts.

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
    counts = np.zeros((len(unique), languages), np.float32)
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
