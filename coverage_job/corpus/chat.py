"""A dialogue as the trainer sees it: one text, and the byte ranges of it that bear loss.

The text is what transformers' `apply_chat_template(tokenize=False)` writes. What bears loss:

* template with `{% generation %}` blocks: what they hold, no more; so a newline after the end of turn is
  in where the template's author put it in. A record for which none is written has no target.
* other templates: each assistant turn from the end of the generation prompt to the end-of-turn token,
  that token included (unless `train_end_of_turn` is off), white space after it not. A turn that does not
  begin with the generation prompt begins at its first own character. Reasoning and tool calls are in, as
  the template writes them.

Where neither can be told exactly the record is *unmaskable*: it is counted with no target, and why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np

from coverage_job.config import TrainOn
from coverage_job.corpus.sandbox import Output, Program, RenderError
from coverage_job.corpus.shapes import OTHER_ROLES, SUPERVISED_ROLES, role_key
from coverage_job.corpus.spans import (
    Range,
    after_prompt,
    common_opening,
    differing,
    disguise,
    disguise_value,
    last_of,
    merge,
    turn_by_content,
)
from coverage_job.corpus.template import TemplateSpec
from coverage_job.errors import JobError

Message = Mapping[str, Any]

_REASONING = ("reasoning_content", "thinking", "reasoning")
_OWN_FIELDS = ("content", *_REASONING)
_PLACEHOLDER = re.compile(r"<(?:image|audio|video)>")
_NO_FRAME = "the template fails on a plain dialogue, so what ends a turn cannot be learned"
_QUESTION, _ANSWER = "Ask9Me", "Say7That"


@dataclass(slots=True)
class Rendered:
    """One rendered dialogue.

    text: UTF-8. spans: byte ranges of `text` that bear loss, sorted, disjoint, on character borders.
    plain: byte ranges of special-token text that stands in messages and is to be encoded as plain text
        (with `split_special_tokens` only).
    unmaskable: why the spans could not be found exactly ('' where they were); `spans` is empty then.
    special_texts: how often special-token text stands in messages. media: image, audio and video parts,
    whose text alone is rendered. unknown_roles: roles that are neither supervised nor known not to be.
    lost_tool_calls: tool calls of assistants that the template left out.
    """

    text: bytes
    spans: list[Range]
    plain: list[Range] = field(default_factory=list)
    unmaskable: str = ""
    special_texts: int = 0
    media: int = 0
    unknown_roles: list[str] = field(default_factory=list)
    lost_tool_calls: int = 0


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a template writes around answers, learned from a small dialogue.

    prompts: texts that open an answer: the generation prompt, then what it shares with the openings of
        answers that are written out (the prompt may add `<think>`); empty where it has none.
    ends: the texts that end a turn, each of one or more tokens, the longest first.
    """

    prompts: tuple[str, ...]
    ends: tuple[str, ...]


