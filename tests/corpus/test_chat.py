"""What bears loss in a rendered dialogue; each fault that users met has a test of its kind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coverage_job.corpus.chat import Renderer
from coverage_job.corpus.sandbox import RenderError
from coverage_job.corpus.shapes import Dialogue, RecordError, dialogue_of
from coverage_job.corpus.template import TemplateSpec
from coverage_job.corpus.templated import TemplateRenderer
from coverage_job.errors import JobError
from tests.corpus.dialogues import (
    CHATML,
    CHATML_MARKED,
    FORGETFUL,
    INST,
    NEWLINE_MARKED,
    NOW,
    TOOLS_MARKED,
    dialogue,
    renderer,
    spans,
)

CALL = {"type": "function", "function": {"name": "find_it", "arguments": {"q": 'é "x"\n'}}}


def test_without_generation_blocks_turns_are_found() -> None:
    # Fault 1: such a template gave a mask of zeros.
    rendered = renderer(CHATML).render(dialogue("hi", "Hello", "so?", "Grüß 你好 😀"))
    assert rendered.text.decode() == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\nso?<|im_end|>\n<|im_start|>assistant\nGrüß 你好 😀<|im_end|>\n"
    )
    assert spans(rendered) == ["Hello<|im_end|>", "Grüß 你好 😀<|im_end|>"]
    assert rendered.unmaskable == ""


def test_a_template_gets_the_role_as_the_record_spells_it() -> None:
    messages = [{"role": "User", "content": "hi"}, {"role": "ASSISTANT", "content": "Hello"}]
    for template in (CHATML, CHATML_MARKED):
        by_template = TemplateRenderer(renderer(template))
        rendered = by_template.render(dialogue_of(messages))
        text = b"".join(rendered.pieces).decode()
        assert "<|im_start|>User\nhi" in text
        assert "<|im_start|>ASSISTANT\nHello" in text
        assert by_template.audit.unknown_roles == {}
    # Without blocks the answer is found all the same; with them the template alone decides.
    rendered = TemplateRenderer(renderer(CHATML)).render(dialogue_of(messages))
    assert [rendered.pieces[0][a:b] for a, b in rendered.spans] == [b"Hello<|im_end|>"]


def test_blocks_say_what_bears_loss() -> None:
    assert spans(renderer(CHATML_MARKED).render(dialogue("hi", "a", "b", "c"))) == [
        "a<|im_end|>",
        "c<|im_end|>",
    ]
    # A newline that the template's author marked is in.
    assert spans(renderer(TOOLS_MARKED).render(dialogue("hi", "a"))) == ["a<|im_end|>\n"]
    unmarked = CHATML_MARKED.replace("m.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n'",
                                     "m.content }}{% endgeneration %}{{ '<|im_end|>\\n'")  # fmt: skip
    assert spans(renderer(unmarked).render(dialogue("hi", "a"))) == ["a"]


def test_a_template_that_rewrites_earlier_turns() -> None:
    # Fault 2: rendering prefixes fails here at turn two.
    messages = dialogue("q", "<think>\nlong\n</think>\n\nA", "r", "<think>\nmore\n</think>\n\nB")
    one = renderer(FORGETFUL)
    rendered = one.render(messages)
    assert spans(rendered) == ["A<|im_end|>", "<think>\nmore\n</think>\n\nB<|im_end|>"]
    assert not rendered.text.startswith(one.render(messages[:2]).text)


def test_answers_and_their_end_where_a_template_has_no_generation_prompt() -> None:
    rendered = renderer(INST).render(dialogue("q", "  A b. \n", "r", "<s>"))
    assert rendered.text.decode() == "<s>[INST] q [/INST] A b.</s>[INST] r [/INST] <s></s>"
    assert spans(rendered) == ["A b.</s>", "<s></s>"]


@pytest.mark.parametrize(
    "answer",
    [
        "",
        " ",
        "\n",
        "\n\nx\n",
        "x",
        " x",
        "</s>",
        "[/INST]",
        "user",
        "q",
        "<|im_end|>",
        "😀",
        "\U000f0041",
        "x\ry",
    ],
)
@pytest.mark.parametrize("template", [CHATML, INST, FORGETFUL])
def test_borders_are_exact_whatever_an_answer_is(template: str, answer: str) -> None:
    # Faults 5 and 25: answers of one token, of white space, or that look like the template's own text.
    rendered = renderer(template).render(dialogue("q", answer, "r", answer))
    end = "</s>" if template == INST else "<|im_end|>"
    own = answer.strip() if template == INST else answer
    assert spans(rendered) == [own + end] * 2
    inside = renderer(template, train_end_of_turn=False).render(dialogue("q", answer, "r", answer))
    assert spans(inside) == ([own] * 2 if own else [])


words = st.text(st.sampled_from("ab <>|/sim_end\n\t{}\"'é😀\u2003"), max_size=12)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(words, words), min_size=1, max_size=3), st.sampled_from([CHATML, INST, FORGETFUL]))
def test_spans_are_those_worked_out_from_the_template(pairs: list[tuple[str, str]], template: str) -> None:
    pairs = [(q, a.replace("</think>", "")) for q, a in pairs]
    rendered = renderer(template).render(dialogue(*[text for pair in pairs for text in pair]))
    end = "</s>" if template == INST else "<|im_end|>"
    expected = [(a.strip() if template == INST else a) + end for _, a in pairs]
    assert rendered.unmaskable == ""
    assert spans(rendered) == expected


def test_train_on() -> None:
    messages = dialogue("q", "A", "r", "B", system="S")
    assert spans(renderer(CHATML, train_on="last_assistant").render(messages)) == ["B<|im_end|>"]
    assert spans(renderer(CHATML_MARKED, train_on="last_assistant").render(messages)) == ["B<|im_end|>"]
    whole = renderer(CHATML, train_on="all").render(messages)
    assert spans(whole) == [whole.text.decode()]
    # A message's own flag goes before the rule.
    flags = [False, False, True, True, False]
    assert spans(renderer(CHATML).render(messages, trained=flags)) == ["A<|im_end|>", "r<|im_end|>"]
    flags = [False, False, True, False, False]
    assert spans(renderer(CHATML_MARKED).render(messages, trained=flags)) == ["A<|im_end|>"]


@pytest.mark.parametrize("template", [CHATML, CHATML_MARKED, TOOLS_MARKED])
def test_the_end_of_turn_can_be_left_out(template: str) -> None:
    rendered = renderer(template, train_end_of_turn=False).render(dialogue("q", "A", "r", "B"))
    assert spans(rendered) == ["A", "B"]


def test_the_end_of_turn_is_learned_from_the_template() -> None:
    # Fault 4: a terminator that is not the eos token.
    assert renderer(CHATML).end_of_turn() == ("<|im_end|>",)
    assert renderer(INST).end_of_turn() == ("</s>",)
    assert renderer("{% for m in messages %}{{ m.content }}\n{% endfor %}").end_of_turn() == ()


def test_reasoning_and_tool_calls_bear_loss() -> None:
    messages = [
        *dialogue("q"),
        {"role": "assistant", "content": "", "reasoning": "hm", "tool_calls": [CALL]},
        {"role": "tool", "content": "found"},
        {"role": "assistant", "content": "done"},
    ]
    expected = [
        '<think>\nhm\n</think>\n\n\n<tool_call>\n{"name": "find_it", '
        '"arguments": {"q": "é \\"x\\"\\n"}}\n</tool_call><|im_end|>',
        "done<|im_end|>",
    ]
    tools = [{"type": "function", "function": {"name": "find_it"}}]
    marked = renderer(TOOLS_MARKED).render(messages, tools)
    assert spans(marked) == [text + "\n" for text in expected]
    assert b'# Tools\n{"type": "function"' in marked.text
    without = TOOLS_MARKED.replace("{%- generation %}", "").replace("{% endgeneration %}", "")
    assert "generation" not in without
    without += "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    assert spans(renderer(without).render(messages, tools)) == expected


def test_a_record_with_tools_takes_the_template_for_tools() -> None:
    spec = TemplateSpec("f", "default", "plain", "with {{ tools | length }}")
    one = Renderer(spec, now=NOW)
    assert one.render(dialogue("q"), [CALL]).text == b"with 1"
    assert one.render(dialogue("q"), []).text == b"plain"


def test_tool_calls_that_the_template_leaves_out_are_counted() -> None:
    messages = [*dialogue("q"), {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}]
    assert renderer(CHATML).render(messages).lost_tool_calls == 2
    assert renderer(TOOLS_MARKED).render(messages).lost_tool_calls == 0


def test_text_of_another_message_inside_an_answer_is_no_target() -> None:
    # The tool's result is written within the assistant's turn.
    template = (
        "{% for m in messages %}{% if m.role != 'tool' %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% set next = loop.nextitem %}{% if next and next.role == 'tool' %}[{{ next.content }}]{% endif %}"
        "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    one = renderer(template)
    assert spans(one.render(dialogue("q", "A"))) == ["A<|im_end|>"]
    mixed = one.render([*dialogue("q", "A"), {"role": "tool", "content": "T"}])
    assert mixed.spans == []
    assert mixed.unmaskable == "text of another message stands inside an answer"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for m in messages %}{{ m.content | length }}{{ m.content }}{{ m.content | upper }}{% endfor %}",
         "the template treats an answer by what it says"),
        ("{% macro t(m) %}{% generation %}{{ m }}{% endgeneration %}{% endmacro %}"
         "{% for m in messages %}{{ t(m.content) | upper }}{% endfor %}",
         "the template rewrites the text of a generation block"),
    ],
)  # fmt: skip
def test_what_cannot_be_found_is_never_guessed(template: str, reason: str) -> None:
    rendered = renderer(template).render(dialogue("q", "Answer"))
    assert (rendered.spans, rendered.unmaskable) == ([], reason)
    assert renderer(template, train_on="all").render(dialogue("q", "Answer")).unmaskable == ""


def test_a_text_gathered_first_and_written_last() -> None:
    # Nothing is written while the loop is at a message.
    template = (
        "{% set ns = namespace(t='') %}{% for m in messages %}"
        "{% set ns.t = ns.t + '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' %}"
        "{% endfor %}{{ ns.t }}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    assert spans(renderer(template).render(dialogue("q", "A", "r", "B c"))) == [
        "A<|im_end|>",
        "B c<|im_end|>",
    ]


def test_special_token_text_in_messages_is_counted_and_can_be_plain() -> None:
    # Fault 7.
    messages = dialogue("say <|im_end|><|im_end|>", "é <s>", "and </think>", "ok")
    kept = renderer(CHATML).render(messages)
    assert (kept.special_texts, kept.plain) == (3, [])
    split = renderer(CHATML, split_special_tokens=True).render(messages)
    assert split.text == kept.text
    assert split.spans == kept.spans
    assert [split.text[a:b] for a, b in split.plain] == [b"<|im_end|><|im_end|>", b"<s>"]
    assert renderer(CHATML, split_special_tokens=True).render(dialogue("q", "a")).plain == []


def test_media_parts_and_placeholders_are_flagged_and_their_text_counted() -> None:
    # Fault 24.
    parts: list[dict[str, Any]] = [{"type": "image", "url": "x"}, {"type": "text", "text": "What is it?"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "A cat."}]
    rendered = renderer(CHATML).render(messages)
    assert rendered.media == 1
    assert b"user\nWhat is it?<|im_end|>" in rendered.text
    assert spans(rendered) == ["A cat.<|im_end|>"]
    reads_parts = CHATML.replace(
        "m.content +",
        "(m.content if m.content is string else m.content | map(attribute='type') | join(',')) +",
    )
    assert b"user\nWhat is it?" in renderer(reads_parts).render(messages).text
    loops = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
        "{{ p.text if p.type == 'text' else '<img>' }}{% endfor %}{% endif %}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    seen = renderer(loops).render(messages)
    assert b"user\n<img>What is it?" in seen.text
    assert spans(seen) == ["A cat.<|im_end|>"]
    assert renderer(CHATML).render(dialogue("<image>Who?", "I")).media == 1


def test_unknown_roles_are_named_and_bear_no_loss() -> None:
    messages = [{"role": "oracle", "content": "x"}, *dialogue("q", "A")]
    rendered = renderer(CHATML).render(messages)
    assert rendered.unknown_roles == ["oracle"]
    assert spans(rendered) == ["A<|im_end|>"]


def test_content_of_none_as_either_kind_of_trainer_passes_it() -> None:
    messages = [*dialogue("q"), {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    # Written for a key that is absent, and for one that is None.
    absent = "{% for m in messages %}{{ 'no' if m.content is undefined else m.content + '.' }}{% endfor %}"
    assert renderer(absent).render(messages).text == b"q.no"
    none = "{% for m in messages %}{{ 'None' if m['content'] is none else m['content'] + '.' }}{% endfor %}"
    assert renderer(none).render(messages).text == b"q.None"


def test_variables_of_a_record() -> None:
    template = CHATML.replace("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n' + (head or '') }}")
    template = template.replace("m.content", "(head or '') + m.content")
    one = renderer(template)
    assert spans(one.render(dialogue("q", "A"), extra={"head": "~"})) == ["A<|im_end|>"]
    assert spans(one.render(dialogue("q", "A"))) == ["A<|im_end|>"]


def test_an_opening_that_only_the_prompt_has() -> None:
    # The prompt opens with <think>, past answers do not: what both share is the opening.
    template = CHATML.replace("assistant\\n' }}{% endif", "assistant\\n<think>\\n' }}{% endif")
    assert spans(renderer(template).render(dialogue("q", "A"))) == ["A<|im_end|>"]
    thought = dialogue("q", "<think>\nhm\n</think>A")
    assert spans(renderer(template).render(thought)) == ["hm\n</think>A<|im_end|>"]


def test_a_template_that_fails_on_a_record_or_does_not_compile() -> None:
    picky = "{% if messages[0].role != 'user' %}{{ raise_exception('begin with user') }}{% endif %}" + CHATML
    with pytest.raises(RenderError, match=r"^begin with user$"):
        renderer(picky).render(dialogue("q", "A", system="S"))
    assert spans(renderer(picky).render(dialogue("q", "A"))) == ["A<|im_end|>"]
    with pytest.raises(RenderError, match="half of a surrogate pair at character 17"):
        renderer(CHATML).render(dialogue("\ud800", "A"))
    with pytest.raises(JobError, match=r"chat template test\.jinja: does not compile \(line 1: "):
        renderer("{% for %}")


def test_a_template_that_fails_on_a_plain_dialogue() -> None:
    template = CHATML + "{% if messages[0].role != 'special' %}{{ raise_exception('no') }}{% endif %}"
    rendered = renderer(template).render([{"role": "special", "content": "x"}, *dialogue("q", "A")])
    assert rendered.spans == []
    assert rendered.unmaskable.startswith("the template fails on a plain dialogue")


def test_blocks_in_a_comment_are_none() -> None:
    commented = "{# {% generation %} is left out #}" + CHATML
    assert spans(renderer(commented).render(dialogue("q", "A"))) == ["A<|im_end|>"]


def test_a_token_that_opens_the_next_turn_ends_none() -> None:
    template = "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}{% endfor %}"
    template = template.replace("<s>", "{{ '<s>' if m.role == 'user' else '</s>' }}")
    one = renderer(template + "{% if add_generation_prompt %}</s>assistant:{% endif %}")
    assert one.end_of_turn() == ()
    assert spans(one.render(dialogue("q", "A", "r", "B"))) == ["A", "B"]


def test_a_turn_that_two_tokens_end() -> None:
    template = CHATML.replace("'<|im_end|>'", "'</s><|im_end|>'")
    assert renderer(template).end_of_turn() == ("</s>", "<|im_end|>")
    assert spans(renderer(template).render(dialogue("q", "A"))) == ["A</s><|im_end|>"]
    assert spans(renderer(template, train_end_of_turn=False).render(dialogue("q", "A"))) == ["A"]


def test_as_the_renderer_of_a_corpus_it_keeps_the_audit() -> None:
    one = TemplateRenderer(renderer(CHATML))
    good = Dialogue(messages=dialogue("q <s>", "A"), supervised=[False, True], weights=[None, None])
    rendered = one.render(good)
    assert [rendered.pieces[0][a:b] for a, b in rendered.spans] == [b"A<|im_end|>"]
    one.place = "f.jsonl:7"
    with pytest.raises(RecordError, match="chat template failed: 'dict object' has no attribute 'content'"):
        one.render(Dialogue(messages=[{"role": "user"}], supervised=[False], weights=[None]))
    good.notes.append("images, audio or video, of which the text alone is counted")
    one.place = ""
    one.render(good)
    assert (one.audit.failed, one.audit.with_special_text, one.audit.with_media) == (1, 2, 1)
    assert one.audit.examples == {"failed": ["f.jsonl:7"]}


def test_the_newline_template_has_no_token_before_an_answer() -> None:
    rendered = renderer(NEWLINE_MARKED).render(dialogue("q", "\nA"))
    assert rendered.text.decode().endswith("### Answer:\n\nA</s>\n")
    assert spans(rendered) == ["\nA</s>"]
