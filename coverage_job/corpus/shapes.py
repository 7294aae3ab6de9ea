"""Records of every shape as dialogues, and dialogues as text where no chat template is used.

A `Dialogue` holds messages in the form that chat templates of Hugging Face models take. Data sets
spell them in several ways (role/content or from/value, text or content parts, tool calls as JSON in
a turn of their own); here each becomes one form. Whoever renders a dialogue is a `Renderer`;
`PlainRenderer` is the one for `chat_template: none`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from coverage_job.config import TrainOn

if TYPE_CHECKING:
    from coverage_job.corpus.source import Source

SUPERVISED_ROLES = frozenset({"assistant", "gpt", "model", "bot", "function_call"})
OTHER_ROLES = frozenset({"user", "human", "system", "tool", "observation"})
_TEMPLATE_ROLES = {
    "human": "user", "gpt": "assistant", "model": "assistant", "bot": "assistant",
    "function_call": "assistant", "observation": "tool",
}  # fmt: skip
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_REASONING_PARTS = frozenset({"reasoning", "thinking"})
_MEDIA = frozenset({"image", "images", "image_url", "input_image", "audio", "audios", "audio_url",
                    "input_audio", "video", "videos", "video_url"})  # fmt: skip
# Fields of a record beside its messages; whether they hold anything is all that is asked.
MEDIA_FIELDS = ("images", "image", "audios", "audio", "videos", "video")


def role_key(role: Any) -> str:
    """A role as it is looked up: whatever its letters' case.

    >>> role_key(" Assistant") in SUPERVISED_ROLES
    True
    """
    return str(role).strip().lower()


class RecordError(Exception):
    """Why a record cannot be used; `reason` is what is reported.

    The part of a reason before its first colon is one of a few, by which faults are counted.
    """

    def __init__(self, reason: str) -> None:
        # A template's own message may be of several lines; a reason is one.
        self.reason = " ".join(reason.split()) if len(reason.splitlines()) > 1 else reason
        super().__init__(self.reason)


@dataclass(slots=True)
class Dialogue:
    """A dialogue in the form that chat templates take.

    messages: dicts with role and content (text), and reasoning_content and tool_calls where given.
    texts: per message, what is encoded without a template: its content, each part of another kind
        (reasoning, tool call) apart.
    supervised: per message, whether its role is one that bears loss.
    weights: per message, what its own flag says (True, False), or None where it has none.
    tools: tool definitions, or None. extra: the record's own template variables.
    outside: what messages hold beside their content, which only a template writes.
    notes: what is to be reported of the record, such as a role that is not known; bounded in kind.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    texts: list[list[str]] = field(default_factory=list)
    supervised: list[bool] = field(default_factory=list)
    weights: list[bool | None] = field(default_factory=list)
    tools: list[Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    outside: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def trained(self, train_on: TrainOn) -> list[bool]:
        """Per message, whether it bears loss.

        A message's own flag (`loss_weight`, `weight` or `train`) wins over the rule by roles.
        """
        if train_on == "all":
            rule = [True] * len(self.messages)
        else:
            rule = list(self.supervised)
            if train_on == "last_assistant" and True in rule:
                last = len(rule) - 1 - rule[::-1].index(True)
                rule = [i == last for i in range(len(rule))]
        return [r if w is None else w for r, w in zip(rule, self.weights, strict=True)]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A dialogue as text.

    pieces: UTF-8 texts that are encoded alone (one, where a template was used).
    spans: byte ranges over the pieces back to back that bear loss; sorted, disjoint, on character
        borders.
    plain: byte ranges over the pieces whose special-token text is a message's own, to be encoded as
        plain text; sorted, disjoint.
    """

    pieces: list[bytes]
    spans: list[tuple[int, int]]
    plain: list[tuple[int, int]] = field(default_factory=list)


class Renderer(Protocol):
    """Turns dialogues into text. Raises RecordError for one that cannot be rendered: a bad record.

    place: file and position of the record at hand, for what the renderer reports; set by the reader.
    """

    place: str

    def render(self, dialogue: Dialogue) -> Rendered: ...


class PlainRenderer:
    """`chat_template: none`: each message's content alone, no role text."""

    def __init__(self, train_on: TrainOn, split: re.Pattern[str] | None = None) -> None:
        """split: finds the special-token texts that are encoded as plain text."""
        self.train_on = train_on
        self.split = split
        self.place = ""

    def render(self, dialogue: Dialogue) -> Rendered:
        pieces: list[bytes] = []
        spans: list[tuple[int, int]] = []
        plain: list[tuple[int, int]] = []
        size = 0
        for texts, bears_loss in zip(dialogue.texts, dialogue.trained(self.train_on), strict=True):
            for text in texts:
                try:
                    piece = text.encode()
                except UnicodeEncodeError:
                    raise RecordError("lone surrogate in a message") from None
                pieces.append(piece)
                if self.split is not None:
                    for match in self.split.finditer(text):
                        start = size + len(text[: match.start()].encode())
                        plain.append((start, start + len(match[0].encode())))
                if bears_loss and piece:
                    spans.append((size, size + len(piece)))
                size += len(piece)
        dialogue.notes.extend(
            f"{what} beside the content, not counted without a template" for what in sorted(dialogue.outside)
        )
        return Rendered(pieces, spans, plain)


def dialogue_of(messages: Iterable[Any]) -> Dialogue:
    """Messages of role and content as a dialogue. Raises RecordError naming the message at fault."""
    dialogue = Dialogue()
    for message in messages:
        _add_message(dialogue, message)
    return dialogue


def to_dialogue(record: dict[str, Any], source: Source) -> Dialogue:
    """A record of any dialogue shape as a dialogue. Raises RecordError naming the field at fault."""
    dialogue = Dialogue()
    shape = source.shape
    if shape in ("messages", "sharegpt"):
        _add_messages(dialogue, record, source.messages)
    elif shape == "preference":
        _add_preference(dialogue, record, source)
    else:
        _add_history(dialogue, record.get("history") if shape == "alpaca" else None)
        _add_prompt(dialogue, record, source)
        _add_answer(dialogue, record, source.completion)
    _add_system(dialogue, record.get("system"))
    dialogue.tools = _tools(record.get(source.tools))
    extra = record.get("chat_template_kwargs")
    if isinstance(extra, dict):
        dialogue.extra = extra
    if any(record.get(name) for name in MEDIA_FIELDS):
        dialogue.notes.append("images, audio or video, of which the text alone is counted")
    return dialogue


def _json(value: str, what: str) -> Any:
    try:
        return orjson.loads(value)
    except ValueError:
        raise RecordError(f"wrong type: {what} is text that is no JSON") from None


def _messages(value: Any, name: str) -> list[Any]:
    if isinstance(value, str):
        value = _json(value, f"field {name!r}")
    if value is None:
        raise RecordError(f"missing field: {name!r}")
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise RecordError(f"wrong type: field {name!r} is no list of messages")
    return value


def _add_messages(dialogue: Dialogue, record: dict[str, Any], name: str | None) -> None:
    for i, message in enumerate(_messages(record.get(name or ""), name or "messages")):
        if isinstance(message, str):
            # A list of bare texts is a dialogue that the user begins.
            message = {"role": ("user", "assistant")[i % 2], "content": message}
        _add_message(dialogue, message)


def _add_message(dialogue: Dialogue, message: Any) -> None:
    place = f"message {len(dialogue.messages) + 1}"
    if not isinstance(message, dict):
        raise RecordError(f"wrong type: {place} is no object with role and content")
    role = message.get("role")
    content = message.get("content")
    if role is None:
        role = message.get("from")
    if content is None:
        content = message.get("value")
    if not isinstance(role, str):
        raise RecordError(f"missing field: {place} has no role")
    said, role = role, role_key(role)
    calls = message.get("tool_calls") or None
    reasoning = message.get("reasoning_content") or message.get("reasoning") or message.get("thinking")
    if calls:
        dialogue.outside.add("tool calls")
    if reasoning:
        dialogue.outside.add("reasoning")
    # The template gets the record's own spelling, as the trainer's does: it may know `assistant` alone.
    out: dict[str, Any] = {"role": _TEMPLATE_ROLES.get(role, said)}
    texts: list[str]
    if isinstance(content, str):
        texts = [content]
        if role == "function_call":
            parsed = _tool_calls(content)
            calls, content = (parsed, "") if parsed else (calls, content)
    elif isinstance(content, list):
        content, texts, thoughts, parsed = _parts(dialogue, content, place)
        reasoning = thoughts or reasoning
        calls = parsed or calls
    elif content is None and calls:
        content, texts = "", []
    elif content is None:
        raise RecordError(f"missing field: {place} has no content")
    else:
        raise RecordError(f"wrong type: the content of {place} is no text")
    out["content"] = content
    if isinstance(reasoning, str) and reasoning:
        out["reasoning_content"] = reasoning
    if calls:
        out["tool_calls"] = calls
    for key in ("name", "tool_call_id"):
        if message.get(key) is not None:
            out[key] = message[key]
    if role not in SUPERVISED_ROLES and role not in OTHER_ROLES:
        dialogue.notes.append(f"role {role[:40]!r} is not known, counted as not supervised")
    dialogue.messages.append(out)
    dialogue.texts.append([text for text in texts if text])
    dialogue.supervised.append(role in SUPERVISED_ROLES)
    dialogue.weights.append(_weight(message, place))


def _weight(message: dict[str, Any], place: str) -> bool | None:
    for key in ("loss_weight", "weight", "train"):
        value = message.get(key)
        if value is not None:
            if not isinstance(value, (bool, int, float)):
                raise RecordError(f"wrong type: {key} of {place} is no number")
            return value > 0
    return None


def _parts(
    dialogue: Dialogue, parts: list[Any], place: str
) -> tuple[str, list[str], str, list[dict[str, Any]]]:
    """Content parts as (content, texts, reasoning, tool calls)."""
    texts: list[str] = []
    kinds: list[str] = []
    content: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        if not isinstance(part, dict):
            raise RecordError(f"wrong type: a content part of {place} is no object")
        kind = part.get("type") or "text"
        text = next((part[k] for k in ("text", "value", kind) if isinstance(part.get(k), str)), None)
        if kind in _MEDIA:
            dialogue.notes.append("images, audio or video, of which the text alone is counted")
            continue
        if text is None:
            if kind in _TEXT_PARTS:
                raise RecordError(f"missing field: a text part of {place} has no text")
            dialogue.notes.append(f"content part {str(kind)[:40]!r} is not known, not counted")
            continue
        if kind in _REASONING_PARTS:
            thoughts.append(text)
        elif kind == "tool_call":
            calls.extend(_tool_calls(text))
        else:
            if kind not in _TEXT_PARTS:
                dialogue.notes.append(f"content part {str(kind)[:40]!r} is not known, its text is counted")
            kind = "text"
            content.append(text)
        if kind == "text" and kinds and kinds[-1] == "text":
            texts[-1] += text  # as templates do: text parts make one text
        else:
            texts.append(text)
            kinds.append(kind)
    return "".join(content), texts, "".join(thoughts), calls


def _tool_calls(text: str) -> list[dict[str, Any]]:
    """Tool calls written as JSON text: one object or a list; [] where it is something else."""
    try:
        value = orjson.loads(text)
    except ValueError:
        return []
    calls = value if isinstance(value, list) else [value]
    found = []
    for call in calls:
        if not isinstance(call, dict):
            return []
        call = call.get("function", call)
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return []
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                arguments = orjson.loads(arguments)
            except ValueError:
                return []
        found.append({"type": "function", "function": {"name": call["name"], "arguments": arguments}})
    return found


def _tools(value: Any) -> list[Any] | None:
    if isinstance(value, str):
        value = _json(value, "field 'tools'") if value.strip() else None
    if not value:
        return None
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise RecordError("wrong type: field 'tools' is no list")
    return [
        {"type": "function", "function": t}
        if isinstance(t, dict) and "function" not in t and "name" in t
        else t
        for t in value
    ]


def _add(dialogue: Dialogue, role: str, text: str) -> None:
    _add_message(dialogue, {"role": role, "content": text})


def _begins_with_system(dialogue: Dialogue) -> bool:
    return bool(dialogue.messages) and role_key(dialogue.messages[0]["role"]) == "system"


def _add_system(dialogue: Dialogue, text: Any) -> None:
    if text is None or text == "" or _begins_with_system(dialogue):
        return
    if not isinstance(text, str):
        raise RecordError("wrong type: field 'system' is no text")
    head = Dialogue()
    _add(head, "system", text)
    for name in ("messages", "texts", "supervised", "weights"):
        setattr(dialogue, name, getattr(head, name) + getattr(dialogue, name))


def _add_history(dialogue: Dialogue, history: Any) -> None:
    if not history:
        return
    if isinstance(history, str):
        history = _json(history, "field 'history'")
    if not isinstance(history, list):
        raise RecordError("wrong type: field 'history' is no list of turns")
    for turn in history:
        if not (isinstance(turn, (list, tuple)) and len(turn) == 2 and all(isinstance(t, str) for t in turn)):
            raise RecordError("wrong type: a turn of 'history' is no pair of question and answer")
        _add(dialogue, "user", turn[0])
        _add(dialogue, "assistant", turn[1])


def _text(record: dict[str, Any], name: str) -> str:
    value = record.get(name)
    if value is None:
        raise RecordError(f"missing field: {name!r}")
    if not isinstance(value, str):
        raise RecordError(f"wrong type: field {name!r} is no text")
    return value


def _add_prompt(dialogue: Dialogue, record: dict[str, Any], source: Source) -> None:
    """The prompt as messages; of alpaca, instruction and input with a newline between."""
    if source.prompt is None:
        return
    value = record.get(source.prompt)
    if isinstance(value, (list, dict)):
        _add_messages(dialogue, record, source.prompt)
        return
    texts = [_text(record, source.prompt)]
    if source.input is not None and record.get(source.input):
        texts.append(_text(record, source.input))
    _add(dialogue, "user", "\n".join(texts))


def _add_answer(dialogue: Dialogue, record: dict[str, Any], name: str | None) -> None:
    name = name or "completion"
    value = record.get(name)
    if isinstance(value, (list, dict)):
        for message in _messages(value, name):
            _add_message(dialogue, message)
    else:
        _add(dialogue, "assistant", _text(record, name))


def _add_preference(dialogue: Dialogue, record: dict[str, Any], source: Source) -> None:
    name = source.completion or "chosen"
    chosen = record.get(name)
    if source.messages is not None and record.get(source.messages) is not None:
        _add_messages(dialogue, record, source.messages)
    elif source.prompt is not None:
        _add_prompt(dialogue, record, source)
    if isinstance(chosen, list) and len(chosen) > 1:
        # A list that goes through the prompt again is the whole dialogue.
        whole = Dialogue()
        for message in chosen:
            _add_message(whole, message)
        n = len(dialogue.messages)
        if [(role_key(m["role"]), m["content"]) for m in whole.messages[:n]] == [
            (role_key(m["role"]), m["content"]) for m in dialogue.messages
        ]:
            for attribute in ("messages", "texts", "supervised", "weights", "notes"):
                setattr(dialogue, attribute, getattr(whole, attribute))
            return
    _add_answer(dialogue, record, name)


def count_notes(notes: Iterable[str], into: Counter[str], limit: int = 50) -> None:
    """Adds notes to a counter of at most `limit` kinds; further kinds are counted as one."""
    for note in notes:
        into[note if note in into or len(into) < limit else "other notes"] += 1
