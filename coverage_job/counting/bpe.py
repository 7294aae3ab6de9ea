"""Byte-pair merging, compiled: of two neighbours the pair of lowest rank is merged first, leftmost first.

That order is the definition of the tokenizer's own merging, whatever data structure it uses, so the
result is the same. Short texts scan all pairs for the lowest rank; long ones keep the ranks in a tree
of minima, which takes time n log n and about 9 bytes of memory per symbol.
"""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
import numpy as np

from coverage_job.corpus.documents import Int32
from coverage_job.counting.compiled import compiled, inlined

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

    Returns keys uint64[size] (left << 32 | right, all ones where empty) and int32[size, 2] (rank, product). A
    pair that stands twice has its last rank.
    """
    size = 16
    while size < 2 * len(merges):
        size *= 2
    keys = np.full(size, np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64)
    values = np.zeros((size, 2), np.int32)
    mask = np.uint64(size - 1)
    for rank in range(len(merges)):
        key = (np.uint64(merges[rank, 0]) << np.uint64(32)) | np.uint64(merges[rank, 1])
        at = _slot(key, mask)
        while keys[at] != np.uint64(0xFFFFFFFFFFFFFFFF) and keys[at] != key:
            at = (at + 1) & (size - 1)
        keys[at] = key
        values[at, 0] = rank
        values[at, 1] = merges[rank, 2]
    return keys, values


@inlined
def _find(keys, values, left, right):
    """(rank, product) of a pair; (NONE, 0) where it is none."""
    mask = np.uint64(len(keys) - 1)
    key = (np.uint64(left) << np.uint64(32)) | np.uint64(right)
    at = _slot(key, mask)
    rank = NONE
    product = np.int32(0)
    while True:
        found = keys[at]
        if found == key:
            rank = values[at, 0]
            product = values[at, 1]
            break
        if found == np.uint64(0xFFFFFFFFFFFFFFFF):
            break
        at = (at + 1) & np.int64(mask)
    return rank, product


@compiled
def merge_short(symbols, n, ranks, products, keys, values):
    """Merge symbols[:n] in place; returns how many are left. ranks, products: scratch int32[n]."""
    for i in range(n - 1):
        ranks[i], products[i] = _find(keys, values, symbols[i], symbols[i + 1])
    while n > 1:
        best = NONE
        at = -1
        for i in range(n - 1):
            if ranks[i] < best:
                best = ranks[i]
                at = i
        if at < 0:
            break
        symbols[at] = products[at]
        n -= 1
        for i in range(at + 1, n):
            symbols[i] = symbols[i + 1]
        for i in range(at + 1, n - 1):
            ranks[i] = ranks[i + 1]
            products[i] = products[i + 1]
        if at > 0:
            ranks[at - 1], products[at - 1] = _find(keys, values, symbols[at - 1], symbols[at])
        if at < n - 1:
            ranks[at], products[at] = _find(keys, values, symbols[at], symbols[at + 1])
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
def merge_long(symbols, n, widths, keys, values):
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
        tree[i] = _find(keys, values, symbols[i], symbols[i + 1])[0]
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
        product = _find(keys, values, symbols[at], symbols[right])[1]
        symbols[at] = product
        width = widths[product]
        symbols[at + width - 1] = ~np.int32(width)
        tree[right] = NONE
        _update(tree, offsets, depth, right)
        after = at + width
        tree[at] = _find(keys, values, product, symbols[after])[0] if after < n else NONE
        _update(tree, offsets, depth, at)
        if at > 0:
            last = symbols[at - 1]
            before = at - 1 if last >= 0 else at - np.int64(~last)
            tree[before] = _find(keys, values, symbols[before], product)[0]
            _update(tree, offsets, depth, before)
    count = 0
    at = 0
    while at < n:
        symbol = symbols[at]
        at += widths[symbol]
        symbols[count] = symbol
        count += 1
    return count


def merge(symbols: Int32, widths: Int32, keys: object, values: object) -> Int32:
    """`symbols` merged, by either way: what tests compare. Changes `symbols`."""
    n = len(symbols)
    if n <= SHORT:
        left = merge_short(symbols, n, np.empty(n, np.int32), np.empty(n, np.int32), keys, values)
    else:
        left = merge_long(symbols, n, widths, keys, values)
    return symbols[:left]
