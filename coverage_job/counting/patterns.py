"""Split patterns as deterministic automata.

A tokenizer says where pre-tokens end by a regular expression that its engine runs by backtracking. Here
the expression's frame (alternatives, sequences, repeats, looking one character ahead) is read into a
tree, and what each of its characters and classes matches is asked of the engine itself, so no Unicode
table can disagree. The tree becomes an automaton over classes of characters that finds the same match
as the engine: the first in order of preference, not the longest.

What it cannot read (back-references, looking behind, long look-aheads) raises `Unsupported`, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

CODE_POINTS = 0x110000
_SURROGATES = range(0xD800, 0xE000)
_PART = 2048  # the engine's answers cost more per character in long texts; divides the surrogates' borders
_MAX_REPEAT = 64
_MAX_STATES = 4000
_BOUNDS = re.compile(r"\{(?!,?\})(\d*)(?:(,)(\d*))?\}")
_ESCAPE = re.compile(
    r"\\(?:[pP]\{\^?\w+\}|x\{[0-9A-Fa-f]+\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[rntsSdDwWhHfv]|[^A-Za-z0-9])"
)

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int32]


class Unsupported(Exception):
    """The tokenizer has a part for which no fast and exact path is known; the text says which."""


# --- the tree -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class One:
    """One character of the set `atom`, a key of the sets asked of the engine."""

    atom: str


@dataclass(frozen=True)
class Ahead:
    """Matches nothing, where the next character is in `atom` (`negative`: is not, or the text ends).

    at_end: what the end of the text counts as.
    """

    atom: str
    negative: bool
    at_end: bool


@dataclass(frozen=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    part: Node
    least: int
    most: int | None
    lazy: bool


Node = One | Ahead | Sequence | Choice | Repeat


def nullable(node: Node) -> bool:
    """Whether the node can match the empty text."""
    if isinstance(node, One):
        return False
    if isinstance(node, Ahead):
        return True
    if isinstance(node, Sequence):
        return all(nullable(p) for p in node.parts)
    if isinstance(node, Choice):
        return any(nullable(p) for p in node.options)
    return node.least == 0 or nullable(node.part)


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.folded = False
        self.folded_runs: set[str] = set()

    def fail(self, what: str) -> Unsupported:
        return Unsupported(f"its split pattern has {what} at position {self.at}")

    def peek(self, n: int = 1) -> str:
        return self.text[self.at : self.at + n]

    def take(self, text: str) -> bool:
        if self.text.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def parse(self) -> Node:
        # Elsewhere the engine binds such a flag in ways of its own.
        self.folded = self.take("(?i)")
        node = self.choice()
        if self.at < len(self.text):
            raise self.fail("an unmatched parenthesis")
        return node

    def choice(self) -> Node:
        options = [self.sequence()]
        while self.take("|"):
            options.append(self.sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def sequence(self) -> Node:
        parts: list[Node] = []
        run = ""
        while self.at < len(self.text) and self.peek() not in "|)":
            start = self.at
            part = self.repeated()
            literal = self.text[start : self.at]
            # Letters that stand together may fold together ("ss" and "ß"): the engine is asked later.
            run = run + literal if self.folded and len(literal) == 1 and literal.isascii() else ""
            if len(run) > 1:
                self.folded_runs.update(run[i:] for i in range(len(run) - 1))
            parts.append(part)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def repeated(self) -> Node:
        node = self.single()
        while True:
            if self.take("?"):
                least, most = 0, 1
            elif self.take("*"):
                least, most = 0, None
            elif self.take("+"):
                least, most = 1, None
            elif bounds := _BOUNDS.match(self.text, self.at):
                self.at = bounds.end()
                least = int(bounds[1] or 0)
                most = least if bounds[2] is None else int(bounds[3]) if bounds[3] else None
                if max(least, most or 0) > _MAX_REPEAT or (most is not None and most < least):
                    raise self.fail("a repeat that is too long")
                # In the engine's syntax a sign after {n,m} is a repeat of its own, not a way of repeating.
                if self.peek() in ("?", "+", "*"):
                    raise self.fail("a repeat of a repeat")
                node = self.make_repeat(node, least, most, False)
                continue
            else:
                return node
            if self.take("+"):
                node = self.make_possessive(node, least, most)
            else:
                node = self.make_repeat(node, least, most, self.take("?"))

    def make_repeat(self, node: Node, least: int, most: int | None, lazy: bool) -> Node:
        if isinstance(node, Ahead) or nullable(node):
            raise self.fail("a repeat of what may be empty")
        return Repeat(node, least, most, lazy)

    def make_possessive(self, node: Node, least: int, most: int | None) -> Node:
        # One that never gives back is, for a single set, one that stops short only where no more of it
        # follows.
        if not isinstance(node, One):
            raise self.fail("a possessive repeat of more than a set")
        stop = Ahead(node.atom, True, True)
        if most is None:
            return Sequence((Repeat(node, least, None, False), stop))
        options: list[Node] = [Sequence((*[node] * n, stop)) for n in range(most - 1, least - 1, -1)]
        return Choice((Sequence((node,) * most), *options))

    def single(self) -> Node:
        if self.take("("):
            return self.group()
        start = self.at
        character = self.peek()
        if self.take("\\z"):
            return Ahead(r"[\s\S]", True, True)
        if self.take("$"):
            return Ahead(r"\n", False, True)
        if character == "[":
            self.skip_set()
        elif character == "\\":
            self.skip_escape()
        elif character in "^*+?{":
            raise self.fail(f"{character!r}")
        else:
            self.at += 1
        atom = self.text[start : self.at]
        if self.folded:
            if len(atom) != 1 or not atom.isascii():
                raise self.fail("a set that ignores case")
            atom = f"(?i:{atom})"
        return One(atom)

    def group(self) -> Node:
        folded = self.folded
        if self.take("?:"):
            pass
        elif self.take("?i:"):
            self.folded = True
        elif self.take("?>"):
            inner = self.choice()
            if not self.take(")"):
                raise self.fail("an unmatched parenthesis")
            if isinstance(inner, One):
                return inner
            if not isinstance(inner, Repeat) or inner.lazy:
                raise self.fail("an atomic group of more than a repeated set")
            return self.make_possessive(inner.part, inner.least, inner.most)
        elif self.take("?!") or self.take("?="):
            negative = self.text[self.at - 1] == "!"
            node = self.single()
            if not isinstance(node, One) or not self.take(")"):
                raise self.fail("a look-ahead of more than one character")
            return Ahead(node.atom, negative, negative)
        elif self.peek() == "?":
            raise self.fail(f"a group of kind {self.peek(3)!r}")
        node = self.choice()
        if not self.take(")"):
            raise self.fail("an unmatched parenthesis")
        self.folded = folded
        return node

    def skip_escape(self) -> None:
        match = _ESCAPE.match(self.text, self.at)
        if match is None:
            raise self.fail(f"the escape {self.peek(2)!r}")
        self.at = match.end()

    def skip_set(self) -> None:
        self.at += 1
        self.take("^")
        first = True
        while first or self.peek() != "]":
            first = False
            if self.at >= len(self.text):
                raise self.fail("an unfinished set")
            if self.take("[:"):
                self.at = self.text.index(":]", self.at) + 2
            elif self.peek() == "[":
                self.skip_set()
            elif self.peek() == "\\":
                self.skip_escape()
            else:
                self.at += 1
        self.at += 1


# --- what the engine says ---------------------------------------------------------------------------


def _parts() -> list[tuple[int, str]]:
    points = [c for c in range(CODE_POINTS) if c not in _SURROGATES]
    return [(points[i], "".join(map(chr, points[i : i + _PART]))) for i in range(0, len(points), _PART)]


_ALL: list[tuple[int, str]] = []


@lru_cache(maxsize=256)
def ask(atom: str) -> Bools:
    """The code points that the engine's own `atom` (which matches one character) matches: bool[0x110000]."""
    if len(atom) == 1 and atom not in ".[\\":
        found = np.zeros(CODE_POINTS, np.bool_)
        found[ord(atom)] = True
        return found
    if not _ALL:
        _ALL.extend(_parts())
    found = np.ones(CODE_POINTS, np.bool_)
    found[_SURROGATES.start : _SURROGATES.stop] = False
    try:
        # What is left when matches are removed comes back as few runs rather than many characters.
        split = Split(Regex(f"(?:{atom})+"), "removed")
    except Exception as error:
        raise Unsupported(f"its split pattern has a set the engine refuses ({error})") from None
    for first, text in _ALL:
        for _, (start, end) in split.pre_tokenize_str(text):
            found[first + start : first + end] = False
    return found


