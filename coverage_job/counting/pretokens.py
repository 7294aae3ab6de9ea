"""A tokenizer's splitting steps as automata over one set of character classes, held against itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from coverage_job.counting import patterns
from coverage_job.counting.patterns import CODE_POINTS, Automaton, Unsupported

# The pattern that ByteLevel(use_regex=True) has built in.
BYTE_LEVEL_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TRIALS = 3000


@dataclass(frozen=True)
class Level:
    """One splitting step. total: text that the pattern does not match would be dropped, so it must match
    all."""

    pattern: patterns.Pattern
    total: bool


def read_levels(splits: Sequence[dict[str, Any]]) -> list[Level]:
    levels = []
    for split in splits:
        if split["type"] == "ByteLevel":
            if split is not splits[-1]:
                raise Unsupported("it splits after ByteLevel")
            if split.get("add_prefix_space"):
                raise Unsupported("it adds a space before the text")
            if split.get("use_regex", True):
                levels.append(Level(patterns.parse(BYTE_LEVEL_PATTERN), False))
        elif split["type"] == "Split":
            behavior, invert = split["behavior"], split["invert"]
            if behavior != "Isolated" and not (behavior == "Removed" and invert):
                raise Unsupported(f"it splits with behaviour {behavior}")
            pattern = split["pattern"]
            text = pattern.get("Regex")
            if text is None:
                text = "".join("\\" + c if not c.isalnum() and c.isascii() else c for c in pattern["String"])
            levels.append(Level(patterns.parse(text), behavior == "Removed"))
        elif split["type"] == "Digits" and split["individual_digits"]:
            levels.append(Level(patterns.parse(r"\p{N}"), False))
        else:
            raise Unsupported(f"its pre-tokenizer is {split['type']}")
    return levels


def build(levels: Sequence[Level]) -> tuple[npt.NDArray[np.uint8], list[Automaton], list[str]]:
    """Classes of characters (uint8[0x110000]) that no pattern tells apart, an automaton per level, and per
    class some of its characters."""
    atoms = sorted({atom for level in levels for atom in level.pattern.atoms})
    code = np.zeros(CODE_POINTS, np.int64)
    sets = {}
    for atom in atoms:
        sets[atom] = patterns.ask(atom)
        # Renumbered each time, so that any number of atoms fits.
        code = np.unique(code * 2 + sets[atom], return_inverse=True)[1].astype(np.int64)
    n = int(code.max()) + 1
    if n > 255:
        raise Unsupported(f"its split patterns tell {n} classes of characters apart")
    order = np.argsort(code, kind="stable")
    firsts = order[np.searchsorted(code[order], np.arange(n))]
    automata = [
        patterns.compile_pattern(level.pattern.node, {a: sets[a][firsts] for a in level.pattern.atoms})
        for level in levels
    ]
    for level, automaton in zip(levels, automata, strict=True):
        if level.total and not _matches_all(automaton):
            raise Unsupported("its split pattern may leave out text")
    pick = random.Random(0)
    representatives = []
    for k in range(n):
        members = np.flatnonzero(code == k)
        members = members[(members < 0xD800) | (members > 0xDFFF)]
        chosen = members[:2].tolist() + pick.choices(members.tolist(), k=2) if len(members) else []
        representatives.append("".join(map(chr, chosen)))
    return code.astype(np.uint8), automata, representatives


def _matches_all(automaton: Automaton) -> bool:
    """Whether a match begins at every character, whatever follows (told by its first character)."""
    after = automaton.steps[1, :-1] >> 1
    return bool((automaton.steps[after] & 1).all())


def boundaries(text: str, classes: npt.NDArray[np.uint8], automata: Sequence[Automaton]) -> list[int]:
    """The ends of all pre-tokens of a text, in characters: the slow twin of the compiled loop."""
    marks = classes[[ord(c) for c in text]] if text else classes[:0]
    pieces = [(0, len(text))]
    for automaton in automata:
        smaller = []
        for start, stop in pieces:
            at = gap = start
            while at < stop:
                end = automaton.match(marks, at, stop)
                if end < 0:
                    at += 1
                    continue
                if gap < at:
                    smaller.append((gap, at))
                smaller.append((at, end))
                at = gap = end
            if gap < stop:
                smaller.append((gap, stop))
        pieces = smaller
    return [end for _, end in pieces if end]


def compare(
    tokenizer: Tokenizer,
    classes: npt.NDArray[np.uint8],
    automata: Sequence[Automaton],
    representatives: Sequence[str],
) -> None:
    """Compare with the tokenizer's own pre-tokenizer on random strings: a last guard against its engine
    reading a pattern otherwise than is done here."""
    pick = random.Random(1)
    pool = [r for r in representatives if r]
    for _ in range(TRIALS):
        # Few classes at a time: what tells patterns apart are runs and what follows them.
        few = pick.choices(pool, k=pick.randint(1, 5))
        text = "".join(pick.choice(pick.choice(few)) for _ in range(pick.randint(1, 12)))
        theirs = [end for _, (_, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        if sorted(set(theirs)) != boundaries(text, classes, automata):
            raise Unsupported(f"its splits differ from their pattern's on {text!r}")
