from __future__ import annotations

import pytest

from coverage_job.errors import ProbeError
from coverage_job.probes.choose import ProbeToken
from coverage_job.probes.prompts import (
    KINDS,
    dump_prompts,
    encode_prompt,
    leading_ids,
    parse_prompts,
    questions,
    sentences,
    verification_ids,
    write_prompts,
)
from tests.probes.tiny import as_tokens, byte_tokenizer

TOKENIZER = byte_tokenizer()
LANGUAGES = ("ja", "ko", "zh", "ru", "ar", "en")


def test_six_languages_have_sentences_and_as_many_questions():
    assert set(sentences()) == set(LANGUAGES)
    for language in LANGUAGES:
        spoken = sentences()[language]
        for kind in KINDS:
            assert spoken[kind]["prompt"].count("{token}") == 1
            assert "{token}" in spoken[kind]["answer"]
        assert len(set(spoken["questions"])) == 20


def test_the_prompt_has_the_token_whatever_the_token_is():
    ids = list(range(3, TOKENIZER.get_vocab_size()))
    prompts = write_prompts(as_tokens(ids, TOKENIZER, "ja"), TOKENIZER)
    assert len({p.prompt_id for p in prompts}) == len(prompts) == 3 * len(ids)
    for prompt in prompts:
        assert prompt.token_id in encode_prompt(prompt, TOKENIZER)
        text = TOKENIZER.decode([prompt.token_id])
        if "\ufffd" in text:
            assert prompt.text is None
        elif text.strip() and TOKENIZER.encode(text).ids == [prompt.token_id]:
            assert prompt.text == text.strip()


def test_the_form_is_the_one_that_encodes_to_the_token():
    space, bare = (TOKENIZER.encode(text).ids for text in (" apple", "apple"))
    assert space != bare
    for wanted in (space[0], bare[-1]):
        for prompt in write_prompts(as_tokens([wanted], TOKENIZER, "en"), TOKENIZER):
            assert prompt.text is not None
            assert wanted in TOKENIZER.encode(prompt.before).ids


def test_an_id_is_put_into_prompt_and_template():
    half = TOKENIZER.encode("札").ids[0]
    [prompt] = write_prompts([ProbeToken(half, None, "ja")], TOKENIZER, ["copy"])
    assert prompt.text is None
    assert f"<{half}>" in prompt.shown()

    def chat(content: str) -> str:
        return f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"

    ids = encode_prompt(prompt, TOKENIZER, chat)
    assert ids.count(half) >= 1
    assert ids[0] == TOKENIZER.token_to_id("<|im_start|>")
    at = ids.index(TOKENIZER.token_to_id("<|im_end|>"))
    assert ids[at - 1] == half
    assert verification_ids(prompt, TOKENIZER, chat) == [ids, [*ids, half], [*ids, half, half]]


def test_a_beginning_of_sequence_is_given_once():
    from tokenizers.processors import TemplateProcessing

    framed = byte_tokenizer()
    framed.post_processor = TemplateProcessing(
        single="<|im_start|> $A <|end|>", special_tokens=[("<|im_start|>", 1), ("<|end|>", 0)]
    )
    assert leading_ids(TOKENIZER) == []
    assert leading_ids(framed) == [1]
    for text in ("apple", None):
        [prompt] = write_prompts([ProbeToken(300, text, "en")], framed, ["fact"])
        ids = encode_prompt(prompt, framed)
        assert ids[0] == 1
        assert ids.count(1) == 1
        assert ids.count(0) == 0


def test_a_language_without_sentences_is_asked_in_english():
    [prompt] = write_prompts([ProbeToken(300, "apple", "sw")], TOKENIZER, ["copy"])
    assert prompt.before.startswith("Write the following string")
    assert prompt.language == "sw"


def test_prompts_survive_their_file():
    prompts = write_prompts(
        [*as_tokens([200, 300], TOKENIZER, "zh-Hant"), ProbeToken(300, "x", "ja", "なに?")], TOKENIZER
    )
    assert parse_prompts(dump_prompts(prompts)) == prompts
    assert len({p.prompt_id for p in prompts}) == len(prompts)
    with pytest.raises(ProbeError, match="line 2"):
        parse_prompts(dump_prompts(prompts[:1]) + b'{"prompt": "x"}\n')


def test_a_token_listed_twice_is_asked_twice():
    prompts = write_prompts(as_tokens([300, 300], TOKENIZER), TOKENIZER, ["copy"])
    assert [p.prompt_id for p in prompts] == ["300-copy", "300-copy-2"]


def test_unknown_kinds_and_languages_are_named():
    with pytest.raises(ProbeError, match="rhyme"):
        write_prompts([], TOKENIZER, ["rhyme"])
    with pytest.raises(ProbeError, match="'xx'"):
        questions(["xx"])


def test_questions_can_be_limited():
    asked = questions(["ja", "ar"], 3)
    assert [q[0] for q in asked] == ["ja-01", "ja-02", "ja-03", "ar-01", "ar-02", "ar-03"]
    assert len(questions()) == 120
