"""How often languages use their words: the frequency lists of wordfreq, and `words.yaml` for languages
that it lacks."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources

import yaml

# Languages that share a script and that wordfreq has a list of, and its name there.
_LISTED = {
    "ar": "ar", "bg": "bg", "ca": "ca", "cs": "cs", "da": "da", "de": "de", "en": "en", "es": "es",
    "fa": "fa", "fi": "fi", "fr": "fr", "hi": "hi", "hr": "sh", "hu": "hu", "id": "id", "is": "is",
    "it": "it", "lt": "lt", "lv": "lv", "mk": "mk", "nb": "nb", "nl": "nl", "pl": "pl", "pt": "pt",
    "ro": "ro", "ru": "ru", "sk": "sk", "sl": "sl", "sr": "sh", "sv": "sv", "tl": "fil", "tr": "tr",
    "uk": "uk", "ur": "ur", "vi": "vi",
}  # fmt: skip

# Vocabularies hold rarer words of English than of other languages.
_LENGTH, _ENGLISH_LENGTH = 20_000, 80_000
_SHARE = 0.1  # of running text, that the words of such a list make up together

# Serbian is listed in Latin letters.
_DIGRAPHS = {"lj": "љ", "nj": "њ", "dž": "џ"}
_CYRILLIC = str.maketrans("abvgdđežzijklmnoprstćufhcčš", "абвгдђежзијклмнопрстћуфхцчш")


def word_frequencies(language: str) -> dict[str, float]:
    """Words of a language, in small letters, and the share of its running words that each of them makes up.

    The most frequent come first. `words.yaml` has no frequencies: its words share alike.

    >>> list(word_frequencies("de"))[:2], list(word_frequencies("sr"))[4]
    (['die', 'der'], 'се')
    """
    if (listed := _LISTED.get(language)) is None:
        words = sorted(set(_own_words()[language].split()))
        return dict.fromkeys(words, _SHARE / len(words))
    # Not needed, and not loaded, where a vocabulary's table is in the cache.
    from wordfreq import cB_to_freq, get_frequency_list

    found: dict[str, float] = {}
    size, length = ("large", _ENGLISH_LENGTH) if language == "en" else ("small", _LENGTH)
    for centibels, bucket in enumerate(get_frequency_list(listed, size)):
        for word in bucket:
            if language == "sr":
                word = _in_cyrillic(word)
            found[word] = found.get(word, 0.0) + cB_to_freq(-centibels)
        if len(found) >= length:
            break
    return found


def _in_cyrillic(word: str) -> str:
    for latin, cyrillic in _DIGRAPHS.items():
        word = word.replace(latin, cyrillic)
    return word.translate(_CYRILLIC)


@lru_cache(maxsize=1)
def _own_words() -> dict[str, str]:
    text = (resources.files("coverage_job.tokenizer") / "words.yaml").read_text(encoding="utf-8")
    return {str(language): str(words) for language, words in yaml.safe_load(text).items()}
