"""Byte-pair merging, compiled: of two neighbours the pair of lowest rank is merged first, leftmost first.

That order is the definition of the tokenizer's own merging, whatever data structure it uses, so the
result is the same. Short texts scan all pairs for the lowest rank, many texts side by side; long ones keep
the ranks in a tree of minima, which takes time n log n and about 9 bytes of memory per symbol.
"""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coverage_job.corpus.documents import Int32
from coverage_job.counting.compiled import compiled, get, inlined, put

EMPTY = np.uint64(0xFFFFFFFFFFFFFFFF)
NONE = np.int32(0x7FFFFFFF)  # the rank of what is no pair
MAX_IDS = 1 << 20
MAX_MERGES = 1 << 24
_FAN = 16
SHORT = 128  # symbols up to which pairs are scanned
LANES = 64  # chunks encoded side by side
# Symbols handled in one go; as much room follows a chunk. That costs less than a loop whose end, another for
# each chunk, the processor guesses wrongly.
BLOCK = 8
FIRST = 512  # initial symbols whose pairs have a table of their own, the number 0 among them
UNKNOWN = np.int32(-1)


@inlined
def _homes(key, shift):
    """The two places where a pair may stand."""
    h = key * np.uint64(0x9E3779B97F4A7C15)
    other = (h ^ (h >> np.uint64(32))) * np.uint64(0xC2B2AE3D27D4EB4F)
    return np.int64(h >> shift), np.int64(other >> shift)


@inlined
def _key(left, right):
    return (np.uint64(left) << np.uint64(20)) | np.uint64(right)


@compiled
def _index(merges, table, shift):
    """Fill the table; False where it is too small: a pair that finds its place taken moves the other on to
    that one's second place, and so on; after a thousand moves no end is to be seen."""
    for rank in range(len(merges)):
        key = _key(merges[rank, 0], merges[rank, 1])
        entry = (key << np.uint64(24)) | np.uint64(rank)
        at, other = _homes(key, shift)
        if table[other] >> np.uint64(24) == key:
            at = other
        if table[at] >> np.uint64(24) == key:
            table[at] = entry
            continue
        for _ in range(1000):
            entry, table[at] = table[at], entry
            if entry == EMPTY:
                break
            first, second = _homes(entry >> np.uint64(24), shift)
            at = second if at == first else first
        if entry != EMPTY:
            return False
    return True


def index_pairs(merges: Int32) -> npt.NDArray[np.uint64]:
    """The pairs of `merges` (int32[m, 3]: left, right, product; the row is the rank) as a table of
    left << 44 | right << 24 | rank, EMPTY where none. A pair that stands twice has its last rank. Each stands
    in one of two places (R. Pagh and F. Rodler, Cuckoo Hashing, 2004): looked up without a branch."""
    size = max(4, (2 * len(merges)).bit_length())
    while True:
        table = np.full(1 << size, EMPTY, np.uint64)
        if _index(merges, table, np.uint64(64 - size)):
            return table
        size += 1


class Merges(NamedTuple):
    """A tokenizer's merges, laid out for look-ups.

    pairs: see index_pairs. products: int32 by rank. numbers: int32 by id, the number of a symbol that texts
    begin as, where it is one of the FIRST of most pairs, else 0. first_ranks: int32[FIRST * FIRST], of the
    pairs of two numbers; UNKNOWN with 0. It stays near the processor, for which `pairs` is too large.
    """

    pairs: Any
    products: Any
    numbers: Any
    first_ranks: Any


def index_merges(merges: Int32, symbols: Int32, n_ids: int) -> Merges:
    """merges: as of index_pairs, of ids under n_ids. symbols: what texts begin as, before any merge."""
    begins = np.zeros(n_ids, bool)
    begins[symbols[symbols >= 0]] = True
    ranks = np.flatnonzero(begins[merges[:, 0]] & begins[merges[:, 1]])
    pairs = merges[ranks, :2]
    uses = np.where(begins, np.bincount(pairs.reshape(-1), minlength=n_ids), -1)
    chosen = np.argsort(-uses, kind="stable")[: min(FIRST - 1, int(begins.sum()))]
    numbers = np.zeros(n_ids, np.int32)
    numbers[chosen] = np.arange(1, len(chosen) + 1)
    first_ranks = np.full((FIRST, FIRST), NONE, np.int32)
    # In order, so that the last rank of a pair stands.
    first_ranks[numbers[pairs[:, 0]], numbers[pairs[:, 1]]] = ranks
    first_ranks[0] = first_ranks[:, 0] = UNKNOWN
    return Merges(index_pairs(merges), np.ascontiguousarray(merges[:, 2]), numbers, first_ranks.reshape(-1))


@inlined
def _shift_of(table):
    """What takes a hash to a place in a table of a power of two places."""
    shift = np.uint64(64)
    size = len(table)
    while size > 1:
        size >>= 1
        shift -= np.uint64(1)
    return shift


@inlined
def _rank(table, shift, left, right):
    """The rank of a pair, or NONE."""
    key = _key(left, right)
    first, second = _homes(key, shift)
    one, two = get(table, first), get(table, second)
    entry = one if one >> np.uint64(24) == key else two
    return np.int32(entry & np.uint64(0xFFFFFF)) if entry >> np.uint64(24) == key else NONE


