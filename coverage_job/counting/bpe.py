"""Byte-pair merging, compiled: of two neighbours the pair of lowest rank is merged first, leftmost first.

That order is the definition of the tokenizer's own merging, whatever data structure it uses, so the
result is the same. Short texts scan all pairs for the lowest rank; long ones keep the ranks in a tree
of minima, which takes time n log n and about 9 bytes of memory per symbol.
"""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
import numpy as np
import numpy.typing as npt

from coverage_job.corpus.documents import Int32
from coverage_job.counting.compiled import compiled, inlined

EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
NONE = np.int32(0x7FFFFFFF)  # the rank of what is no pair
MAX_IDS = 1 << 20
MAX_MERGES = 1 << 24
_FAN = 16
SHORT = 128  # symbols up to which pairs are scanned


@inlined
def _slot(key, mask):
    h = key * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((h ^ (h >> np.uint64(29))) & mask)


@compiled
def _index(merges, table):
    mask = np.uint64(len(table) - 1)
    for rank in range(len(merges)):
        key = (np.uint64(merges[rank, 0]) << np.uint64(20)) | np.uint64(merges[rank, 1])
        at = _slot(key, mask)
        while table[at] != EMPTY and table[at] >> np.uint64(24) != key:
            at = (at + 1) & np.int64(mask)
        table[at] = (key << np.uint64(24)) | np.uint64(rank)


def index_merges(merges: Int32) -> npt.NDArray[np.uint64]:
    """The pairs of `merges` (int32[m, 3]: left, right, product; the row is the rank) as an open hash table of
    left << 44 | right << 24 | rank, EMPTY where none. A pair that stands twice has its last rank."""
    table = np.full(max(16, 1 << (2 * len(merges)).bit_length()), EMPTY, np.uint64)
    _index(merges, table)
    return table


@inlined
def _rank(table, left, right):
    """The rank of a pair, or NONE."""
    mask = np.uint64(len(table) - 1)
    key = (np.uint64(left) << np.uint64(20)) | np.uint64(right)
    at = _slot(key, mask)
    rank = NONE
    while True:
        entry = table[at]
        if entry >> np.uint64(24) == key:
            rank = np.int32(entry & np.uint64(0xFFFFFF))
            break
        if entry == EMPTY:
            break
        at = (at + 1) & np.int64(mask)
    return rank


@compiled
def merge_short(symbols, n, ranks, table, products):
    """Merge symbols[:n] in place; returns how many are left. ranks: scratch int32[n]. products: int32 by
    rank."""
    for i in range(n - 1):
        ranks[i] = _rank(table, symbols[i], symbols[i + 1])
    while n > 1:
        best = NONE
        at = -1
        for i in range(n - 1):
            if ranks[i] < best:
                best = ranks[i]
                at = i
        if at < 0:
            break
        symbols[at] = products[best]
        n -= 1
        for i in range(at + 1, n):
            symbols[i] = symbols[i + 1]
            ranks[i - 1] = ranks[i]
        if at > 0:
            ranks[at - 1] = _rank(table, symbols[at - 1], symbols[at])
        if at < n - 1:
            ranks[at] = _rank(table, symbols[at], symbols[at + 1])
    return n


@compiled
def _update(tree, offsets, depth, position):
    for level in range(1, depth):
        parent = position // _FAN
        first = offsets[level - 1] + parent * _FAN
        low = tree[first]
        for i in range(first + 1, first + _FAN):
            low = min(low, tree[i])
        if tree[offsets[level] + parent] == low:
            return
        tree[offsets[level] + parent] = low
        position = parent


@compiled
def merge_long(symbols, n, widths, table, products):
    """As merge_short, for any n. widths: int32 per id, the symbols that a token was merged from.

    A token begins at the place of its first symbol; its last place holds the complement of its width
    (where the two differ), so neighbours are found both ways without links.
    """
    # Level 0 of the tree holds the rank of the pair that begins at a place, each further level the
    # minima of 16 below it; padded so that every parent has 16.
    offsets = np.zeros(16, np.int64)
    depth = 1
    size = (n + _FAN - 1) // _FAN * _FAN
    total = size
    while size > _FAN:
        offsets[depth] = total
        size = (size // _FAN + _FAN - 1) // _FAN * _FAN
        total += size
        depth += 1
    tree = np.full(total, NONE, np.int32)
    for i in range(n - 1):
        tree[i] = _rank(table, symbols[i], symbols[i + 1])
    for level in range(1, depth):
        below = offsets[level - 1]
        count = (offsets[level] - below) // _FAN
        for i in range(count):
            low = NONE
            for j in range(below + i * _FAN, below + (i + 1) * _FAN):
                low = min(low, tree[j])
            tree[offsets[level] + i] = low
    while True:
        at = 0
        for level in range(depth - 1, -1, -1):
            first = offsets[level] + at * _FAN
            low = first
            for j in range(first + 1, first + _FAN):
                if tree[j] < tree[low]:
                    low = j
            at = low - offsets[level]
            if tree[low] == NONE:
                at = -1
                break
        if at < 0:
            break
        right = at + widths[symbols[at]]
        product = products[tree[at]]
        symbols[at] = product
        width = widths[product]
        symbols[at + width - 1] = ~np.int32(width)
        tree[right] = NONE
        _update(tree, offsets, depth, right)
        after = at + width
        tree[at] = _rank(table, product, symbols[after]) if after < n else NONE
        _update(tree, offsets, depth, at)
        if at > 0:
            last = symbols[at - 1]
            before = at - 1 if last >= 0 else at - np.int64(~last)
            tree[before] = _rank(table, symbols[before], product)
            _update(tree, offsets, depth, before)
    count = 0
    at = 0
    while at < n:
        symbol = symbols[at]
        at += widths[symbol]
        symbols[count] = symbol
        count += 1
    return count