@dataclass(frozen=True)
class Pattern:
    """A pattern's tree, and what must be asked of the engine before it may be used."""

    node: Node
    atoms: tuple[str, ...]


def parse(pattern: str) -> Pattern:
    """Read a split pattern. Raises Unsupported with the reason."""
    parser = _Parser(pattern)
    node = parser.parse()
    if nullable(node):
        raise Unsupported("its split pattern matches the empty text")
    runs = "|".join(f"(?i:{run})" for run in sorted(parser.folded_runs))
    if runs and ask(runs).any():
        raise Unsupported("its split pattern has letters that fold together into one character")
    return Pattern(node, tuple(sorted(_atoms(node))))


def _atoms(node: Node) -> set[str]:
    if isinstance(node, One | Ahead):
        return {node.atom}
    if isinstance(node, Repeat):
        return _atoms(node.part)
    parts = node.parts if isinstance(node, Sequence) else node.options
    return set().union(*(_atoms(p) for p in parts)) if parts else set()


# --- the automaton ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Automaton:
    """steps: int32[states, classes + 1]; the last class is the end of the text.

    A step is ``next_state << 1 | match``: `match` says that a match ends *before* the character of this
    class, which is how a pattern looks one character ahead. State 0 is dead, state 1 the start. The
    match is the last one seen before the automaton dies: each is preferred to those before it.
    """

    steps: Ints

    def match(self, classes: npt.NDArray[np.uint8], start: int, stop: int) -> int:
        """The end of the match that begins at `start`, or -1. The slow twin of the compiled loop."""
        state, end = 1, -1
        for position in range(start, stop + 1):
            step = int(self.steps[state, classes[position] if position < stop else -1])
            if step & 1:
                end = position
            state = step >> 1
            if state == 0:
                break
        return end


