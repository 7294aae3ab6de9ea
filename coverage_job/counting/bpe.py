"""Byte-pair merging, compiled: of two neighbours the pair of lowest rank is merged first, leftmost first.

That order is the definition of the tokenizer's own merging, whatever data structure it uses, so the
result is the same. Short texts scan all pairs for the lowest rank; long ones keep the ranks in a tree
of minima, which takes time n log n and about 9 bytes of memory per symbol.
"""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
import numpy as np

from coverage_job.counting.compiled import compiled, inlined

EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
NONE = np.int32(0x7FFFFFFF)
_FAN = 16
SHORT = 128  # symbols up to which pairs are scanned


@inlined
def _slot(key, mask):
    h = key * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((h ^ (h >> np.uint64(29))) & mask)


@compiled
def index_merges(merges):
    """The pairs of `merges` (int32[m, 3]: left, right, product; the row is the rank) as an open hash table.

    Returns uint64[size, 2], a row: left << 32 | right (all ones where empty), rank << 32 | product. A pair that
    stands twice has its last rank.
    """
    size = 16
    while size < 2 * len(merges):
        size *= 2
    table = np.full((size, 2), EMPTY, np.uint64)
    mask = np.uint64(size - 1)
    for rank in range(len(merges)):
        key = (np.uint64(merges[rank, 0]) << np.uint64(32)) | np.uint64(merges[rank, 1])
        at = _slot(key, mask)
        while table[at, 0] != EMPTY and table[at, 0] != key:
            at = (at + 1) & (size - 1)
        table[at, 0] = key
        table[at, 1] = (np.uint64(rank) << np.uint64(32)) | np.uint64(merges[rank, 2])
    return table


@inlined
def _find(table, left, right):
    """rank << 32 | product of a pair; EMPTY, which is above all ranks, where it is none."""
    mask = np.uint64(len(table) - 1)
    key = (np.uint64(left) << np.uint64(32)) | np.uint64(right)
    at = _slot(key, mask)
    while table[at, 0] != key and table[at, 0] != EMPTY:
        at = (at + 1) & np.int64(mask)
    return table[at, 1]


@inlined
def _rank(found):
    return NONE if found == EMPTY else np.int32(found >> np.uint64(32))


@compiled
def merge_short(symbols, n, pairs, table):
    """Merge symbols[:n] in place; returns how many are left. pairs: scratch uint64[n]."""
    for i in range(n - 1):
        pairs[i] = _find(table, symbols[i], symbols[i + 1])
    while n > 1:
        best = EMPTY
        at = -1
        for i in range(n - 1):
            # One rank has one pair, so the lowest value is the lowest rank; the first of equals is the leftmost.
            if pairs[i] < best:
                best = pairs[i]
                at = i
        if at < 0:
            break
        symbols[at] = np.int32(best & np.uint64(0xFFFFFFFF))
        n -= 1
        for i in range(at + 1, n):
            symbols[i] = symbols[i + 1]
            pairs[i - 1] = pairs[i]
        if at > 0:
            pairs[at - 1] = _find(table, symbols[at - 1], symbols[at])
        if at < n - 1:
            pairs[at] = _find(table, symbols[at], symbols[at + 1])
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
def merge_long(symbols, n, widths, table):
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
        tree[i] = _rank(_find(table, symbols[i], symbols[i + 1]))
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
        product = np.int32(_find(table, symbols[at], symbols[right]) & np.uint64(0xFFFFFFFF))
        symbols[at] = product
        width = widths[product]
        symbols[at + width - 1] = ~np.int32(width)
        tree[right] = NONE
        _update(tree, offsets, depth, right)
        after = at + width
        tree[at] = _rank(_find(table, product, symbols[after])) if after < n else NONE
        _update(tree, offsets, depth, at)
        if at > 0:
            last = symbols[at - 1]
            before = at - 1 if last >= 0 else at - np.int64(~last)
            tree[before] = _rank(_find(table, symbols[before], product))
            _update(tree, offsets, depth, before)
    count = 0
    at = 0
    while at < n:
        symbol = symbols[at]
        at += widths[symbol]
        symbols[count] = symbol
        count += 1
    return count
