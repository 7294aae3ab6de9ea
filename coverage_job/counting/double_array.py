"""A vocabulary as a trie in one flat array: a double array, as of Aoe (1989)."""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from heapq import heappop, heappush

import numpy as np

from coverage_job.counting.compiled import compiled

UNIT_LABEL = np.uint64(31)  # a unit: base << 40 | (0x100 | byte) << 31 | id + 1
UNIT_BASE = np.uint64(40)
UNIT_ID = np.uint64(0x7FFFFFFF)


@compiled
def larger(array, least):
    """`array` with more room behind, at least doubled."""
    bigger = np.empty(max(2 * len(array), least), array.dtype)
    bigger[: len(array)] = array
    return bigger


@compiled
def build_trie(texts, bounds, ids, shares):
    """The double array (see `UNIT_LABEL`) of the sorted, distinct, non-empty entries
    texts[bounds[i]:bounds[i + 1]]. A node's children stand at its base ^ byte; no two nodes share a base.
    Of length 0 where it would be too large.

    shares: float64[entries], how much of text is which, roughly: what is often met is put near together, at
    the start."""
    size = np.int64(1 << 16)
    units = np.zeros(size, np.uint64)
    taken = np.zeros(size, np.uint8)  # as a base
    sums = np.zeros(len(ids) + 1)
    sums[1:] = np.cumsum(shares)
    # Nodes still to be laid out: their share (less is first), first and last entry, depth, place.
    heap = [(-sums[-1], np.int64(0), np.int64(len(ids)), np.int64(0), np.int64(0))]
    labels = np.empty(256, np.int64)
    begins = np.empty(257, np.int64)
    lowest = np.int64(256)  # nothing stands in the first block but the root: it is the leaves' base
    highest = lowest
    while len(heap) > 0:
        _, first, last, depth, node = heappop(heap)
        while first < last and bounds[first + 1] - bounds[first] == depth:
            first += 1  # the node's own entry
        n = 0
        for i in range(first, last):
            byte = np.int64(texts[bounds[i] + depth])
            if n == 0 or byte != labels[n - 1]:
                labels[n] = byte
                begins[n] = i
                n += 1
        begins[n] = last
        if n == 0:
            continue
        while lowest < size and units[lowest] != 0:
            lowest += 1
        # The first places that are free; where the children do not fit there soon, near the end.
        place = lowest
        base = np.int64(-1)
        while base < 0:
            if place > lowest + 64 and place < highest - 256:
                place = highest - 256
            if place + 512 > size:
                units = larger(units, 0)
                units[size:] = 0
                taken = larger(taken, 0)
                taken[size:] = 0
                size = len(units)
                if size > 1 << 24:
                    return units[:0]
            candidate = place ^ labels[0]
            if units[place] == 0 and taken[candidate] == 0:
                fits = True
                for k in range(1, n):
                    if units[candidate ^ labels[k]] != 0:
                        fits = False
                        break
                if fits:
                    base = candidate
            place += 1
        taken[base] = 1
        units[node] |= np.uint64(base) << UNIT_BASE
        for k in range(n):
            child = base ^ labels[k]
            highest = max(highest, child)
            entry = begins[k]
            value = np.uint64(0)
            if bounds[entry + 1] - bounds[entry] == depth + 1:
                value = np.uint64(ids[entry] + 1)
            units[child] = (np.uint64(labels[k] | 0x100) << UNIT_LABEL) | value
            last = begins[k + 1]
            heappush(heap, (sums[entry] - sums[last], entry, last, depth + 1, child))
    return units[: (highest | 255) + 1].copy()
