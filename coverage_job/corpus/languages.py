"""A record's language as a BCP-47 tag, and the keys that counts are kept apart by."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import langcodes
import orjson

from coverage_job.corpus.documents import Key
from coverage_job.errors import CorpusError

MAX_GROUPS = 1000

# English names that data sets use instead of codes. Only names that are not codes themselves.
_NAMES = {
    "afrikaans": "af", "albanian": "sq", "amharic": "am", "arabic": "ar", "armenian": "hy",
    "azerbaijani": "az", "basque": "eu", "belarusian": "be", "bengali": "bn", "bosnian": "bs",
    "bulgarian": "bg", "burmese": "my", "cantonese": "yue", "catalan": "ca", "chinese": "zh",
    "simplifiedchinese": "zh-Hans", "traditionalchinese": "zh-Hant", "croatian": "hr", "czech": "cs",
    "danish": "da", "dutch": "nl", "english": "en", "esperanto": "eo", "estonian": "et", "farsi": "fa",
    "filipino": "fil", "finnish": "fi", "french": "fr", "galician": "gl", "georgian": "ka",
    "german": "de", "greek": "el", "gujarati": "gu", "hausa": "ha", "hebrew": "he", "hindi": "hi",
    "hinglish": "hi-Latn", "hungarian": "hu", "icelandic": "is", "igbo": "ig", "indonesian": "id",
    "irish": "ga", "italian": "it", "japanese": "ja", "javanese": "jv", "kannada": "kn",
    "kazakh": "kk", "khmer": "km", "korean": "ko", "kurdish": "ku", "kyrgyz": "ky", "lao": "lo",
    "latin": "la", "latvian": "lv", "lithuanian": "lt", "macedonian": "mk", "malay": "ms",
    "malayalam": "ml", "mandarin": "zh", "marathi": "mr", "mongolian": "mn", "nepali": "ne",
    "norwegian": "no", "odia": "or", "oriya": "or", "pashto": "ps", "persian": "fa", "polish": "pl",
    "portuguese": "pt", "punjabi": "pa", "romanian": "ro", "russian": "ru", "serbian": "sr",
    "sinhala": "si", "slovak": "sk", "slovene": "sl", "slovenian": "sl", "somali": "so",
    "spanish": "es", "swahili": "sw", "swedish": "sv", "tagalog": "tl", "tajik": "tg", "tamil": "ta",
    "tatar": "tt", "telugu": "te", "thai": "th", "tibetan": "bo", "turkish": "tr", "turkmen": "tk",
    "ukrainian": "uk", "urdu": "ur", "uyghur": "ug", "uzbek": "uz", "vietnamese": "vi", "welsh": "cy",
    "xhosa": "xh", "yiddish": "yi", "yoruba": "yo", "zulu": "zu",
}  # fmt: skip

# Registered after the list that langcodes ships, or withdrawn and still in use.
_NEWER = frozenset({"tok", "rsk", "isv", "eml"})

_SCRIPTS = {"latin": "Latn", "cyrillic": "Cyrl", "devanagari": "Deva", "arabic": "Arab", "hebrew": "Hebr"}


@lru_cache(maxsize=65536)
def normalise_language(value: str) -> str:
    """The BCP-47 tag that a language value stands for; '' where it is no language.

    Codes of two and three letters, POSIX locales and English names are known. Where only the first
    part is a language (``de-formal``), that part is the answer. A number that is a region's (``150``, Europe)
    is no language, though a tag may be made of it.

    >>> [normalise_language(v) for v in ("pt_BR", "eng", "sr@latin", "Bengali", "zho_Hans", "code", "150")]
    ['pt-BR', 'en', 'sr-Latn', 'bn', 'zh-Hans', '', '']
    """
    text = value.strip()
    name = re.sub(r"[\s_-]", "", text.lower())
    if name in _NAMES:
        return _NAMES[name]
    text, _, modifier = text.partition("@")
    text = text.partition(".")[0]
    if not text[:1].isalpha():
        return ""
    script = _SCRIPTS.get(modifier.lower())
    first = re.split(r"[-_]", text, maxsplit=1)[0].lower()
    candidates = [f"{first}-{script}"] if script else []
    candidates += [text, first]
    for candidate in candidates:
        try:
            if langcodes.tag_is_valid(candidate):
                return langcodes.standardize_tag(candidate)
        except ValueError:
            continue
    return first if first in _NEWER else ""


def group_text(value: Any) -> str:
    """A group value as text: '' for none, JSON for anything that is not text.

    >>> group_text(None), group_text(True), group_text(3), group_text("web")
    ('', 'true', '3', 'web')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        return str(value)


class KeyTable:
    """The (language, group) pairs met so far, in order of first sight.

    language_field, group_field: names of the fields, or None. Raises CorpusError naming the field
    once it holds more than 1,000 values.
    """

    def __init__(self, corpus: str, language_field: str | None, group_field: str | None) -> None:
        self.corpus = corpus
        # None, where there is no such field, is no record's field: records answer None to it.
        self.language_field: Any = language_field
        self.group_field: Any = group_field
        self.keys: list[Key] = []
        self._of_key: dict[Key, int] = {}
        # By raw values, of which only texts and None: numbers that are equal may differ as text.
        self._known: dict[tuple[Any, Any], int] = {}
        self._groups: set[str] = set()

    @property
    def constant(self) -> bool:
        """Whether every record has the same key."""
        return self.language_field is None and self.group_field is None

    def index(self, language: Any, group: Any) -> int:
        """The index in `keys` of a record's raw language and group values (None where missing)."""
        try:
            known = self._known.get((language, group))
        except TypeError:  # a list or an object
            known = None
        return self._add(language, group) if known is None else known

    def of_record(self, record: dict[str, Any]) -> int:
        """The index of a record's key."""
        return self.index(record.get(self.language_field), record.get(self.group_field))

    def of_records(self, records: list[dict[str, Any]]) -> list[int]:
        """The index of each record's key."""
        known, language, group = self._known, self.language_field, self.group_field
        try:
            return [known[r.get(language), r.get(group)] for r in records]
        except (KeyError, TypeError):
            return [self.of_record(r) for r in records]

    def _add(self, language: Any, group: Any) -> int:
        if isinstance(language, bytes):
            language = language.decode("utf-8", "replace")
        tag = normalise_language(language) if isinstance(language, str) else ""
        text = group_text(group)
        field = self.group_field
        if self.language_field is not None and not tag and (other := group_text(language)):
            # A value that is no language ("code", "wiki") still tells records apart.
            text, field = (f"{text}/{other}" if text else other), field or self.language_field
        if text not in self._groups:
            self._groups.add(text)
            if len(self._groups) > MAX_GROUPS:
                raise CorpusError(
                    f"corpus {self.corpus}: field {field!r} has over {MAX_GROUPS:,} values; "
                    "a field to group by has few, name another one or none"
                )
        key = Key(tag, text)
        index = self._of_key.get(key)
        if index is None:
            index = self._of_key[key] = len(self.keys)
            self.keys.append(key)
        if all(value is None or isinstance(value, str) for value in (language, group)):
            self._known[language, group] = index
        return index