class Renderer:
    """Renders the dialogues of one corpus; compiles its template once. Not for two threads at once.

    special_tokens: texts of the tokenizer's special tokens, which `split_special_tokens` is about.
    added_tokens: texts of all its added tokens, special ones included; an end of turn is one of them.
    now: what the template's `strftime_now` says.
    Raises JobError where the template does not compile.
    """

    def __init__(
        self,
        template: TemplateSpec,
        *,
        train_on: TrainOn = "all_assistant",
        train_end_of_turn: bool = True,
        split_special_tokens: bool = False,
        special_tokens: Sequence[str] = (),
        added_tokens: Sequence[str] = (),
        now: datetime,
    ) -> None:
        self.template = template
        self.train_on = train_on
        self.train_end_of_turn = train_end_of_turn
        self.split_special_tokens = split_special_tokens
        self._tokens = sorted({*special_tokens, *added_tokens} - {""}, key=len, reverse=True)
        self._token = re.compile("|".join(map(re.escape, self._tokens)) or "(?!)")
        longest_first = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        try:
            self._program = Program(template.text, now)
            self._tools_program = Program(template.tools_text, now) if template.tools_text else self._program
        except RenderError as fault:
            raise JobError(
                f"chat template {template.source}: does not compile ({fault}); give another"
            ) from None
        self._variables = template.variables
        self._frames: dict[tuple[bool, str], _Frame | None] = {}
        self._parts: dict[bool, bool] = {}
        self._clean: set[tuple[Any, ...]] = set()

    def end_of_turn(self, extra: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        """Texts of the tokens that the template writes right after an answer; often one, () if none."""
        frame = self._frame(self._program, extra or {})
        ends = frame.ends if frame is not None else ()
        return tuple(dict.fromkeys(token for end in ends for token in self._token.findall(end)))

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        trained: Sequence[bool] | None = None,
    ) -> Rendered:
        """One dialogue.

        messages: mappings with `role`, `content` (a text, or parts with `type`), `reasoning_content`,
        `tool_calls`. tools: tool definitions. extra: further variables, such as `enable_thinking`.
        trained: per message, whether it bears loss; by default what `train_on` says of its role.
        Raises RenderError with the template's own message where it fails on this record.
        """
        tools = list(tools) if tools else None
        extra = extra or {}
        program = self._tools_program if tools else self._program
        plain_messages = self._prepare(program, messages)
        output, plain_messages = self._run_as_given(program, plain_messages, tools, extra)
        text = output.text
        reason = ""
        if self.train_on == "all" and (trained is None or all(trained)):
            spans = [(0, len(text))]
        else:
            turns = self._trained(messages) if trained is None else [i for i, t in enumerate(trained) if t]
            found = self._spans(program, plain_messages, tools, extra, output, turns)
            spans, reason = ([], found) if isinstance(found, str) else (merge(found), "")
        plain: list[Range] = []
        special_texts = self._count_special(plain_messages)
        if special_texts and self.split_special_tokens:
            placed = self._plain_ranges(program, plain_messages, tools, extra, text)
            if placed is None:
                spans, reason = [], "special-token text of a message cannot be placed in the rendered text"
            plain = placed or []
        data, (spans, plain) = _to_bytes(text, spans, plain)
        return Rendered(
            data,
            spans,
            plain,
            reason,
            special_texts,
            sum(map(_media, messages)),
            [r for m in messages if (r := role_key(m.get("role"))) not in SUPERVISED_ROLES | OTHER_ROLES],
            self._lost_tool_calls(plain_messages, output),
        )

    # Rendering

    def _values(self, messages: Any, tools: Any, extra: Mapping[str, Any], prompt: bool) -> dict[str, Any]:
        return {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": prompt,
            **self._variables,
            **extra,
        }

    def _run(
        self,
        program: Program,
        messages: Sequence[Any],
        tools: Any,
        extra: Mapping[str, Any],
        prompt: bool = False,
    ) -> Output:
        return program.run(self._values(messages, tools, extra, prompt), messages)

    def _prepare(self, program: Program, messages: Sequence[Message]) -> list[dict[str, Any]]:
        # What transformers does before it renders: no keys without value, one name for reasoning.
        out = []
        for message in messages:
            copy = {k: v for k, v in message.items() if v is not None or k == "content"}
            for name in _REASONING:
                if name in copy:
                    copy = {"thinking": copy[name], **copy, "reasoning_content": copy[name]}
                    break
            if isinstance(copy.get("content"), (list, tuple)) and not self._reads_parts(program):
                copy["content"] = "".join(_texts_of_parts(copy["content"]))
            out.append(copy)
        return out

    def _run_as_given(
        self, program: Program, messages: list[dict[str, Any]], tools: Any, extra: Mapping[str, Any]
    ) -> tuple[Output, list[dict[str, Any]]]:
        if all(message.get("content", "") is not None for message in messages):
            return self._run(program, messages, tools, extra), messages
        # Releases of transformers differ: newer ones leave an empty `content` out, older ones pass it on.
        # Templates are written for one of the two; the other then fails.
        without = [{k: v for k, v in m.items() if v is not None} for m in messages]
        try:
            return self._run(program, without, tools, extra), without
        except RenderError:
            return self._run(program, messages, tools, extra), messages

    def _reads_parts(self, program: Program) -> bool:
        # A template that only knows texts fails on a list of parts, or writes Python's view of it.
        key = program is self._program
        if key not in self._parts:
            probe = [{"role": "user", "content": [{"type": "text", "text": _QUESTION}]}]
            try:
                text = self._run(program, probe, None, {}).text
            except RenderError:
                text = ""
            self._parts[key] = _QUESTION in text and "'type'" not in text
        return self._parts[key]

    def _frame(self, program: Program, extra: Mapping[str, Any]) -> _Frame | None:
        key = (program is self._program, repr(sorted(extra.items())) if extra else "")
        if key not in self._frames:
            if len(self._frames) > 64:
                self._frames.clear()
            self._frames[key] = self._learn_frame(program, extra)
        return self._frames[key]

    def _learn_frame(self, program: Program, extra: Mapping[str, Any]) -> _Frame | None:
        user: dict[str, Any] = {"role": "user", "content": _QUESTION}
        if self._reads_parts(program):
            user = {"role": "user", "content": [{"type": "text", "text": _QUESTION}]}
        answer = {"role": "assistant", "content": _ANSWER}
        system = {"role": "system", "content": _QUESTION}
        openings = [user], [system, user]
        dialogues = [o + a for a in ([answer, user, answer], [answer]) for o in openings]
        for dialogue in dialogues:
            before = dialogue[: dialogue.index(answer)]
            try:
                without = self._run(program, before, None, extra).text
                with_prompt = self._run(program, before, None, extra, prompt=True).text
                # Visits are known by identity, so each message is a mapping of its own.
                output = self._run(program, [dict(m) for m in dialogue], None, extra)
            except RenderError:
                continue
            return self._frame_of(without, with_prompt, output, dialogue)
        return None

    def _frame_of(
        self, without: str, with_prompt: str, output: Output, dialogue: Sequence[dict[str, Any]]
    ) -> _Frame:
        turns = [
            output.text[ranges[0][0] : ranges[-1][1]]
            for i, ranges in output.visits.items()
            if dialogue[i]["content"] == _ANSWER
        ]
        prompt = with_prompt[len(without) :] if with_prompt.startswith(without) else ""
        heads = [turn.partition(_ANSWER)[0] for turn in turns]
        prompts = [prompt, common_opening([prompt, *heads], self._tokens)] if prompt else []
        # Some templates end a turn with two tokens. Where nothing is written in the loop only the first is
        # sure: the next may open a turn.
        several = "*" if turns else "{0}"
        pattern = re.compile(rf"\s*((?:{self._token.pattern})(?:\s*(?:{self._token.pattern})){several})")
        ends: list[str] = []
        for tail in [turn.partition(_ANSWER)[2] for turn in turns] or output.text.split(_ANSWER)[1:]:
            match = pattern.match(tail)
            if match is not None and match[1] not in ends and not (prompt and prompt.startswith(match[1])):
                ends.append(match[1])
        return _Frame(tuple(filter(None, prompts)), tuple(sorted(ends, key=len, reverse=True)))

    # Spans, in characters

    def _trained(self, messages: Sequence[Message]) -> list[int]:
        turns = [i for i, m in enumerate(messages) if role_key(m.get("role")) in SUPERVISED_ROLES]
        return turns[-1:] if self.train_on == "last_assistant" else turns

    def _spans(
        self,
        program: Program,
        messages: list[dict[str, Any]],
        tools: Any,
        extra: Mapping[str, Any],
        output: Output,
        trained: list[int],
    ) -> list[Range] | str:
        if program.has_generation:
            left_out = any(
                role_key(m.get("role")) in SUPERVISED_ROLES and i not in trained
                for i, m in enumerate(messages)
            )
            return self._spans_of_blocks(program, extra, trained if left_out else None, output)
        if not trained:
            return []
        frame = self._frame(program, extra)
        if frame is None:
            return _NO_FRAME
        spans: list[Range] = []
        hard: list[int] = []
        for i in trained:
            visits = output.visits.get(i, [])
            start = after_prompt(output.text, visits[0], frame.prompts) if len(visits) == 1 else None
            closing = None if start is None else last_of(output.text, frame.ends, start, visits[0][1])
            if start is None or closing is None:
                hard.append(i)
            else:
                spans.append((start, closing[1] if self.train_end_of_turn else closing[0]))
        if hard:
            more = self._spans_by_content(program, messages, tools, extra, output, frame, hard)
            if isinstance(more, str):
                return more
            spans += more
        return self._foreign(program, messages, tools, extra, output.text, trained, spans) or spans

    def _foreign(
        self,
        program: Program,
        messages: list[dict[str, Any]],
        tools: Any,
        extra: Mapping[str, Any],
        text: str,
        trained: list[int],
        spans: list[Range],
    ) -> str:
        """Why `spans` cannot be trusted: text of another message stands in one. '' where none does.

        A template writes a turn by what kind of message stands before and after it, so a setting that was
        found clean in one record is not asked about again in the next.
        """
        kinds = [(), *((m.get("role"), *(k for k, v in m.items() if v)) for m in messages), ()]
        settings = {(program is self._program, *kinds[i : i + 3]) for i in trained}
        if settings <= self._clean:
            return ""
        others = [i for i in range(len(messages)) if i not in trained]
        own = self._own(program, messages, tools, extra, text, others)
        if isinstance(own, str):
            return own
        where = np.array(own[0], np.int64)
        for start, end in spans:
            if np.searchsorted(where, start) != np.searchsorted(where, end):
                return "text of another message stands inside an answer"
        if len(self._clean) < 4096:
            self._clean |= settings
        return ""

    def _spans_of_blocks(
        self, program: Program, extra: Mapping[str, Any], only: list[int] | None, output: Output
    ) -> list[Range] | str:
        # only: the messages whose blocks count, None for all.
        if output.blocks is None:
            return "the template rewrites the text of a generation block"
        blocks = output.blocks
        if only is not None:
            if any(message is None for _, _, message in blocks):
                return "which message a generation block belongs to cannot be told"
            blocks = [block for block in blocks if block[2] in only]
        spans = [(start, end) for start, end, _ in blocks]
        if not self.train_end_of_turn:
            frame = self._frame(program, extra)
            if frame is None:
                return _NO_FRAME
            spans = [
                (start, closing[0] if (closing := last_of(output.text, frame.ends, start, end)) else end)
                for start, end in spans
            ]
        return spans

    def _spans_by_content(
        self,
        program: Program,
        messages: list[dict[str, Any]],
        tools: Any,
        extra: Mapping[str, Any],
        output: Output,
        frame: _Frame,
        turns: list[int],
    ) -> list[Range] | str:
        visits = {i: ranges[0] for i, ranges in output.visits.items() if len(ranges) == 1}
        own = self._own(program, messages, tools, extra, output.text, turns)
        if isinstance(own, str):
            return own
        where, exact = own

        def outside(position: int, within: Sequence[Range] = tuple(visits.values())) -> bool:
            return not any(start <= position < end for start, end in within)

        # A name of an answer's tool call may be repeated in the tool's turn: that is another message's.
        elsewhere = any(outside(p, [visits[i] for i in turns if i in visits]) for p in where)
        spans: list[Range] = []
        for i in turns:
            visit = visits.get(i)
            positions = [p for p in where if visit[0] <= p < visit[1]] if visit else []
            if visit is None or elsewhere:
                # Something is written elsewhere: ask for each message by itself.
                alone = self._own(program, messages, tools, extra, output.text, [i])
                if isinstance(alone, str):
                    return alone
                everywhere, exact = alone
                positions = [p for p in everywhere if visit[0] <= p < visit[1]] if visit else []
                if (everywhere and not positions) or (visit and any(map(outside, everywhere))):
                    positions, visit = everywhere, None
            if not positions and visit is None:
                if any(text.strip() for text in _own_texts(messages[i])) and not exact:
                    return "an answer that is rewritten cannot be found"
                continue  # the template leaves the message out
            bounds = (positions[0], positions[-1] + 1) if positions else None
            if not exact:
                if bounds is None and any(text.strip() for text in _own_texts(messages[i])):
                    return "an answer that is rewritten cannot be found"
                bounds = bounds and _widened(output.text, bounds, messages[i], self._keep(program))
            turn = turn_by_content(
                output.text,
                visit,
                bounds,
                frame.prompts,
                frame.ends,
                self._tokens,
                bool(messages[i].get("tool_calls")),
            )
            if isinstance(turn, str):
                return turn
            start, end, closing = turn
            spans.append((start, closing[1] if closing is not None and self.train_end_of_turn else end))
        return spans

    def _own(
        self,
        program: Program,
        messages: list[dict[str, Any]],
        tools: Any,
        extra: Mapping[str, Any],
        text: str,
        turns: list[int],
    ) -> tuple[list[int], bool] | str:
        """Positions in `text` of the own characters of `turns`; and whether all of them were disguised.

        The second try leaves alone what the template's own texts are made of, `</think>` say.
        """
        for keep in ([], self._keep(program)):
            change = partial(disguise, keep=keep)
            changed = [_disguised(m, change) if i in turns else m for i, m in enumerate(messages)]
            try:
                other = self._run(program, changed, tools, extra).text
            except RenderError:
                continue
            where = differing(text, other)
            if where is not None:
                return where.tolist(), not keep
        return "the template treats an answer by what it says"

    @staticmethod
    def _keep(program: Program) -> list[str]:
        return sorted((t for t in program.literals if t), key=len, reverse=True)

    # Special-token text in messages

    def _count_special(self, messages: Sequence[Message]) -> int:
        find = self._special.findall
        return sum(len(find(text)) for message in messages for text in _all_texts(message))

    def _plain_ranges(
        self,
        program: Program,
        messages: list[dict[str, Any]],
        tools: Any,
        extra: Mapping[str, Any],
        text: str,
    ) -> list[Range] | None:
        def change(value: str) -> str:
            return self._special.sub(lambda match: disguise(match[0]), value)

        try:
            other = self._run(program, [_disguised(m, change) for m in messages], tools, extra).text
        except RenderError:
            return None
        where = differing(text, other)
        return None if where is None else merge([(p, p + 1) for p in where.tolist()])

    def _lost_tool_calls(self, messages: Sequence[Message], output: Output) -> int:
        lost = 0
        for i, message in enumerate(messages):
            calls = message.get("tool_calls")
            if not calls or not isinstance(calls, (list, tuple)):
                continue
            written = "".join(output.text[a:b] for a, b in output.visits.get(i, [])) or output.text
            for token in self._tokens:
                written = written.replace(token, " ")
            for call in calls:
                function = call.get("function", call) if isinstance(call, Mapping) else None
                name = function.get("name") if isinstance(function, Mapping) else None
                lost += isinstance(name, str) and name not in written
        return lost


