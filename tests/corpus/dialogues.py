"""Templates, a tiny tokenizer and dialogues that the chat tests share."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from coverage_job.corpus.chat import Rendered, Renderer
from coverage_job.corpus.template import TemplateSpec

NOW = datetime(2026, 5, 4, 3, 2, 1)
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TOKENS = (("bos_token", "<s>"), ("eos_token", "</s>"))

CHATML = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

CHATML_MARKED = """\
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}"""

# No token stands before an answer: what it begins with joins with the newline.
NEWLINE_MARKED = """\
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '### Answer:\\n' }}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{{ '\\n' }}
{%- else %}{{ '### ' + m.role + ':\\n' + m.content + '\\n\\n' }}{% endif %}
{%- endfor %}"""

# Tools and reasoning, in the way of the Qwen family; the newline after the end of turn is marked too.
TOOLS_MARKED = """\
{%- if tools %}{{ '<|im_start|>system\\n# Tools\\n' }}
{%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}
{%- generation %}
{%- if m.reasoning_content %}
{{- '<think>\\n' + m.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}
{{- m.content | trim if m.content else '' }}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endgeneration %}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}"""

# In the way of Llama 2 and Mistral: no generation prompt.
INST = """\
{{- bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}
{%- else %}{{ ' ' + m.content.strip() + eos_token }}{% endif %}{% endfor %}"""

# Drops the reasoning of all turns but the last.
FORGETFUL = """\
{%- for m in messages %}{% set content = m.content %}
{%- if m.role == 'assistant' and not loop.last and '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def dialogue(*contents: str, system: str | None = None) -> list[dict[str, Any]]:
    """User and assistant by turns."""
    head = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return head + [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]


def renderer(template: str, **options: Any) -> Renderer:
    spec = TemplateSpec("test.jinja", "default", template, tokens=TOKENS)
    options = {"special_tokens": SPECIAL, "added_tokens": SPECIAL, "now": NOW} | options
    return Renderer(spec, **options)


def spans(rendered: Rendered) -> list[str]:
    """The supervised texts."""
    assert rendered.spans == sorted(rendered.spans)
    return [rendered.text[a:b].decode("utf-8") for a, b in rendered.spans]


@lru_cache
def tokenizer() -> Tokenizer:
    """Byte-level, with a merge over two newlines and one over a space and `a`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ċ", "Ċ"), ("Ġ", "a")]
    vocabulary = {text: i for i, text in enumerate(alphabet + [a + b for a, b in merges])}
    built = Tokenizer(models.BPE(vocabulary, merges))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return built