# Instructions of the ordered machine that the automaton simulates.
@dataclass
class _Take:
    atom: str
    then: int


@dataclass
class _Fork:
    first: int
    second: int


@dataclass
class _Test:
    test: Ahead
    then: int


class _Machine:
    """Thompson's construction; forks are ordered, so threads keep the engine's preference."""

    def __init__(self, node: Node) -> None:
        self.code: list[_Take | _Fork | _Test | None] = [None]  # 0: match
        self.start = self.add(node, 0)

    def put(self, instruction: _Take | _Fork | _Test) -> int:
        self.code.append(instruction)
        return len(self.code) - 1

    def add(self, node: Node, then: int) -> int:
        if isinstance(node, One):
            return self.put(_Take(node.atom, then))
        if isinstance(node, Ahead):
            return self.put(_Test(node, then))
        if isinstance(node, Sequence):
            for part in reversed(node.parts):
                then = self.add(part, then)
            return then
        if isinstance(node, Choice):
            starts = [self.add(option, then) for option in node.options]
            fork = starts.pop()
            while starts:
                fork = self.put(_Fork(starts.pop(), fork))
            return fork
        if node.most is None:
            fork = self.put(_Fork(0, 0))
            body = self.add(node.part, fork)
            self.code[fork] = self.fork(body, then, node.lazy)
            then = fork
        else:
            end = then
            for _ in range(node.most - node.least):
                then = self.put(self.fork(self.add(node.part, then), end, node.lazy))
        for _ in range(node.least):
            then = self.add(node.part, then)
        return then

    @staticmethod
    def fork(more: int, done: int, lazy: bool) -> _Fork:
        return _Fork(done, more) if lazy else _Fork(more, done)

    def threads(self, states: tuple[int, ...], holds: Callable[[Ahead], bool]) -> tuple[list[_Take], bool]:
        """Takes reached from `states` in order of preference, up to a match; and whether there is one."""
        seen: set[int] = set()
        takes: list[_Take] = []
        stack = list(reversed(states))
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            instruction = self.code[at]
            if instruction is None:
                return takes, True
            if isinstance(instruction, _Take):
                takes.append(instruction)
            elif isinstance(instruction, _Fork):
                stack += (instruction.second, instruction.first)
            elif holds(instruction.test):
                stack.append(instruction.then)
        return takes, False


def compile_pattern(node: Node, members: dict[str, Bools]) -> Automaton:
    """The automaton of a tree.

    members: for each atom, bool[classes]: whether the characters of a class are in it.
    """
    machine = _Machine(node)
    n_classes = len(next(iter(members.values())))
    numbers: dict[tuple[int, ...], int] = {(): 0, (machine.start,): 1}
    waiting: list[tuple[int, ...]] = [(machine.start,)]
    rows: list[list[int]] = [[0] * (n_classes + 1)]
    for states in waiting:
        row = []
        for k in range(n_classes + 1):

            def holds(test: Ahead, k: int = k) -> bool:
                if k == n_classes:
                    return test.at_end
                return bool(members[test.atom][k]) != test.negative

            takes, match = machine.threads(states, holds)
            following: tuple[int, ...] = ()
            if k < n_classes:
                following = tuple(dict.fromkeys(t.then for t in takes if members[t.atom][k]))
            number = numbers.get(following)
            if number is None:
                number = numbers[following] = len(numbers)
                waiting.append(following)
                if number > _MAX_STATES:
                    raise Unsupported(f"its split pattern needs more than {_MAX_STATES} states")
            row.append(number << 1 | match)
        rows.append(row)
    return Automaton(np.array(rows, np.int32))