def _disguised(message: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    def within_json(value: str) -> str:
        # Signs that JSON escapes change the length of a text; letters and digits do not.
        return re.sub(r"\w+", lambda match: change(match[0]), value)

    out = dict(message)
    for name in _OWN_FIELDS:
        if name in out:
            out[name] = disguise_value(out[name], change)
    if "tool_calls" in out:
        out["tool_calls"] = disguise_value(out["tool_calls"], within_json)
    return out


def _widened(text: str, bounds: Range, message: Message, keep: list[str]) -> Range:
    # Signs at the edges of an answer that were not disguised: where the text has them too, they are its own.
    start, end = bounds
    for own in _own_texts(message):
        hidden = disguise(own, keep)
        same = [a == b for a, b in zip(own, hidden, strict=True)]
        lead = own[: same.index(False)] if False in same else ""
        tail = own[len(own) - same[::-1].index(False) :] if False in same else ""
        if lead and text.endswith(lead, 0, bounds[0]):
            start = min(start, bounds[0] - len(lead))
        if tail and text.startswith(tail, bounds[1]):
            end = max(end, bounds[1] + len(tail))
    return start, end


def _texts_of_parts(parts: Sequence[Any]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            yield part["text"]


def _own_texts(message: Message) -> Iterator[str]:
    for name in _OWN_FIELDS:
        value = message.get(name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _texts_of_parts(value)


def _all_texts(message: Message) -> Iterator[str]:
    # `thinking` is a second name for the same reasoning, so each text is given once.
    seen: set[int] = set()
    for name in _OWN_FIELDS:
        value = message.get(name)
        if value is not None and id(value) not in seen:
            seen.add(id(value))
            yield from _strings(value)
    if message.get("tool_calls"):
        yield from _strings(message["tool_calls"])


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _media(message: Message) -> int:
    content = message.get("content")
    if isinstance(content, str):
        return len(_PLACEHOLDER.findall(content)) if "<" in content else 0
    if not isinstance(content, (list, tuple)):
        return 0
    return sum(isinstance(part, Mapping) and not isinstance(part.get("text"), str) for part in content)


def _to_bytes(text: str, *groups: list[Range]) -> tuple[bytes, list[list[Range]]]:
    """UTF-8 of `text`, and ranges of characters as ranges of bytes. Raises RenderError."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RenderError(f"half of a surrogate pair at character {error.start}; no such text") from None
    if len(data) == len(text):
        return data, list(groups)
    borders = sorted({border for group in groups for r in group for border in r})
    at: dict[int, int] = {}
    done, total = 0, 0
    for border in borders:
        total += len(text[done:border].encode("utf-8"))
        at[border], done = total, border
    return data, [[(at[a], at[b]) for a, b in group] for group in groups]


def token_texts(added: Mapping[int, Any]) -> tuple[list[str], list[str]]:
    """(texts of special tokens, texts of all added tokens), of `Tokenizer.get_added_tokens_decoder()`."""
    return [t.content for t in added.values() if t.special], [t.content for t in added.values()]
