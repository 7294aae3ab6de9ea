"""Real dialogues, real tokenizers: the ids and the mask are those of transformers' `apply_chat_template`.

And where a template has no generation blocks, those of an independent reference: rendering prefixes of
the dialogue, where that is valid.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from coverage_job.config import parse_job
from coverage_job.corpus.batches import TextBuilder
from coverage_job.corpus.chat import Rendered, Renderer, token_texts
from coverage_job.corpus.documents import TextBatch, TokenBatch
from coverage_job.corpus.plan import list_files
from coverage_job.corpus.sandbox import RenderError
from coverage_job.corpus.shapes import Dialogue, to_dialogue
from coverage_job.corpus.source import resolve
from coverage_job.corpus.template import TemplateSpec, load_template
from coverage_job.counting.cuts import derive
from coverage_job.counting.kernel import FastKernel
from coverage_job.counting.reference import ReferenceKernel
from coverage_job.tokenizer.load import describe, load
from tests.conftest import SHARED, needs_shared
from tests.corpus.dialogues import (
    CHATML,
    CHATML_MARKED,
    NEWLINE_MARKED,
    NOW,
    TOOLS_MARKED,
    dialogue,
    renderer,
    spans,
    tokenizer,
)

transformers = pytest.importorskip("transformers")
logging.getLogger("transformers").setLevel(logging.ERROR)

TOKENIZERS = ["qwen3", "deepseek_v3"]
MARKED = {"chatml": CHATML_MARKED, "newline": NEWLINE_MARKED, "tools": TOOLS_MARKED}
# Every SFT set, and how it is read where its shape does not say so.
SETS: dict[str, dict[str, str]] = {
    "chatterbot/chatterbot.jsonl": {},
    "fastchat/dummy_conversation.json": {},
    "language_confusion/command-r.csv": {"prompt": "task", "completion": "completion"},
    "language_confusion/llama-2-instruct.csv": {"prompt": "task", "completion": "completion"},
    "lawyer_llama/fakao_gpt4.json": {},
    "lawyer_llama/legal_counsel_multi_turn_with_article_v2.json": {},
    "lawyer_llama/legal_counsel_with_article_v2.json": {},
    "llamafactory/alpaca_en_demo.json": {},
    "llamafactory/alpaca_zh_demo.json": {},
    "llamafactory/dpo_en_demo.json": {},
    "llamafactory/dpo_zh_demo.json": {},
    "llamafactory/glaive_toolcall_en_demo.json": {},
    "llamafactory/glaive_toolcall_zh_demo.json": {},
    "llamafactory/identity.json": {},
    "llamafactory/kto_en_demo.json": {},
    "llamafactory/mllm_demo.json": {},
    "llamafactory/reason_tool_use_demo_50.jsonl": {},
    "llamafactory/v1_dpo_demo.jsonl": {},
    "llamafactory/v1_sft_demo.jsonl": {},
}
SAMPLE = 8


def records(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return list(json.loads(text))
    return [json.loads(line) for line in text.split("\n") if line]


# Of each set at most so many records in the slow tests, spread over it: all, but where CI has not the time.
_RECORDS = int(os.environ.get("COVERAGE_JOB_TEST_RECORDS", "1000000"))


def spread(found: list[Any], most: int) -> list[Any]:
    return found[:: max(1, -(-len(found) // most))]


@lru_cache
def dialogues(name: str) -> list[Dialogue]:
    path = SHARED / "sft" / name
    found = records(path)
    if "multi_turn" in name:  # its history alternates, each turn behind a sign of who speaks
        for record in found:
            record["messages"] = dialogue(*[turn.partition(" ")[2] for turn in record["history"]])
        return [Dialogue(messages=record["messages"]) for record in found]
    corpus = {"name": "sft", "stage": "posttraining", "path": str(path), **SETS[name]}
    job = parse_job({"tokenizer": "x", "corpora": [corpus]}, base=Path("/"))
    source = resolve(job.corpora[0], job, list_files(job.corpora[0]))
    return [to_dialogue(record, source) for record in found]


@lru_cache
def theirs(name: str) -> Any:
    return transformers.AutoTokenizer.from_pretrained(str(SHARED / "tokenizers" / name))


@lru_cache
def loaded(name: str) -> Tokenizer:
    return load(describe(str(SHARED / "tokenizers" / name)))


@lru_cache
def ours(name: str) -> ReferenceKernel:
    return ReferenceKernel(loaded(name))


@lru_cache
def fast(name: str) -> FastKernel:
    return FastKernel(loaded(name), derive(loaded(name)))


@lru_cache
def renderer_of(name: str, template: str | None = None) -> Renderer:
    spec = load_template(str(SHARED / "tokenizers" / name))
    assert spec is not None
    if template is not None:
        spec = TemplateSpec("test", "default", template, tokens=spec.tokens)
    special, added = token_texts(loaded(name).get_added_tokens_decoder())
    return Renderer(spec, special_tokens=special, added_tokens=added, now=NOW)


def batch_of(rendered: list[Rendered]) -> TextBatch:
    builder = TextBuilder(spanned=True)
    for one in rendered:
        assert list(builder.add([one.text], one.spans, 0)) == [], "sample too large for one batch"
    return builder.take()


def in_batches(items: list[Any], size: int = 200) -> Iterator[list[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def split(encoded: TokenBatch) -> Iterator[tuple[list[int], list[int]]]:
    assert encoded.supervised is not None
    for a, b in zip(encoded.documents[:-1].tolist(), encoded.documents[1:].tolist(), strict=True):
        yield encoded.ids[a:b].tolist(), encoded.supervised[a:b].tolist()


def assert_equal_to_theirs(name: str, template: str, found: list[Dialogue], with_fast: bool) -> None:
    own = renderer_of(name, template)
    for part in in_batches(found):
        rendered = [own.render(d.messages, d.tools) for d in part]
        assert not any(one.unmaskable for one in rendered)
        batch = batch_of(rendered)
        encoded = ours(name).encode(batch)
        for d, (ids, mask) in zip(part, split(encoded), strict=True):
            expected = theirs(name).apply_chat_template(
                d.messages,
                tools=d.tools,
                chat_template=template,
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
            assert ids == expected["input_ids"]
            assert mask == expected["assistant_masks"]
            assert sum(mask) > 0
        if with_fast:
            quick = fast(name).encode(batch)
            assert np.array_equal(quick.ids, encoded.ids)
            assert np.array_equal(quick.supervised, encoded.supervised)  # type: ignore[arg-type]
            assert np.array_equal(quick.seams, encoded.seams)  # type: ignore[arg-type]


@needs_shared
@pytest.mark.parametrize("kind", MARKED)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_and_mask_equal_transformers(name: str, kind: str) -> None:
    for path in SETS:
        found = dialogues(path)
        assert_equal_to_theirs(name, MARKED[kind], found[:: max(1, len(found) // SAMPLE)], with_fast=False)


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("path", SETS)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_and_mask_equal_transformers_in_every_record(name: str, path: str) -> None:
    found = spread(dialogues(path), _RECORDS)
    for template in MARKED.values():
        assert_equal_to_theirs(name, template, found, with_fast=True)


def by_prefixes(own: Renderer, d: Dialogue, end: str) -> list[tuple[int, int]] | None:
    """Spans in bytes by rendering prefixes of the dialogue with transformers' environment; None if invalid.

    A turn begins where the prefix before it, with the generation prompt, ends; it ends where the prefix with
    it ends, or else at the next end-of-turn token, where its own text holds none.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    def write(messages: list[Any], prompt: bool) -> str:
        texts, _ = render_jinja_template(
            [messages],
            tools=d.tools,
            chat_template=own.template.text,
            add_generation_prompt=prompt,
            **own.template.variables,
        )
        return str(texts[0])

    full = write(d.messages, False)
    spans = []
    for i, message in enumerate(d.messages):
        if message["role"] != "assistant":
            continue
        before = write(d.messages[:i], True)
        if not full.startswith(before):
            return None
        start = len(before)
        through = write(d.messages[: i + 1], False)
        if full.startswith(through):
            stop = len(through.rstrip()) if through.rstrip().endswith(end) else len(through)
        elif end in json.dumps(message, ensure_ascii=False):
            return None
        else:
            stop = full.index(end, start) + len(end)
        spans.append((len(full[:start].encode()), len(full[:stop].encode())))
    return spans


