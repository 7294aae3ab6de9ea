"""Scripts of characters, and letters foreign to a language."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coverage_job.tokenizer.scripts import SCRIPTS, main_script, mixed_script, script_of, script_table


def test_every_script_is_known_and_agrees_with_character_names() -> None:
    table = script_table()
    assert len(set(SCRIPTS)) == len(SCRIPTS) < 256
    assert set(SCRIPTS) - {"Unknown"} <= {SCRIPTS[n] for n in set(table.tolist())}
    names = {"LATIN": "Latin", "CYRILLIC": "Cyrillic", "HEBREW": "Hebrew", "THAI": "Thai", "HANGUL": "Hangul"}
    for code in range(0x3000):
        c = chr(code)
        first = unicodedata.name(c, "").split(" ")[0]
        if c.isalpha() and first in names:
            assert script_of(c) == names[first], c


@given(st.characters())
@settings(deadline=None)
def test_the_table_is_the_script_property(c: str) -> None:
    regex = pytest.importorskip("regex")
    script = script_of(c)
    if script != "Unknown":
        assert regex.fullmatch(rf"\p{{Script={script}}}", c)


@pytest.mark.parametrize(
    ("text", "script"),
    [
        (" the", "Latin"),
        ("お願い", "Hiragana"),
        ("123", "Common"),
        ("", "Common"),
        ("ー", "Katakana"),
        ("嘉a", "Han"),
    ],
)
def test_main_script(text: str, script: str) -> None:
    assert main_script(text) == script


@pytest.mark.parametrize(
    ("text", "language", "found"),
    [
        ("Ответ на русском языке", "ru", []),
        ("Ответ: 日本 и ещё", "ru", [("日本", "Han")]),
        ("これはответです", "ja", [("ответ", "Cyrillic")]),
        ("これは正しい答えです。OK?", "ja", []),
        ("답은 正确입니다", "ko", [("正确", "Han")]),
        ("这是ответ和답", "zh", [("ответ", "Cyrillic"), ("답", "Hangul")]),
        ("这是ответ和답", "zh-Hant", [("ответ", "Cyrillic"), ("답", "Hangul")]),
        ("plain English", "en", []),
        ("the word 嘉祺 here", "en", [("嘉祺", "Han")]),
        ("a Latin name Łódź in en", "en", []),
        ("Python и numpy", "ru", []),
        ("код `変数` и ```\n変数\n``` готов", "ru", []),
        ("см. https://例え.jp/資料 тут", "ru", []),
        ("слово «猫» значит кошка", "ru", []),
        ("город (東京) большой", "ru", []),
        ("формула $漢$ тут", "ru", []),
        ("Српски / srpski", "sr", []),
        ("βήτα 5 μm", "el", []),
        (
            "почта иван@пример.рф, формула \\(漢\\) и \\[漢\\] тут",
            "en",
            [("почта", "Cyrillic"), ("формула", "Cyrillic"), ("и", "Cyrillic"), ("тут", "Cyrillic")],
        ),
        ("β-carotene at α = 5 Ω, but not βήτα", "en", [("βήτα", "Greek")]),
    ],
)
def test_mixed_script(text: str, language: str, found: list[tuple[str, str]]) -> None:
    assert [(text[start:end], script) for start, end, script in mixed_script(text, language)] == found


@pytest.mark.parametrize("run", ["a", "aB3+", "中", "\\(", "\\[", "$$", "`", "a@", '"'])
def test_long_runs_are_gone_over_once(run: str) -> None:
    """Once from each of their letters would take hours."""
    text = "мир " + run * 300_000
    assert mixed_script(text, "zh")[0] == (0, 3, "Cyrillic")


def test_what_the_user_wrote_is_no_mixing() -> None:
    answer = "Слово 猫 значит кошка, а 犬 собака"
    assert [answer[a:b] for a, b, _ in mixed_script(answer, "ru", quoted="Что значит 猫?")] == ["犬"]


@given(st.text(max_size=60), st.sampled_from(["ru", "ja", "zh", "ko", "en", "ar", "xx"]))
@settings(deadline=None)
def test_positions_are_runs_of_one_foreign_script(text: str, language: str) -> None:
    end_before = -1
    for start, end, script in mixed_script(text, language):
        assert start >= max(end_before, 0)
        end_before = end
        assert {script_of(c) for c in text[start:end]} == {script}
        assert re.search(r"[^\W\d_]", text[start:end])
        assert script != "Latin"
