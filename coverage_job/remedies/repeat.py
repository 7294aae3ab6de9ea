"""The repeat-after-me set: every token in scope is a target as often as it needs, and that is checked.

Built in passes. A pass shuffles the tokens that still lack something, once per round, puts them side
by side (`chains.py`), cuts the chains into dialogues, renders and encodes these as the trainer does,
and subtracts what is supervised in them (`proof.py`). What was lost, at a seam or to the template, goes
to the next pass, which keeps tokens further apart. So counts never rest on what was meant to be written.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from itertools import accumulate

import numpy as np
import polars as pl
from tokenizers import Tokenizer

from coverage_job.errors import RemedyError
from coverage_job.remedies.chains import APART, SEPARATORS, Chain, link, with_edges
from coverage_job.remedies.proof import Counts, Dialogue, DialogueCounter
from coverage_job.remedies.units import BY_TEXT, Missing, Unit, find_units
from coverage_job.schemas import Action, Kind

_REPEATED = (Action.REPEAT.value, Action.REPEAT_AND_MIX.value, Action.REPEAT_IDS.value)

# Under this much room for a text, instructions and template are most of what is trained on.
_LEAST_ROOM = 16
# A user's copy can encode to a little more than the assistant's: its neighbours differ.
_MARGIN = 0.97
# Tokens that a template may parse out of a message share a dialogue with few others.
_ADDED_PER_DIALOGUE = 4


@dataclass(frozen=True)
class RepeatOptions:
    """How the set is made.

    tokens_per_dialogue: units that share a dialogue. max_length: tokens of a rendered dialogue, at
    most. measure: the job's `coverage.measure`. seed: the same seed, tokenizer and coverage give the
    same bytes.
    """

    tokens_per_dialogue: int = 512
    max_length: int = 4096
    measure: str = "supervised_occurrences"
    seed: int = 0


@dataclass(frozen=True)
class _Pass:
    """separators: tried in this order. edges: whether other text stands at a dialogue's two ends."""

    separators: tuple[str, ...]
    per_dialogue: int
    edges: bool


# The first costs least. Then nothing in scope stands at an end, where templates trim; then nothing
# touches; then few share a dialogue, so that one token's harm reaches few.
_PASSES = (
    _Pass(SEPARATORS, 1 << 30, False),
    _Pass(SEPARATORS, 1 << 30, True),
    _Pass(APART, 32, True),
    _Pass(APART, 1, True),
    _Pass(APART, 1, False),
)


@dataclass(frozen=True)
class RepeatSet:
    """What was built.

    dialogues: each of `messages`. asked: token id -> times needed. counts: of the dialogues, measured.
    missing: tokens that have fewer than asked, with reasons.
    """

    dialogues: list[Dialogue]
    asked: Mapping[int, int]
    counts: Counts
    missing: list[Missing]


@lru_cache(maxsize=1)
def instructions() -> dict[str, list[str]]:
    """Instructions by language; `{text}` is where the text goes."""
    text = (files("coverage_job.remedies") / "instructions.json").read_text("utf-8")
    return {language: list(lines) for language, lines in json.loads(text).items()}


def needs(coverage: pl.DataFrame, scope: str, minimum: int) -> dict[int, int]:
    """How often each token in scope must be a target of the repeat set.

    scope: `flagged` (each its deficit, so what SFT already gives is counted; those that the manifest
    gives to a repeat set) or `vocabulary` (each `minimum` times, as the published cure did; all that
    text reaches and the job does not exempt or protect). Raises RemedyError on another scope.

    >>> table = pl.DataFrame({"token_id": [0, 1], "action": ["none", "repeat"], "deficit": [0, 7]})
    >>> needs(table, "flagged", 20)
    {1: 7}
    """
    if scope == "flagged":
        rows = coverage.filter(pl.col("action").is_in(_REPEATED) & (pl.col("deficit") > 0))
        return dict(rows.select("token_id", "deficit").iter_rows())
    if scope == "vocabulary":
        spared = pl.col("action").is_in([Action.EXEMPT.value, Action.PROTECT.value])
        rows = coverage.filter(pl.col("reachability").is_in(BY_TEXT) & ~spared)
        return dict.fromkeys(rows["token_id"].to_list(), minimum)
    raise RemedyError(f"--scope {scope}: choose flagged or vocabulary")


def added_texts(tokenizer: Tokenizer) -> list[str]:
    """The texts of all added tokens, special ones included."""
    return [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]


def special_texts(tokenizer: Tokenizer) -> list[str]:
    """The texts of special tokens, which never enter plain text."""
    return [t.content for _, t in sorted(tokenizer.get_added_tokens_decoder().items()) if t.special]


def _dialogue(chain: Chain, group: str, rng: random.Random) -> Dialogue:
    lines = instructions()
    text = chain.text()
    before, after = rng.choice(lines.get(group, lines["en"])).split("{text}")
    return [{"role": "user", "content": before + text + after}, {"role": "assistant", "content": text}]