def by_signs(text: str, d: Dialogue, start: str, end: str) -> list[tuple[int, int]] | None:
    """Spans in bytes between the tokens that open and end an answer; None where a message holds one."""
    held = json.dumps(d.messages, ensure_ascii=False)
    if start.strip() in held or end in held:
        return None
    found = re.finditer(re.escape(start) + "(.*?" + re.escape(end) + ")", text, re.DOTALL)
    return [(len(text[: m.start(1)].encode()), len(text[: m.end(1)].encode())) for m in found]


def compare_with_prefixes(name: str, found: list[Dialogue]) -> tuple[int, int]:
    """(records compared, records for which no reference is valid).

    Qwen's template drops reasoning of earlier turns, so prefixes fail there; its turns stand between signs.
    """
    own = renderer_of(name)
    (end,) = own.end_of_turn()
    compared = invalid = 0
    for d in found:
        expected = by_prefixes(own, d, end)
        rendered = own.render(d.messages, d.tools)
        assert rendered.unmaskable == ""
        if expected is None and name == "qwen3":
            expected = by_signs(rendered.text.decode(), d, "<|im_start|>assistant\n", end)
        if expected is None:
            invalid += 1
            continue
        compared += 1
        assert rendered.spans == expected, d.messages
    return compared, invalid


