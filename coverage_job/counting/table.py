"""The table of chunks and what they encode to: open addressing, rows of 32 bytes, bytes compared."""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from typing import Any, NamedTuple

import numpy as np

from coverage_job.counting.compiled import compiled, get, get_from, inlined

LONG = 2048  # bytes past which a chunk is encoded each time, not kept


class Table(NamedTuple):
    """Chunks and what they encode to.

    rows: uint64[size, 4], a row: the first 16 bytes (or the hash and the place in `bytes` of a longer chunk),
        then ids << 48 | kind << 32 | length + 1 (0: empty), then the ids: one or two inline (low half
        first), else their place in `ids`.
    used: int64[3]: rows, bytes and ids in use.
    """

    rows: Any
    bytes: Any
    ids: Any
    used: Any


# Of a row's third word: the kind and the length, which a key must match.
TAG = np.uint64(0xFFFFFFFFFFFF)
_K1 = np.uint64(0x9E3779B97F4A7C15)
_K2 = np.uint64(0xC2B2AE3D27D4EB4F)
LOW_BYTES = np.array([(1 << (8 * n)) - 1 for n in range(8)] + [(1 << 64) - 1], np.uint64)


@inlined
def word(text, at):
    # The compiler makes one load of this.
    u = np.uint64
    return (
        u(get(text, at))
        | (u(get(text, at + 1)) << u(8))
        | (u(get(text, at + 2)) << u(16))
        | (u(get(text, at + 3)) << u(24))
        | (u(get(text, at + 4)) << u(32))
        | (u(get(text, at + 5)) << u(40))
        | (u(get(text, at + 6)) << u(48))
        | (u(get(text, at + 7)) << u(56))
    )


@inlined
def word_up_to(text, at, end):
    """Up to 8 bytes of text[at:end], never reading past the array."""
    n = end - at
    if at + 8 <= len(text):
        return word(text, at) & get(LOW_BYTES, min(max(n, 0), 8))
    w = np.uint64(0)
    for i in range(min(n, 8)):
        w |= np.uint64(text[at + i]) << np.uint64(8 * i)
    return w


@inlined
def _mix(a, b):
    h = (a ^ (b * _K2)) * _K1
    h ^= h >> np.uint64(32)
    h *= _K2
    return h ^ (h >> np.uint64(29))


@compiled
def hash_long(text, start, end):
    h = np.uint64(end - start)
    at = start
    while at + 8 <= end:
        h = _mix(h, word(text, at))
        at += 8
    if at < end:
        h = _mix(h, word_up_to(text, at, end))
    return h


@inlined
def _home(first, second, tag):
    return _mix(first ^ (tag * _K2), second)


@inlined
def keep(rows, kept, table_ids, used, row, first, second, tag, text, start, ids, at, n):
    """Fill an empty row with a chunk (its length in `tag`) and its ids[at : at + n]."""
    length = np.int64(tag & np.uint64(0xFFFFFFFF)) - 1
    rows[row, 0] = first
    if length > 16:
        rows[row, 1] = np.uint64(used[1])
        for i in range(length):
            kept[used[1] + i] = text[start + i]
        used[1] += length
    else:
        rows[row, 1] = second
    rows[row, 2] = tag | (np.uint64(n) << np.uint64(48))
    if n <= 2:
        value = np.uint64(0)
        for i in range(n):
            value |= np.uint64(ids[at + i]) << np.uint64(32 * i)
        rows[row, 3] = value
    else:
        rows[row, 3] = np.uint64(used[2])
        for i in range(n):
            table_ids[used[2] + i] = ids[at + i]
        used[2] += n
    used[0] += 1


@inlined
def look_up(rows, kept, first, second, tag, text, start):
    """The row of a chunk, or of the empty row where it belongs. kept: the table's bytes of longer chunks."""
    mask = np.int64(len(rows) - 1)
    length = np.int64(tag & np.uint64(0xFFFFFFFF)) - 1
    row = np.int64(_home(first, np.uint64(0) if length > 16 else second, tag)) & mask
    while True:
        found = get_from(rows, row, 2)
        if found == 0:
            return row
        if ((found & TAG) == tag) & (get_from(rows, row, 0) == first):
            if length <= 16:
                if get_from(rows, row, 1) == second:
                    return row
            else:
                place = np.int64(get_from(rows, row, 1))
                same = True
                for i in range(length):
                    if get(kept, place + i) != get(text, start + i):
                        same = False
                        break
                if same:
                    return row
        row = (row + 1) & mask


@inlined
def key_of(text, start, end, kind):
    tag = np.uint64(end - start + 1) | (np.uint64(kind) << np.uint64(32))
    if end - start > 16:
        return hash_long(text, start, end), np.uint64(0), tag
    first = word_up_to(text, start, end)
    second = word_up_to(text, start + 8, end) if end - start > 8 else np.uint64(0)
    return first, second, tag


@compiled
def preload(table, texts, ends, ids, kind):
    """Keep texts[ends[i]:ends[i + 1]] with the one id ids[i]."""
    for i in range(len(ids)):
        start, end = ends[i], ends[i + 1]
        if end - start > LONG or end == start:
            continue
        first, second, tag = key_of(texts, start, end, kind)
        row = look_up(table.rows, table.bytes, first, second, tag, texts, start)
        if table.rows[row, 2] == 0:
            keep(
                table.rows,
                table.bytes,
                table.ids,
                table.used,
                row,
                first,
                second,
                tag,
                texts,
                start,
                ids,
                i,
                1,
            )


@compiled
def regrow(table, bigger):
    """Copy all rows into the empty rows of a larger table that shares the rest."""
    old, new = table.rows, bigger.rows
    mask = np.int64(len(new) - 1)
    for i in range(len(old)):
        tag = old[i, 2] & TAG
        if tag == 0:
            continue
        length = np.int64(tag & np.uint64(0xFFFFFFFF)) - 1
        row = np.int64(_home(old[i, 0], np.uint64(0) if length > 16 else old[i, 1], tag)) & mask
        while new[row, 2] != 0:
            row = (row + 1) & mask
        for j in range(4):
            new[row, j] = old[i, j]
