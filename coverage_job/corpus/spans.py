"""Which part of a rendered dialogue an assistant's turn is: decided on positions, never on a guess.

What is known of a rendered text comes from `sandbox.Program`: the ranges written while the template was
at a message (*visits*). Two more things decide a turn's borders:

* the *generation prompt*: what the template writes to open an answer. A turn that begins with it bears
  loss from its end on, so that `<think>` and other text the model has to write itself is in.
* the *end of turn*: the token that the template writes after an answer.

Where a visit has both, the turn is what lies between. Where it has not, a *disguised* rendering tells
which characters of the output are the answer's own: the record is rendered again with the answer's
characters replaced one for one by private ones, and the output has to be the same everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Range = tuple[int, int]

# What a template may look for in an answer, and so has to find in the disguised one too.
_BMP, _ASTRAL = 0xF0000, 0x100000
# Space and tab become other white space: templates strip it.
_SPACES = {0x20: 0x2003, 0x09: 0x2002, 0x0A: 0x2028, 0x0D: 0x2029, 0xA0: 0x2000}


class _Disguise(dict[int, int]):
    """A table for str.translate that replaces every character; white space by white space."""

    def __missing__(self, point: int) -> int:
        if chr(point).isspace():
            value = _SPACES.get(point, 0x2001 if point != 0x2001 else 0x2004)
        else:
            value = (_BMP | point) if point < 0x10000 else (_ASTRAL | point & 0xFFFF)
        if value == point:  # a private character that stands for itself
            value = _BMP | 0x41 if point != _BMP | 0x41 else _BMP | 0x42
        self[point] = value
        return value


_TABLE = _Disguise()


def disguise(text: str, keep: Sequence[str] = ()) -> str:
    """`text` with each character replaced, outside the strings of `keep`; as long as `text`.

    >>> len(disguise("so <b>it</b> is", keep=["<b>"])), "<b>" in disguise("so <b>it</b> is", keep=["<b>"])
    (15, True)
    """
    for part in keep:
        if part in text:
            return part.join(disguise(piece, keep) for piece in text.split(part))
    return text.translate(_TABLE)


def disguise_value(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with `change` applied to every text in it that is no key."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {k: v if k == "type" else disguise_value(v, change) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [disguise_value(v, change) for v in value]
    return value


def differing(text: str, disguised: str) -> npt.NDArray[np.int64] | None:
    """Positions whose characters were disguised; None where the two differ in anything else.

    text, disguised: the plain and the disguised rendering of one record.
    """
    if len(text) != len(disguised):
        return None
    a = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    b = np.frombuffer(disguised.encode("utf-32-le", "surrogatepass"), np.uint32)
    where = np.flatnonzero(a != b)
    points, inverse = np.unique(a[where], return_inverse=True)
    expected = np.array([_TABLE[int(p)] for p in points], np.uint32)
    if len(where) and not np.array_equal(expected[inverse], b[where]):
        return None
    return where


def last_of(text: str, tokens: Sequence[str], start: int, end: int) -> Range | None:
    """The last of `tokens` within text[start:end] as a range, if only white space follows it there."""
    stop = start + len(text[start:end].rstrip())
    for token in tokens:
        if text.endswith(token, start, stop):
            return stop - len(token), stop
    return None


def first_of(text: str, tokens: Sequence[str], start: int, end: int) -> Range | None:
    """The first of `tokens` within text[start:end] as a range; the longest where several begin there."""
    found: Range | None = None
    for token in tokens:
        at = text.find(token, start, end)
        if at >= 0 and (found is None or (at, -len(token)) < (found[0], found[0] - found[1])):
            found = (at, at + len(token))
    return found


def after_prompt(text: str, visit: Range, prompts: Sequence[str]) -> int | None:
    """Where the answer begins in a visit that opens with one of `prompts`, the first that fits; else None."""
    for prompt in prompts:
        if prompt and text.startswith(prompt, *visit):
            return visit[0] + len(prompt)
    return None


def common_opening(texts: Sequence[str], tokens: Sequence[str]) -> str:
    """What all texts begin with, cut back to end in white space or with a token.

    >>> common_opening(["<a>bot\\n<think>\\n", "<a>bot\\n<thin air"], ["<a>"])
    '<a>bot\\n'
    """
    low, high = min(texts), max(texts)
    same = next((i for i, pair in enumerate(zip(low, high, strict=False)) if pair[0] != pair[1]), len(low))
    opening = low[:same]
    while opening and not opening[-1].isspace() and not any(opening.endswith(t) for t in tokens):
        opening = opening[:-1]
    return opening if opening.strip() else ""


def turn_by_content(
    text: str,
    visit: Range | None,
    own: Range | None,
    prompts: Sequence[str],
    ends: Sequence[str],
    tokens: Sequence[str],
    has_calls: bool,
) -> tuple[int, int, Range | None] | str:
    """(start, end, end-of-turn token or None) of a turn whose own characters are known, or why not.

    visit: what was written while the template was at the message, None where that is not known.
    own: from its first to past its last own character; None where none of them is in the text.
    prompts: texts that open an answer, the longest first. ends: texts of end-of-turn tokens.
    tokens: texts of all added tokens. has_calls: the message has tool calls, which are closed by text
    of the template's.
    """
    begin = after_prompt(text, visit, prompts) if visit is not None else None
    if own is None:
        if visit is None:
            return "nothing of an answer is in the rendered text"
        closing = last_of(text, ends, visit[0] if begin is None else begin, visit[1])
        at = closing[0] if closing else max(begin or visit[0], visit[0] + len(text[slice(*visit)].rstrip()))
        return (at if begin is None else begin), at, closing
    first, last = own
    low, high = visit if visit is not None else (0, len(text))
    if begin is not None and begin <= first:
        first = begin
    elif visit is None and any(prompts) and not any(p and text.endswith(p, 0, first) for p in prompts):
        # Text between the prompt and the answer may be the model's or another message's.
        return "where an answer begins cannot be told"
    closing = first_of(text, ends, last, high)
    if visit is None:
        token = first_of(text, tokens, last, high)
        if token is not None and token != closing:
            return "where an answer ends cannot be told"
    if closing is not None:
        return first, closing[0], closing
    if has_calls:
        if visit is None:
            return "where a tool call ends cannot be told"
        last = max(last, low + len(text[low:high].rstrip()))
    return first, last, None


def merge(ranges: Sequence[Range]) -> list[Range]:
    """Sorted, disjoint, not empty; touching ranges become one.

    >>> merge([(5, 7), (0, 2), (2, 3), (4, 4)])
    [(0, 3), (5, 7)]
    """
    out: list[Range] = []
    for start, end in sorted(r for r in ranges if r[0] < r[1]):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out
