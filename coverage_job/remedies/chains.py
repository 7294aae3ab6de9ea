"""Units put side by side so that each keeps its ids.

Two neighbours fit where the text of both encodes to the ids of both. All neighbours of a shuffled
order are tested in bulk, what fits becomes one fragment, and the fragments are shuffled and tested
again: about one test per unit in all. What fits nowhere without help is joined by a separator.
In byte-pair encoding a sequence whose neighbours all fit is itself what encoding gives within a
pre-token, so little is left for the check of the whole, which `repeat.py` makes in any case.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from tokenizers import Tokenizer

from coverage_job.remedies.units import Unit
from coverage_job.tokenizer.load import encode_all

SEPARATORS: tuple[str, ...] = ("", " ", "\n", ", ", "。", " - ", " a", "a ", " a ", "\n\n")
# Nothing touches what comes before or after it.
APART: tuple[str, ...] = ("\n", " ", "。", " a", "a", " a ", "a\n", "\na", "\na\n", ".", "1")
# What may stand at the two ends of a text instead of a token in scope.
_BEFORE: tuple[str, ...] = ("a\n", "a", "x", "a ", ".", "1", "。", "a.")
_AFTER: tuple[str, ...] = ("\na", " a", "a", ".", "x", "1", "。", ".a")

# A separator may cost this many ids.
_SEPARATOR_IDS = 3


@dataclass(slots=True)
class Chain:
    """Units in order, between two further texts. separators[i] stands before units[i], i > 0."""

    units: list[Unit] = field(default_factory=list)
    separators: list[str] = field(default_factory=list)
    before: str = ""
    after: str = ""

    def append(self, separator: str, unit: Unit) -> None:
        self.separators.append(separator)
        self.units.append(unit)

    def remove(self, place: int) -> None:
        del self.units[place], self.separators[place]

    def parts(self) -> list[str]:
        """Each unit's text with what stands before it; last, what stands after all."""
        parts = [separator + unit.text for separator, unit in zip(self.separators, self.units, strict=True)]
        if parts:
            parts[0] = self.before + self.units[0].text
        return [*parts, self.after]

    def text(self) -> str:
        return "".join(self.parts())

    def __len__(self) -> int:
        return len(self.units)


def _fits(
    tokenizer: Tokenizer, pairs: list[tuple[Unit, Unit]], separator: str, lefts: dict[str, int]
) -> list[bool]:
    texts = [a.left + a.text + separator + b.text for a, b in pairs]
    most = _SEPARATOR_IDS if separator else 0
    answers = []
    for (a, b), ids in zip(pairs, encode_all(tokenizer, texts), strict=True):
        start = lefts[a.left]
        middle = start + len(a.ids)
        end = len(ids) - len(b.ids)
        answers.append(
            0 <= end - middle <= most and tuple(ids[start:middle]) == a.ids and tuple(ids[end:]) == b.ids
        )
    return answers


def link(
    units: list[Unit],
    tokenizer: Tokenizer,
    rng: random.Random,
    separators: tuple[str, ...] = SEPARATORS,
    patience: float = 0.9,
) -> list[Chain]:
    """All units, each once, in chains whose neighbours fit; as few chains as are easily had.

    separators: tried in this order, each until a round joins less than 1 - patience of the chains.
    """
    lefts = _lengths(tokenizer, {unit.left for unit in units})
    order = list(units)
    rng.shuffle(order)
    chains = [Chain([unit], [""]) for unit in order]
    for separator in separators:
        while len(chains) > 1:
            before = len(chains)
            pairs = [(a.units[-1], b.units[0]) for a, b in pairwise(chains)]
            joined = [chains[0]]
            for fits, chain in zip(_fits(tokenizer, pairs, separator, lefts), chains[1:], strict=True):
                if fits:
                    chain.separators[0] = separator
                    joined[-1].units += chain.units
                    joined[-1].separators += chain.separators
                else:
                    joined.append(chain)
            chains = joined
            rng.shuffle(chains)
            if len(chains) > patience * before:
                break
    return chains


def with_edges(chains: list[Chain], tokenizer: Tokenizer) -> None:
    """Put a text at both ends of each chain that leaves its first and last unit as they are."""
    lefts = _lengths(tokenizer, {chain.units[-1].left for chain in chains} | set(_BEFORE))
    pending = list(range(len(chains)))
    for before in _BEFORE:
        units = [chains[i].units[0] for i in pending]
        kept = []
        ids_of = encode_all(tokenizer, [before + unit.text for unit in units])
        for i, unit, ids in zip(pending, units, ids_of, strict=True):
            if tuple(ids[lefts[before] :]) == unit.ids:
                chains[i].before = before
            else:
                kept.append(i)
        pending = kept
    pending = list(range(len(chains)))
    for after in _AFTER:
        units = [chains[i].units[-1] for i in pending]
        kept = []
        ids_of = encode_all(tokenizer, [unit.left + unit.text + after for unit in units])
        for i, unit, ids in zip(pending, units, ids_of, strict=True):
            start = lefts[unit.left]
            if tuple(ids[start : start + len(unit.ids)]) == unit.ids:
                chains[i].after = after
            else:
                kept.append(i)
        pending = kept


def _lengths(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[str, int]:
    return {text: len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts}
