"""Which documents bring most tokens to their number within a budget of tokens. Decision code.

Half a number is worth nothing here, so the budget must not be spread over all that is short. Each token
has a price, what it may cost to bring it to its number; the price rises while the documents worth most
at these prices do not bring it (the Lagrangian dual of the covering problem, by subgradient steps; Held,
Wolfe and Crowder, 1974). A token that stays short at the highest price is given up. What is left is
covered greedily, and documents without which no token would miss its number are put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coverage_job.corpus.documents import Int32, Int64
from coverage_job.counting.compiled import compiled

Bool = npt.NDArray[np.bool_]
Float64 = npt.NDArray[np.float64]

# How far the greedy threshold falls from round to round.
_SHRINK = 0.97
# Steps of the prices, the first of them without giving any token up; the first step's size; what part of
# the tokens may be given up in one step; at which part of its number, on average, a token is kept.
_STEPS, _FREE_STEPS, _STEP, _GIVEN_UP, _KEPT = 60, 10, 0.25, 0.03, 0.7
_MEMORY = 0.7
# A price is not below this when documents are taken: a token that comes by the way can still be missed.
_LEAST_PRICE = 0.02
# How often what is left of the budget is given to what is left of the tokens.
_ROUNDS = 3


@dataclass(frozen=True)
class Documents:
    """What n documents hold of the tokens that are short.

    cost: int64[n], tokens. borders: int64[n + 1]. ids, counts: int32[p], document i holds
    counts[borders[i]:borders[i + 1]] of ids[...], each id once.
    """

    cost: Int64
    borders: Int64
    ids: Int32
    counts: Int32

    def __len__(self) -> int:
        return len(self.cost)

    @classmethod
    def of(cls, cost: Sequence[int], ids: Sequence[Int32], counts: Sequence[Int32]) -> Documents:
        """From one entry per document."""
        return cls(
            np.array(cost, np.int64),
            np.concatenate([[0], np.cumsum([len(i) for i in ids], dtype=np.int64)]).astype(np.int64),
            np.concatenate([np.empty(0, np.int32), *ids]),
            np.concatenate([np.empty(0, np.int32), *counts]),
        )


@compiled
def _greedy(cost, borders, ids, counts, left, weight, budget, out, taken):  # type: ignore[no-untyped-def]
    # Rounds of a falling threshold (Badanidiyuru and Vondrak, 2014). Worth only falls as documents are
    # taken, so a worth that was computed before is a bound.
    n = len(cost)
    bound = np.full(n, np.inf)
    threshold = np.inf
    used = 0
    m = 0
    while used < budget:
        highest = 0.0
        for x in range(n):
            if out[x] or used + cost[x] > budget:
                continue
            if bound[x] < threshold:
                highest = max(highest, bound[x])
                continue
            worth = 0.0
            for j in range(borders[x], borders[x + 1]):
                short = left[ids[j]]
                if short > 0:
                    worth += min(counts[j], short) * weight[ids[j]]
            worth /= cost[x]
            bound[x] = worth
            if worth <= 0.0 or worth < threshold:
                highest = max(highest, worth)
                continue
            out[x] = True
            used += cost[x]
            taken[m] = x
            m += 1
            for j in range(borders[x], borders[x + 1]):
                left[ids[j]] -= counts[j]
        if highest <= 0.0:
            break
        threshold = min(threshold, highest) * _SHRINK
    return m


@compiled
def _worth(cost, borders, ids, counts, need, weight, out):  # type: ignore[no-untyped-def]
    for x in range(len(cost)):
        worth = 0.0
        for j in range(borders[x], borders[x + 1]):
            worth += min(counts[j], need[ids[j]]) * weight[ids[j]]
        out[x] = worth / cost[x]


@compiled
def _supply(borders, ids, counts, taken, have):  # type: ignore[no-untyped-def]
    for x in taken:
        for j in range(borders[x], borders[x + 1]):
            have[ids[j]] += counts[j]


@compiled
def _put_back(borders, ids, counts, taken, have, need, kept):  # type: ignore[no-untyped-def]
    # From the last: a document goes where every token that has its number keeps it.
    for i in range(len(taken) - 1, -1, -1):
        first, last = borders[taken[i]], borders[taken[i] + 1]
        kept[i] = False
        for j in range(first, last):
            if need[ids[j]] <= have[ids[j]] < need[ids[j]] + counts[j] and need[ids[j]] > 0:
                kept[i] = True
        if not kept[i]:
            for j in range(first, last):
                have[ids[j]] -= counts[j]


@compiled
def _bring(borders, ids, counts, taken, left, brought):  # type: ignore[no-untyped-def]
    for x in taken:
        for j in range(borders[x], borders[x + 1]):
            brought[j] = max(0, min(counts[j], left[ids[j]]))
            left[ids[j]] -= counts[j]


def _have(d: Documents, taken: Int64, rows: int) -> Int64:
    have = np.zeros(rows, np.int64)
    _supply(d.borders, d.ids, d.counts, taken, have)  # type: ignore[no-untyped-call]
    return have


def offer(
    documents: Documents,
    need: Int64,
    budget: int,
    *,
    taken: Int64 | None = None,
    weight: Float64 | None = None,
) -> Int64:
    """Documents of at most `budget` tokens that supply much of what is needed, in the order taken.

    need: int64[rows]. taken: documents that are not looked at. weight: float64[rows], of an occurrence;
    by default 1 / need, so that every token counts alike.
    """
    d = documents
    out = np.zeros(len(d), np.bool_)
    if taken is not None:
        out[taken] = True
    found = np.empty(len(d), np.int64)
    m = _greedy(  # type: ignore[no-untyped-call]
        np.maximum(d.cost, 1), d.borders, d.ids, d.counts, need.astype(np.int64),
        1 / np.maximum(need, 1) if weight is None else weight, budget, out, found,
    )  # fmt: skip
    return found[:m]


def _prices(d: Documents, need: Int64, budget: int, free: Bool) -> tuple[Bool, Float64]:
    """bool[rows], the tokens that are worth their cost, and float64[rows], their prices (0 to 1)."""
    wanted = need > 0
    share = 1 / np.maximum(need, 1)
    price = np.where(wanted, 0.5, 0.0)
    cost = np.maximum(d.cost, 1)
    worth = np.empty(len(d))
    mean = np.zeros(len(need))
    for step in range(_STEPS):
        _worth(cost, d.borders, d.ids, d.counts, need, price * share, worth)  # type: ignore[no-untyped-call]
        worth[~free] = 0
        order = np.argsort(-worth, kind="stable")
        order = order[: np.searchsorted(np.cumsum(cost[order]), budget, side="right")]
        part = np.minimum(_have(d, order[worth[order] > 0], len(need)) * share, 2)
        mean = _MEMORY * mean + (1 - _MEMORY) * part
        price = np.clip(price - _STEP / np.sqrt(1 + step / 4) * (part - 1), 0, 1)
        if step >= _FREE_STEPS:
            dear = np.flatnonzero(wanted & (price >= 1) & (mean < _KEPT))
            most = max(1, int(_GIVEN_UP * wanted.sum()))
            wanted[dear[np.argsort(mean[dear], kind="stable")[:most]]] = False
        price[~wanted] = 0
    return wanted, price


def cover(documents: Documents, need: Int64, budget: int) -> tuple[Int64, Int32]:
    """Documents of at most `budget` tokens in all that bring many tokens to their number.

    need: int64[rows], occurrences that each token lacks. What is left of the budget goes to tokens that
    come nearer to their number. Gives the documents taken, in that order, and int32[p]: of each of
    `documents.counts`, how many were still needed when its document was taken, never all of them 0.
    """
    d = documents
    cost = np.maximum(d.cost, 1)
    need = need.astype(np.int64)
    taken = np.empty(0, np.int64)
    reached = 0
    for _ in range(_ROUNDS):
        left = np.maximum(need - _have(d, taken, len(need)), 0)
        room = budget - int(cost[taken].sum())
        free = np.ones(len(d), np.bool_)
        free[taken] = False
        wanted, price = _prices(d, left, room, free)
        weight = np.maximum(price, _LEAST_PRICE) / np.maximum(left, 1)
        more = offer(d, np.where(wanted, left, 0), room, taken=taken, weight=weight)
        taken = np.concatenate([taken, more])
        have = _have(d, taken, len(need))
        before, reached = reached, int(((need > 0) & (have >= need)).sum())
        kept = np.ones(len(taken), np.bool_)
        _put_back(d.borders, d.ids, d.counts, taken, have, need, kept)  # type: ignore[no-untyped-call]
        taken = taken[kept]
        if reached <= before:
            break
    left = np.maximum(need - _have(d, taken, len(need)), 0)
    more = offer(d, left, budget - int(cost[taken].sum()), taken=taken)
    taken = np.concatenate([taken, more])
    brought = np.zeros(len(d.ids), np.int32)
    _bring(d.borders, d.ids, d.counts, taken, need.copy(), brought)  # type: ignore[no-untyped-call]
    return taken, brought


def tally(batch_ids: Int32, borders: Int64, wanted: Bool) -> tuple[Int64, Int32, Int32]:
    """What documents back to back hold of the wanted ids: (document, id, count), by document and id.

    >>> tally(np.array([4, 7, 4, 4], np.int32), np.array([0, 3, 4]), np.arange(8) == 4)
    (array([0, 1]), array([4, 4], dtype=int32), array([2, 1], dtype=int32))
    """
    rows = len(wanted)
    at = np.flatnonzero(wanted[batch_ids])
    document = np.searchsorted(borders, at, side="right") - 1
    pairs, counts = np.unique(document * rows + batch_ids[at], return_counts=True)
    return pairs // rows, (pairs % rows).astype(np.int32), counts.astype(np.int32)
