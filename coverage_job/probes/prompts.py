"""Prompts that ask a model to write one token, in the token's language, and questions in a language.

Sentences are our own, in `sentences.yaml`. A prompt gives the token's text where the prompt's encoding
really has the token; else it gives the id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

import orjson
import yaml
from tokenizers import Tokenizer

from coverage_job.errors import ProbeError
from coverage_job.probes.choose import ProbeToken

KINDS = ("copy", "list", "fact")
COPIES = 3
FALLBACK = "en"

# How a token's text is put into a sentence: the first form whose encoding has the token is taken.
_FORMS = ("{}", " {}", "\n{}\n", "「{}」", '"{}"', "({})")

# Stands for an id in a text until it is encoded; a private-use character, so in no prompt of ours.
_MARK = "\ue0f7"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and what its answer should hold.

    before, after: the prompt around the token; where `text` is None the id stands between them, else
    `before` is all of the prompt.
    text: what the answer shall hold; None where only an id can tell.
    answer_before, answer_after: the ideal answer around the token (``list``, ``fact``).
    required: how often the token is asked for.
    """

    prompt_id: str
    token_id: int
    language: str
    kind: str
    before: str
    after: str
    text: str | None
    answer_before: str = ""
    answer_after: str = ""
    required: int = 1

    def shown(self) -> str:
        """The prompt as a reader sees it."""
        return self.before if self.text is not None else f"{self.before}<{self.token_id}>{self.after}"


@cache
def sentences() -> dict[str, dict[str, Any]]:
    """What `sentences.yaml` holds, by language."""
    path = resources.files("coverage_job.probes").joinpath("sentences.yaml")
    data: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return data


def spoken(language: str) -> str:
    """The language whose sentences serve `language`.

    >>> spoken("zh-Hant"), spoken("und")
    ('zh', 'en')
    """
    base = language.split("-")[0].lower()
    return base if base in sentences() else FALLBACK


def write_prompts(
    tokens: Iterable[ProbeToken], tokenizer: Tokenizer, kinds: Sequence[str] = KINDS
) -> list[Prompt]:
    """One prompt per token and kind (or the token's own question), ids unique.

    Raises ProbeError for an unknown kind.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise ProbeError(f"no kind of prompt is called {unknown[0]!r}; there are {', '.join(KINDS)}")
    prompts: list[Prompt] = []
    taken: dict[str, int] = {}
    for token in tokens:
        if token.prompt is not None:
            made = [
                Prompt(
                    f"{token.token_id}-own",
                    token.token_id,
                    token.language,
                    "own",
                    token.prompt,
                    "",
                    token.text,
                )
            ]
        else:
            made = [_prompt(token, kind, tokenizer) for kind in kinds]
        for prompt in made:
            # A list may name a token twice; each prompt is still asked and kept by itself.
            seen = taken.get(prompt.prompt_id, 0)
            taken[prompt.prompt_id] = seen + 1
            if seen:
                prompt = Prompt(**{**asdict(prompt), "prompt_id": f"{prompt.prompt_id}-{seen + 1}"})
            prompts.append(prompt)
    return prompts


def _prompt(token: ProbeToken, kind: str, tokenizer: Tokenizer) -> Prompt:
    spoken_here = sentences()[spoken(token.language)]
    words = dict(zip("abc", spoken_here["words"], strict=True))
    before, after = _fill(spoken_here[kind]["prompt"], words)
    answer_before, answer_after = _fill(spoken_here[kind]["answer"].replace("{token} {token} ", ""), words)
    if kind == "copy":
        answer_before = answer_after = ""
    required = COPIES if kind == "copy" else 1
    text = token.text
    if text is not None:
        for form in _FORMS:
            whole = before + form.replace("{}", text) + after
            if token.token_id in tokenizer.encode(whole, add_special_tokens=False).ids:
                before, after = whole, ""
                break
        else:
            text = None
    return Prompt(
        prompt_id=f"{token.token_id}-{kind}",
        token_id=token.token_id,
        language=token.language,
        kind=kind,
        before=before,
        after=after,
        text=text,
        answer_before=answer_before,
        answer_after=answer_after,
        required=required,
    )


def _fill(template: str, words: dict[str, str]) -> tuple[str, str]:
    before, after = template.split("{token}")
    for name, word in words.items():
        before, after = before.replace(f"{{{name}}}", word), after.replace(f"{{{name}}}", word)
    return before, after


def leading_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids that the tokenizer itself puts before a text, such as a beginning-of-sequence token."""
    plain, framed = (tokenizer.encode("a", add_special_tokens=flag).ids for flag in (False, True))
    for start in range(len(framed) - len(plain) + 1):
        if framed[start : start + len(plain)] == plain:
            return list(framed[:start])
    return []


def encode_prompt(
    prompt: Prompt, tokenizer: Tokenizer, chat: Callable[[str], str] | None = None
) -> list[int]:
    """The ids that a model is given.

    chat: wraps a user's message in the model's chat template; None gives the bare text.
    """
    content = prompt.before if prompt.text is not None else f"{prompt.before}{_MARK}{prompt.after}"
    rendered = chat(content) if chat is not None else content
    ids = [] if chat is not None else leading_ids(tokenizer)
    # A template may show the message more than once; the id stands wherever the message does.
    for number, part in enumerate(rendered.split(_MARK) if prompt.text is None else [rendered]):
        if number:
            ids.append(prompt.token_id)
        if part:
            ids.extend(tokenizer.encode(part, add_special_tokens=False).ids)
    return ids


def verification_ids(
    prompt: Prompt, tokenizer: Tokenizer, chat: Callable[[str], str] | None = None
) -> list[list[int]]:
    """Contexts after each of which a model that can copy gives the token a high probability.

    The prompt alone, and the prompt followed by the token once and twice; after Land and Bartolo,
    *Fishing for Magikarp* (2024), who call a token under-trained that no such context makes likely.
    """
    asked = encode_prompt(prompt, tokenizer, chat)
    return [asked, [*asked, prompt.token_id], [*asked, prompt.token_id, prompt.token_id]]


def dump_prompts(prompts: Iterable[Prompt]) -> bytes:
    """Prompts as JSONL; `prompt` is the text to ask, for those who answer by their own means."""
    return b"".join(orjson.dumps({"prompt": p.shown(), **asdict(p)}) + b"\n" for p in prompts)


def parse_prompts(data: bytes, name: str = "prompts.jsonl") -> list[Prompt]:
    """Prompts written by `dump_prompts`. Raises ProbeError naming the line."""
    prompts = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            fields = orjson.loads(line)
            fields.pop("prompt", None)
            prompts.append(Prompt(**fields))
        except (orjson.JSONDecodeError, TypeError, AttributeError):
            raise ProbeError(f"{name}, line {number}: not a prompt that `probe` wrote") from None
    return prompts


def questions(languages: Sequence[str] = (), limit: int | None = None) -> list[tuple[str, str, str]]:
    """(prompt_id, language, question) of the questions that `confusion` asks.

    Raises ProbeError for a language without questions.
    """
    asked = []
    for language in languages or sentences():
        if language not in sentences():
            raise ProbeError(f"no questions in {language!r}; there are {', '.join(sentences())}")
        for number, question in enumerate(sentences()[language]["questions"][:limit], start=1):
            asked.append((f"{language}-{number:02d}", language, question))
    return asked
