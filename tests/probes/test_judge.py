"""Verdicts on answers written by hand in six languages."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from coverage_job.probes.choose import ProbeToken
from coverage_job.probes.judge import Verdict, answer_of, judge, judge_ids, occurrences
from coverage_job.probes.prompts import Prompt, write_prompts

LABELLED = [
    json.loads(line)
    for line in (Path(__file__).parent / "labelled_responses.jsonl").read_text("utf-8").splitlines()
]


def one_byte_tokenizer() -> Tokenizer:
    """Every text is its bytes, so any text can be asked for."""
    alphabet = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZER = one_byte_tokenizer()


def ask_for(target: str, language: str, kind: str) -> Prompt:
    last = TOKENIZER.encode(target).ids[-1]
    [prompt] = write_prompts([ProbeToken(last, target, language)], TOKENIZER, [kind])
    return prompt


def test_the_labelled_set_is_large_and_even():
    assert len(LABELLED) >= 120
    assert len({case["id"] for case in LABELLED}) == len(LABELLED)
    assert min(Counter(case["language"] for case in LABELLED).values()) >= 20
    assert {case["language"] for case in LABELLED} == {"ja", "ko", "zh", "ru", "ar", "en"}
    assert {case["verdict"] for case in LABELLED} == {verdict.value for verdict in Verdict}


@pytest.mark.parametrize("case", LABELLED, ids=[case["id"] for case in LABELLED])
def test_labelled(case):
    judgement = judge(ask_for(case["target"], case["language"], case["kind"]), case["response"])
    assert judgement.verdict == case["verdict"]
    if case["verdict"] == "substituted":
        assert judgement.substitute == case["substitute"]


@pytest.mark.parametrize("language", ["ja", "ko", "zh", "ru", "ar", "en"])
@pytest.mark.parametrize("kind", ["copy", "list", "fact"])
def test_the_ideal_answer_is_written_and_a_wrong_word_in_its_place_is_named(language, kind):
    prompt = ask_for("Целое", language, kind)

    def ideal(word: str) -> str:
        if kind == "copy":
            return " ".join([word] * 3)
        return f"{prompt.answer_before}{word}{prompt.answer_after}"

    assert judge(prompt, ideal("Целое")).verdict is Verdict.WRITTEN
    replaced = judge(prompt, ideal("другое"))
    assert (replaced.verdict, replaced.substitute) == (Verdict.SUBSTITUTED, "другое")
    assert judge(prompt, ideal("")).verdict in (Verdict.OMITTED, Verdict.EMPTY)


def test_thinking_is_no_answer():
    assert answer_of("<think>word</think> no") == "no"
    assert answer_of("word, surely</think>no") == "no"
    assert answer_of("<think>word word") == ""


def test_a_part_of_a_word_is_not_the_word_where_words_have_borders():
    assert occurrences("which", "ich") == 0
    assert occurrences("ich, ich", "ich") == 2
    assert occurrences("который кот", "кот") == 1
    assert occurrences("書いています", "てい") == 1
    assert occurrences("이름은", "이름") == 1
    assert occurrences("snake_case", "case") == 1
    assert occurrences("x=1; y=1", "=1") == 2


def test_composed_and_decomposed_are_the_same_text():
    prompt = ask_for("café", "en", "copy")
    assert judge(prompt, "cafe\u0301 cafe\u0301 cafe\u0301").verdict is Verdict.WRITTEN


def test_broken_characters_in_the_place_of_the_token_are_a_part_of_it():
    prompt = ask_for("嘉祺", "zh", "copy")
    assert judge(prompt, "\ufffd\ufffd \ufffd\ufffd").verdict is Verdict.PARTIAL
    assert judge(prompt, "嘉\ufffd 嘉\ufffd 嘉\ufffd").verdict is Verdict.PARTIAL


def test_ids_tell_where_no_text_can():
    prompt = Prompt("7-copy", 7, "en", "copy", "a", "b", None, required=3)
    assert judge_ids(prompt, [7, 1, 7, 7]).verdict is Verdict.WRITTEN
    assert judge_ids(prompt, [7, 1]).verdict is Verdict.PARTIAL
    assert judge_ids(prompt, [1, 2]).verdict is Verdict.OMITTED
    assert judge_ids(prompt, []).verdict is Verdict.EMPTY
    with pytest.raises(ValueError, match="ids"):
        judge(prompt, "x")


@pytest.mark.parametrize("kind", ["copy", "list", "fact"])
@pytest.mark.parametrize(
    "response",
    [
        "\x00",
        "「" * 5000,
        "a" * 20000,
        "\n" * 1000 + "x",
        "((((",
        "\ud7a3" * 3000,
        "```",
        "1. 2. 3.",
        "a" * 50000 + "b",
        "\u202e\u202e",
        "<think>" * 50,
    ],
)
def test_any_text_gets_a_verdict(kind, response):
    assert judge(ask_for("word", "ja", kind), response).verdict is not Verdict.WRITTEN
