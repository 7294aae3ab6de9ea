"""Which documents cover what is short: a greedy cover within a budget of tokens. Decision code.

A document is worth what it still brings, each token weighed by 1 / sqrt(needed * still needed), per
token it costs: tokens that lack little, or are nearly there, come first, so that more of them arrive
than when every occurrence counts alike. Documents are taken in rounds of a falling threshold (Badanidiyuru
and Vondrak, 2014, for what is submodular), which needs no queue and few looks at each document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coverage_job.corpus.documents import Int32, Int64
from coverage_job.counting.compiled import compiled

# How far the threshold falls from round to round.
_SHRINK = 0.95
# A document's worth can rise again as tokens come near their number; one whose worth was under this
# part of the threshold is not looked at again yet.
_SLACK = 0.6


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
def _cover(  # type: ignore[no-untyped-def]
    cost, borders, ids, counts, left, weight, near, budget, taken, brought
):
    n = len(cost)
    bound = np.full(n, np.inf)
    out = np.zeros(n, np.bool_)
    threshold = np.inf
    used = 0
    m = 0
    while used < budget:
        highest = 0.0
        for x in range(n):
            if out[x]:
                continue
            if bound[x] < _SLACK * threshold:
                highest = max(highest, bound[x])
                continue
            worth = 0.0
            for j in range(borders[x], borders[x + 1]):
                short = left[ids[j]]
                if short > 0:
                    worth += min(counts[j], short) * weight[ids[j]] * near[short]
            worth /= cost[x]
            bound[x] = worth
            if worth < threshold:
                highest = max(highest, worth)
                continue
            out[x] = True
            if used + cost[x] > budget:
                continue
            used += cost[x]
            taken[m] = x
            m += 1
            for j in range(borders[x], borders[x + 1]):
                brought[j] = min(counts[j], left[ids[j]])
                left[ids[j]] -= brought[j]
        if highest <= 0.0:
            break
        threshold = min(threshold, highest) * _SHRINK
    return m


def cover(documents: Documents, need: Int64, budget: int) -> tuple[Int64, Int32]:
    """Documents of at most `budget` tokens in all that bring many tokens to their number.

    need: int64[rows], occurrences that each token lacks. Gives the documents taken, in that order, and
    int32[p]: of each of `documents.counts`, how many were still needed when its document was taken.
    """
    left = need.astype(np.int64).copy()
    weight = 1 / np.sqrt(np.maximum(need, 1))
    near = 1 / np.sqrt(np.maximum(np.arange(int(need.max(initial=0)) + 1), 1))
    taken = np.empty(len(documents), np.int64)
    brought = np.zeros(len(documents.ids), np.int32)
    d = documents
    cost = np.maximum(d.cost, 1)
    m = _cover(  # type: ignore[no-untyped-call]
        cost, d.borders, d.ids, d.counts, left, weight, near, budget, taken, brought
    )
    return taken[:m], brought


def tally(batch_ids: Int32, borders: Int64, wanted: npt.NDArray[np.bool_]) -> tuple[Int64, Int32, Int32]:
    """What documents back to back hold of the wanted ids: (document, id, count), by document and id.

    >>> tally(np.array([4, 7, 4, 4], np.int32), np.array([0, 3, 4]), np.arange(8) == 4)
    (array([0, 1]), array([4, 4], dtype=int32), array([2, 1], dtype=int32))
    """
    rows = len(wanted)
    at = np.flatnonzero(wanted[batch_ids])
    document = np.searchsorted(borders, at, side="right") - 1
    pairs, counts = np.unique(document * rows + batch_ids[at], return_counts=True)
    return pairs // rows, (pairs % rows).astype(np.int32), counts.astype(np.int32)
