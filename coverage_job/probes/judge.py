"""What an answer made of the token it was asked for.

Pure functions of texts and ids. The *place* of the token in an answer is found from the ideal answer: the
unit that is repeated, the item between its neighbours, the words between the start and the end of a
sentence.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from coverage_job.probes.prompts import FALLBACK, Prompt, sentences, spoken


class Verdict(str, Enum):
    """What became of the token.

    written: there as often as it was asked for. partial: there less often, or only a part of its text in
    its place. substituted: something else in its place. omitted: the answer goes on without it.
    refused: the answer declines. empty: there is no answer.
    """

    WRITTEN = "written"
    PARTIAL = "partial"
    SUBSTITUTED = "substituted"
    OMITTED = "omitted"
    REFUSED = "refused"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict; `substitute` is what stands in the token's place, where something else does."""

    verdict: Verdict
    substitute: str | None = None


_QUOTES = "「」『』\"'“”‘’«»„`*《》()（）[]【】"
_ENDS = ".。．!！?？,，、،;；:：…"
_BULLET = re.compile(r"^\s*(?:[-*•・—–]\s+|・|\d+\s*[.)．、）]\s*)")
_SEPARATORS = re.compile(r"[\s,，、،;；]+")
_QUOTED = re.compile(r"[「『\"“«《]([^「」『』\"“”«»《》]*)[」』\"”»》]")
# A match of a period takes time that grows with the square of the text's length.
_LONGEST_UNIT = 1000
_SENTENCE_END = re.compile(r"[。．！？!?\n]|[.](?=\s|$)")

# Scripts that put no space between words (or glue words to others, as Korean, Arabic and Hebrew do): a
# token may stand there with letters beside it and still be written.
_GLUED = (
    "CJK",
    "HIRAGANA",
    "KATAKANA",
    "HANGUL",
    "THAI",
    "LAO",
    "KHMER",
    "MYANMAR",
    "TIBETAN",
    "ARABIC",
    "HEBREW",
)


def _bounded(character: str) -> bool:
    return character.isalpha() and not unicodedata.name(character, "").startswith(_GLUED)


def occurrences(text: str, target: str) -> int:
    """How often `target` stands in `text`, not as a part of a longer word.

    >>> occurrences("party art Art", "art"), occurrences("嘉祺嘉祺", "嘉祺")
    (1, 2)
    """
    pattern = re.escape(target)
    if _bounded(target[0]):
        pattern = rf"(?<![^\W\d_]){pattern}"
    if _bounded(target[-1]):
        pattern = rf"{pattern}(?![^\W\d_])"
    return len(re.findall(pattern, text))


def answer_of(response: str) -> str:
    """The response without what a reasoning model thought first; nothing, where it never stopped thinking."""
    return response.rpartition("</think>")[2].partition("<think>")[0].strip()


def judge(prompt: Prompt, response: str) -> Judgement:
    """Judge an answer by its text. The prompt must have one (`text`); else see `judge_ids`."""
    if prompt.text is None:
        raise ValueError("a prompt without a text is judged by ids")
    text = unicodedata.normalize("NFC", answer_of(response))
    target = unicodedata.normalize("NFC", prompt.text)
    if not text:
        return Judgement(Verdict.EMPTY)
    count = occurrences(text, target)
    if count >= prompt.required:
        return Judgement(Verdict.WRITTEN)
    if count:
        return Judgement(Verdict.PARTIAL)
    if _refuses(text, prompt.language):
        return Judgement(Verdict.REFUSED)
    found = _bare(_in_place(prompt, text, target))
    if not found.replace("\ufffd", ""):
        return Judgement(Verdict.PARTIAL if found else Verdict.OMITTED)
    if found.replace("\ufffd", "") in target:
        return Judgement(Verdict.PARTIAL, found)
    return Judgement(Verdict.SUBSTITUTED, found)