@compiled
def find_used(texts, ends, single, table, products, used):
    """Mark the merges that can ever be made: used[rank] of the last merge of every text[ends[i]:ends[i + 1]]
    that becomes one token.

    When two neighbouring symbols are merged, no merge has crossed their borders yet, so those inside were
    the ones that the text of the two alone undergoes; of all pairs with one product only that text's own
    last merge is ever made.
    """
    shift = _shift_of(table)
    for i in range(len(ends) - 1):
        n = ends[i + 1] - ends[i]
        symbols = np.empty(n, np.int32)
        for k in range(n):
            symbols[k] = single[texts[ends[i] + k]]
        last = NONE
        while n > 1:
            best, at = NONE, 0
            for k in range(n - 1):
                rank = _rank(table, shift, symbols[k], symbols[k + 1])
                if rank < best:
                    best, at = rank, k
            if best == NONE:
                break
            last = best
            symbols[at] = products[best]
            n -= 1
            for k in range(at + 1, n):
                symbols[k] = symbols[k + 1]
        if n == 1 and last != NONE:
            used[last] = True


class Lanes(NamedTuple):
    """Room to encode up to LANES chunks side by side.

    Chunk chunks[j] is symbols[begins[j]:][:counts[j]]; one follows the other.
    """

    chunks: Any  # int64[LANES]
    begins: Any  # int64[LANES]
    counts: Any  # int64[LANES]
    symbols: Any  # int32[LANES * (most + BLOCK)]
    ranks: Any  # as many, of the pair that begins at a symbol
    active: Any  # int64[LANES], the j of those that may still have a pair
    asked: Any  # int64[LANES * SHORT], places of pairs to be looked up


def new_lanes(most: int) -> Lanes:
    """most: symbols of a chunk."""
    int64s = np.zeros((4, LANES), np.int64)
    return Lanes(
        chunks=int64s[0],
        begins=int64s[1],
        counts=int64s[2],
        symbols=np.empty(LANES * (most + BLOCK), np.int32),
        ranks=np.empty(LANES * (most + BLOCK), np.int32),
        active=int64s[3],
        asked=np.empty(LANES * SHORT, np.int64),
    )


@compiled
def merge_together(lanes, n_active, merges):
    """Merge the chunks active[:n_active] of `lanes`, of 1 to SHORT symbols each, in place, a step of each in
    turn."""
    table, products = merges.pairs, merges.products
    numbers, first_ranks = merges.numbers, merges.first_ranks
    symbols, begins, counts = lanes.symbols, lanes.begins, lanes.counts
    ranks, asked, active = lanes.ranks, lanes.asked, lanes.active
    shift = _shift_of(table)
    n_asked = 0
    for k in range(n_active):
        j = active[k]
        last = begins[j] + counts[j] - 1
        row = np.int64(get(numbers, get(symbols, begins[j]))) * FIRST
        for i in range(begins[j], last):
            right = np.int64(get(numbers, get(symbols, i + 1)))
            rank = get(first_ranks, row + right)
            put(ranks, i, rank)
            put(asked, n_asked, i)
            n_asked += np.int64(rank == UNKNOWN)
            row = right * FIRST
        for i in range(last, last + BLOCK):
            put(ranks, i, NONE)
    while n_active > 0:
        # All at once: each is likely a cache miss, and these then overlap.
        for q in range(n_asked):
            at = get(asked, q)
            put(ranks, at, _rank(table, shift, get(symbols, at), get(symbols, at + 1)))
        n_asked = still = 0
        for k in range(n_active):
            j = get(active, k)
            begin, n = get(begins, j), get(counts, j)
            last = begin + n - 1
            best, at = NONE, begin
            for i in range(begin, last, BLOCK):
                for d in range(BLOCK):
                    rank = get(ranks, i + d)
                    lower = rank < best
                    best = rank if lower else best
                    at = i + d if lower else at
            if best == NONE:
                continue
            put(symbols, at, get(products, best))
            for i in range(at + 1, last + 1, BLOCK):
                for d in range(BLOCK):
                    put(symbols, i + d, get(symbols, i + d + 1))
                    put(ranks, i + d - 1, get(ranks, i + d))
            put(counts, j, n - 1)
            put(asked, n_asked, at - 1)
            n_asked += np.int64(at > begin)
            put(asked, n_asked, at)
            n_asked += np.int64(at < last - 1)
            put(active, still, j)
            still += 1
        n_active = still


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
def merge_long(symbols, n, widths, merges):
    """Merge symbols[:n] in place; returns how many are left. widths: int32 per id, the symbols that a token
    was merged from.

    A token begins at the place of its first symbol; its last place holds the complement of its width
    (where the two differ), so neighbours are found both ways without links.
    """
    # Level 0 of the tree holds the rank of the pair that begins at a place, each further level the
    # minima of 16 below it; padded so that every parent has 16.
    table, products = merges.pairs, merges.products
    shift = _shift_of(table)
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
        tree[i] = _rank(table, shift, symbols[i], symbols[i + 1])
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
        tree[at] = _rank(table, shift, product, symbols[after]) if after < n else NONE
        _update(tree, offsets, depth, at)
        if at > 0:
            last = symbols[at - 1]
            before = at - 1 if last >= 0 else at - np.int64(~last)
            tree[before] = _rank(table, shift, symbols[before], product)
            _update(tree, offsets, depth, before)
    count = 0
    at = 0
    while at < n:
        symbol = symbols[at]
        at += widths[symbol]
        symbols[count] = symbol
        count += 1
    return count