def build(
    coverage: pl.DataFrame,
    asked: Mapping[int, int],
    tokenizer: Tokenizer,
    counter: DialogueCounter,
    options: RepeatOptions | None = None,
    reached: Callable[[int], None] = lambda targets: None,
) -> RepeatSet:
    """Dialogues in which each token of `asked` is a target as often as asked, as far as text can do it.

    coverage: the run's table. asked: token id -> times. counter: the job's chat template and kernel.
    reached: told, now and then, how many of the targets asked for are there.
    Raises RemedyError where `max_length` leaves no room beside the template.
    """
    options = options or RepeatOptions()
    counter = replace(counter, max_length=options.max_length)
    room = _room(counter, options.max_length)
    wanted = coverage.filter(pl.col("token_id").is_in(list(asked)))
    units, missing = find_units(wanted, tokenizer, special_texts(tokenizer))
    groups = _groups(wanted)
    forbidden = _matcher(added_texts(tokenizer))

    left = np.zeros(counter.rows, np.int64)
    for token_id, times in asked.items():
        left[token_id] = times
    promised = int(left.sum())
    dialogues: list[Dialogue] = []
    total = counter.count([])
    for number, frame in enumerate(_PASSES):
        copies = _copies(units, left)
        if not copies:
            break
        rng = random.Random(f"{options.seed}/{number}")
        given = np.zeros_like(left)
        for at in range(max(times for _, times in copies)):
            members: dict[str, list[Unit]] = defaultdict(list)
            for unit, times in copies:
                if times > at:
                    members[groups[unit.token_id]].append(unit)
            made = []
            for group, chain in _round(members, tokenizer, rng, frame, options, room):
                if group != Kind.ADDED.value:
                    _clean(chain, forbidden)
                if chain.units:
                    made.append(_dialogue(chain, group, rng))
            counts = counter.count(made)
            dialogues += made
            total += counts
            given += counts.of(options.measure)
            reached(promised - int(np.maximum(0, left - given).sum()))
        left = np.maximum(0, left - given)
    # A template may write what no plain text gives: an end-of-turn token is a target in each dialogue.
    missing += [Missing(unit.token_id, "lost in every context tried") for unit in units]
    missing = [m for m in missing if left[m.token_id] > 0]
    random.Random(f"{options.seed}/order").shuffle(dialogues)
    return RepeatSet(dialogues, asked, total, sorted(missing, key=lambda m: m.token_id))


def _room(counter: DialogueCounter, max_length: int) -> int:
    """Tokens a text may have so that it, its copy, the instruction and the template fit."""
    lines = [line for lines in instructions().values() for line in lines]
    short = [
        [{"role": "user", "content": line.replace("{text}", "a")}, {"role": "assistant", "content": "a"}]
        for line in lines
    ]
    longest = int(counter.count(short).tokens.max())
    room = int((max_length - longest) / 2 * _MARGIN)
    if room < _LEAST_ROOM:
        raise RemedyError(
            f"max_length {max_length}: template and instruction take up to {longest} tokens; "
            f"set it to {longest + 2 * _LEAST_ROOM + 4} or more"
        )
    return room


def _groups(coverage: pl.DataFrame) -> dict[int, str]:
    known = instructions()
    groups = {}
    for token_id, language, kind in coverage.select("token_id", "language", "kind").iter_rows():
        base = language.split("-")[0]
        groups[token_id] = Kind.ADDED.value if kind == Kind.ADDED.value else base if base in known else ""
    return groups


def _copies(units: Sequence[Unit], left: np.ndarray) -> list[tuple[Unit, int]]:
    """How often to write each unit. What a unit gives besides its own token counts for the others."""
    left = left.copy()
    copies = []
    for unit in sorted(units, key=lambda u: (-len(u.ids), u.token_id)):
        times = int(left[unit.token_id])
        if times > 0:
            copies.append((unit, times))
            for token_id in unit.ids:
                left[token_id] -= times
    return copies


def _round(
    members: Mapping[str, list[Unit]],
    tokenizer: Tokenizer,
    rng: random.Random,
    frame: _Pass,
    options: RepeatOptions,
    room: int,
) -> list[tuple[str, Chain]]:
    """Each unit once, in dialogues of one language; languages with few tokens share theirs."""
    limit = min(options.tokens_per_dialogue, frame.per_dialogue)
    pooled: dict[str, list[Unit]] = defaultdict(list)
    for group in sorted(members):
        small = group != Kind.ADDED.value and len(members[group]) < limit // 4
        pooled["" if small else group] += members[group]
    drafts = []
    for group in sorted(pooled):
        most = min(limit, _ADDED_PER_DIALOGUE) if group == Kind.ADDED.value else limit
        chains = _cut(link(pooled[group], tokenizer, rng, frame.separators), most, room)
        if frame.edges:
            with_edges(chains, tokenizer)
        drafts += [(group, chain) for chain in chains]
    return drafts


def _cut(chains: Sequence[Chain], most: int, room: int) -> list[Chain]:
    # Chains end to end, in dialogues of about equal size.
    total = sum(len(chain) for chain in chains)
    size = math.ceil(total / math.ceil(total / most))
    cut: list[Chain] = []
    tokens = room + 1
    for chain in chains:
        for at, (separator, unit) in enumerate(zip(chain.separators, chain.units, strict=True)):
            cost = len(unit.ids) + (len(separator) if at else 1)
            if tokens + cost > room or len(cut[-1]) >= size:
                cut.append(Chain(before=unit.left))
                tokens = 0
            # Whether two chains fit was found out by no test: a newline, and the count decides.
            cut[-1].append(separator if at else "\n", unit)
            tokens += cost
    return cut


def _matcher(texts: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(re.escape(t) for t in sorted(texts, key=len, reverse=True))) if texts else None


def _clean(chain: Chain, forbidden: re.Pattern[str] | None) -> None:
    """Take out the units that, with their neighbours, spell an added token's text."""
    while forbidden and chain.units and (match := forbidden.search(chain.text())):
        ends = accumulate(map(len, chain.parts()))
        del_at = next(i for i, end in enumerate(ends) if end >= match.end())
        chain.remove(min(del_at, len(chain) - 1))