@needs_shared
@pytest.mark.parametrize("name", TOKENIZERS)
def test_spans_of_the_own_template_equal_prefix_rendering(name: str) -> None:
    compared = invalid = 0
    for path in SETS:
        found = dialogues(path)
        a, b = compare_with_prefixes(name, found[:: max(1, len(found) // SAMPLE)])
        compared, invalid = compared + a, invalid + b
    assert invalid <= compared // 50


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("path", SETS)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_spans_of_the_own_template_equal_prefix_rendering_in_every_record(name: str, path: str) -> None:
    compared, invalid = compare_with_prefixes(name, spread(dialogues(path), _RECORDS))
    assert invalid <= compared // 10


@needs_shared
def test_deepseeks_template_drops_tool_calls_beside_an_empty_content() -> None:
    found = dialogues("llamafactory/glaive_toolcall_en_demo.json")
    calls = [d for d in found if any(m.get("tool_calls") for m in d.messages)]
    own = renderer_of("deepseek_v3")
    lost = [own.render(d.messages, d.tools).lost_tool_calls for d in calls]
    assert lost == [sum(len(m.get("tool_calls") or []) for m in d.messages) for d in calls]
    assert all(renderer_of("qwen3").render(d.messages, d.tools).lost_tool_calls == 0 for d in calls)


# Where transformers is at fault: its answer is pinned, ours follows the rule.


def plain_tokenizer(template: str) -> Any:

    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(), chat_template=template, bos_token="<s>", eos_token="</s>"
    )


def their_mask_text(template: str, messages: list[Any]) -> tuple[str, str]:
    wrapped = plain_tokenizer(template)
    out = wrapped.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    kept = [i for i, m in zip(out["input_ids"], out["assistant_masks"], strict=True) if m]
    return wrapped.decode(out["input_ids"]), wrapped.decode(kept)


def test_fault_of_theirs_a_block_inside_a_macro() -> None:
    template = (
        "{% macro turn(m) %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
        "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endmacro %}"
        "{% for m in messages %}{{ turn(m) }}{% endfor %}"
    )
    messages = dialogue("q", "answer")
    _, kept = their_mask_text(template, messages)
    # They take the block to begin where the text of the macro does.
    assert kept == "<|im_start|>assi"
    assert spans(renderer(template).render(messages)) == ["answer<|im_end|>"]


def test_fault_of_theirs_no_blocks_no_mask() -> None:
    # Fault 1.

    _, kept = their_mask_text(CHATML, dialogue("q", "a"))
    assert kept == ""
    assert spans(renderer(CHATML).render(dialogue("q", "a"))) == ["a<|im_end|>"]


def test_fault_of_theirs_content_of_none() -> None:
    # Releases from 5.0 on leave the key out, and DeepSeek's template then fails.
    template = (
        "{% for m in messages %}{{ 'calls' if m['content'] is none else 'x' + m['content'] }}{% endfor %}"
    )
    messages = [{"role": "assistant", "content": None}]
    with pytest.raises(Exception, match="content"):
        plain_tokenizer(template).apply_chat_template(messages, tokenize=False)

    assert renderer(template).render(messages).text == b"calls"


def test_a_record_on_which_both_fail_has_the_same_message() -> None:

    template = "{{ raise_exception('no system') if messages[0].role == 'system' }}"
    messages = dialogue("q", system="s")
    with pytest.raises(Exception, match=r"^no system$"):
        plain_tokenizer(template).apply_chat_template(messages, tokenize=False)
    with pytest.raises(RenderError, match=r"^no system$"):
        renderer(template).render(messages)
