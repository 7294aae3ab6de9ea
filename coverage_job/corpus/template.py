"""Where a tokenizer keeps its chat template, and the token texts that the template names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from coverage_job.errors import JobError
from coverage_job.storage import exists, kind_of, list_folder, open_input

_CONFIG, _JINJA, _FOLDER = "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates"


@dataclass(frozen=True)
class TemplateSpec:
    """A chat template and what it is rendered with; travels between processes as JSON.

    source: the file it was read from. name: its name where the file holds several, else ``default``.
    text: the template. tools_text: the one named ``tool_use`` that records with tools are rendered by,
        where the tokenizer has it.
    tokens: (variable, text) of the special tokens a template may name, such as ``bos_token``.
    sha256: of texts and tokens.
    """

    source: str
    name: str
    text: str
    tools_text: str | None = None
    tokens: tuple[tuple[str, str], ...] = ()
    sha256: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        known = json.dumps([self.text, self.tools_text, self.tokens], ensure_ascii=False)
        digest = hashlib.sha256(known.encode("utf-8", "surrogatepass")).hexdigest()
        object.__setattr__(self, "sha256", digest)

    @property
    def variables(self) -> dict[str, str]:
        return dict(self.tokens)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TemplateSpec:
        data = json.loads(text)
        data["tokens"] = tuple((name, token) for name, token in data["tokens"])
        return cls(**data)


def load_template(tokenizer: str, choice: str = "auto", name: str | None = None) -> TemplateSpec | None:
    """The chat template of a tokenizer, or of a file; None where there is none.

    tokenizer: the tokenizer's folder, or a file in it. choice: ``auto`` (the tokenizer's own, if any),
    ``none``, or the path of a template file. name: one of several named templates.
    As transformers does: `chat_template.jinja` goes before the configuration, `additional_chat_templates/`
    adds names, and records with tools use the template ``tool_use`` where there is one.
    Raises JobError naming the file.
    """
    if choice == "none":
        return None
    folder = _folder(tokenizer)
    tokens = tuple(token_texts(tokenizer).items())
    if choice != "auto":
        return TemplateSpec(choice, name or "default", _read(choice), tokens=tokens)
    named = dict(_named(folder))
    if not named:
        return None
    source = f"{folder}/{_JINJA if exists(f'{folder}/{_JINJA}') else _CONFIG}"
    chosen = name or "default"
    if chosen not in named:
        raise JobError(
            f"{source}: no chat template is named {chosen!r}; it has {', '.join(sorted(named))}: "
            "name one, or give a template file"
        )
    tools_text = named.get("tool_use") if name is None else None
    return TemplateSpec(source, chosen, named[chosen], tools_text, tokens)


def _folder(path: str) -> str:
    return path.rstrip("/") if kind_of(path) == "directory" else path.rpartition("/")[0] or "."


def _read(path: str) -> str:
    try:
        with open_input(path) as file:
            data: bytes = file.read()
        return data.decode("utf-8")
    except OSError as error:
        raise JobError(f"chat template {path}: cannot be read ({error})") from None
    except UnicodeDecodeError:
        raise JobError(f"chat template {path}: not UTF-8 text; give a Jinja template file") from None


def _json(path: str) -> dict[str, Any]:
    if not exists(path):
        return {}
    try:
        data = json.loads(_read(path))
    except ValueError as error:
        raise JobError(f"{path}: no valid JSON ({error})") from None
    if not isinstance(data, dict):
        raise JobError(f"{path}: not an object with keys")
    return data


def _named(folder: str) -> Iterator[tuple[str, str]]:
    # Later pairs go before earlier ones of the same name.
    config = _json(f"{folder}/{_CONFIG}").get("chat_template")
    if isinstance(config, str):
        yield "default", config
    elif isinstance(config, list):
        for entry in config:
            if not isinstance(entry, dict) or not {"name", "template"} <= entry.keys():
                raise JobError(f"{folder}/{_CONFIG}: an entry of `chat_template` lacks `name` or `template`")
            yield str(entry["name"]), str(entry["template"])
    elif config is not None:
        raise JobError(f"{folder}/{_CONFIG}: `chat_template` is neither a text nor a list of named texts")
    if exists(f"{folder}/{_JINJA}"):
        yield "default", _read(f"{folder}/{_JINJA}")
    extra = f"{folder}/{_FOLDER}"
    for base in list_folder(extra):
        if base.endswith(".jinja"):
            yield base.removesuffix(".jinja"), _read(f"{extra}/{base}")


def token_texts(tokenizer: str) -> dict[str, str]:
    """The special tokens that a tokenizer's folder names, such as ``bos_token``, by name.

    tokenizer: the folder, or a file in it.
    """
    folder = _folder(tokenizer)
    values = _json(f"{folder}/special_tokens_map.json") | _json(f"{folder}/{_CONFIG}")
    found = {}
    for key, value in sorted(values.items()):
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            found[key] = text
    return found