def judge_ids(prompt: Prompt, ids: Sequence[int]) -> Judgement:
    """Judge an answer by its ids, where no text can tell (a part of a character, say)."""
    if not ids:
        return Judgement(Verdict.EMPTY)
    count = sum(i == prompt.token_id for i in ids)
    if count >= prompt.required:
        return Judgement(Verdict.WRITTEN)
    return Judgement(Verdict.PARTIAL if count else Verdict.OMITTED)


def _refuses(text: str, language: str) -> bool:
    lowered = text.lower()
    phrases = {*sentences()[spoken(language)]["refusals"], *sentences()[FALLBACK]["refusals"]}
    return any(phrase in lowered for phrase in phrases)


def _bare(text: str) -> str:
    return text.strip().strip(_QUOTES + _ENDS + " ").strip()


def _in_place(prompt: Prompt, text: str, target: str) -> str:
    if prompt.kind == "copy":
        return _repeated(text)
    if prompt.kind == "list":
        return _between_neighbours(text, prompt)
    if prompt.kind == "fact":
        return _in_sentence(text, prompt, target)
    return ""


def _repeated(text: str) -> str:
    """The unit that a copying answer repeats; of a short answer that repeats nothing, its first unit."""
    lines = [_BULLET.sub("", line) for line in text.split("\n")]
    units = [_bare(unit) for line in lines for unit in _SEPARATORS.split(line)]
    units = [unit for unit in units if unit]
    if not units:
        return ""
    # Written without any space: the unit is the period.
    for unit in units:
        periodic = re.fullmatch(r"(.+?)\1{2,}", unit[:_LONGEST_UNIT])
        if periodic and len(unit) > 3:
            return periodic[1]
    unit, count = Counter(units).most_common(1)[0]
    if count > 1:
        return unit
    return units[0] if len(units) <= 3 else ""


def _between_neighbours(text: str, prompt: Prompt) -> str:
    left = prompt.answer_before.split("\n")
    previous, following = left[-2], prompt.answer_after.split("\n")[1]
    lines = [_bare(_BULLET.sub("", line)) for line in text.split("\n") if not line.strip().startswith("```")]
    items = [line for line in lines if line]
    if len(items) < 3:
        items = [item for item in (_bare(i) for i in re.split(r"[,，、،;；\n]", text)) if item]
    if previous in items:
        at = items.index(previous) + 1
        return items[at] if at < len(items) and items[at] != following else ""
    if following in items:
        at = items.index(following) - 1
        return items[at] if at >= 0 and items[at] not in left else ""
    return ""


def _in_sentence(text: str, prompt: Prompt, target: str) -> str:
    start = _anchor_end(text, prompt.answer_before.strip())
    if start is None:
        quoted = _QUOTED.search(text)
        if quoted:
            return quoted[1]
        # An answer of the bare word or two, without a sentence around it.
        return text if len(text) <= 2 * len(target) + 4 else ""
    rest = text[start:].lstrip(" :：")
    quoted = _QUOTED.match(rest)
    if quoted:
        return quoted[1]
    stop = _SENTENCE_END.search(rest)
    content = rest[: stop.start()] if stop else rest
    following = prompt.answer_after.strip(" " + _ENDS)
    if following:
        # The rest of the sentence is often inflected: its first two characters mark it well enough.
        words = [following[:2], *(f"{joint}{following[:2]}" for joint in "이")]
        cut = min((content.find(word) for word in words if word in content), default=-1)
        content = content[:cut] if cut >= 0 else content
    return content


def _anchor_end(text: str, before: str) -> int | None:
    """Where the words that come before the token end in `text`: the longest end of `before` that is there."""
    shortest = 2 if not _spaced(before) else len(before.split()[-1])
    for length in range(len(before), shortest - 1, -1):
        at = text.rfind(before[-length:])
        if at >= 0:
            return at + length
    return None


def _spaced(text: str) -> bool:
    return " " in text
