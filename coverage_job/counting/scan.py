"""The compiled loop: text -> chunks -> ids.

A batch is read once, chunk by chunk; a chunk is looked up in a table by its bytes, and what is not there
is encoded and kept. Chunks are handled a few hundred at a time, so that the look-ups of one group, each
likely a cache miss, overlap.
"""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from typing import Any, NamedTuple

import numpy as np

from coverage_job.counting.bpe import SHORT, merge_long, merge_short
from coverage_job.counting.compiled import compiled, inlined

GROUP = 512  # chunks looked up together
LONG = 2048  # bytes past which a chunk is encoded each time, not kept
# ASCII text without a space is rarely worth cutting by pairs, except where it goes on.
ASCII_RUN = 32

# How a chunk was cut: what it encodes to may depend on it.
PART, WHOLE, FIRST = 0, 1, 2

# Why the loop came back.
DONE, NO_ROOM, TABLE_FULL, NEEDS_IDS = 0, 1, 2, 3


class Model(NamedTuple):
    """What is known of the tokenizer (see cuts.py), laid out for the loop."""

    classes: Any  # uint8[0x110000]
    steps: Any  # int32[states of all levels * (classes + 1)], values are row offsets << 1 | match
    starts: Any  # int64[levels], the offset of each level's start state
    width: int  # classes + 1
    pairs: Any  # uint8[bits / 8]
    pair_shift: int
    groups: Any  # uint32[0x110000]
    ascii_run: int
    whole_differs: bool
    single: Any  # int32[256]
    widths: Any  # int32[rows]
    merge_keys: Any
    merge_values: Any


class Table(NamedTuple):
    """Chunks and what they encode to.

    rows: uint64[size, 4], a row: the first 16 bytes (or the hash and the place in `bytes` of a longer chunk),
        then ids << 48 | kind << 32 | length + 1 (0: empty), then the ids: one or two inline (low half first), else
        their place in `ids`.
    used: int64[3]: rows, bytes and ids in use.
    """

    rows: Any
    bytes: Any
    ids: Any
    used: Any


class Batch(NamedTuple):
    """text uint8[n]; pieces int64[p + 1]; skip uint8[p], pieces left to the reference; matches int64[m, 4] of
    added tokens (start, end, id, piece), in order; spans int64[s, 2]."""

    text: Any
    pieces: Any
    skip: Any
    matches: Any
    spans: Any
    has_spans: bool


class Output(NamedTuple):
    """ids int32[room]; mask uint8[room]; piece_ends int64[p]: tokens up to the piece's end, of all outputs; seams
    int32[p]."""

    ids: Any
    mask: Any
    piece_ends: Any
    seams: Any


# Positions in `state`, an int64 array that lives from call to call.
PIECE, AT, SEGMENT_END, TOKEN_START, TOKEN_END, MATCH, SPAN, TOTAL, LEVELS = 0, 1, 2, 3, 4, 5, 6, 7, 8
STATE_SIZE = 64

_K1 = np.uint64(0x9E3779B97F4A7C15)
_K2 = np.uint64(0xC2B2AE3D27D4EB4F)
_HIGH = np.uint64(0x8080808080808080)
_LOW_BYTES = np.array([(1 << (8 * n)) - 1 for n in range(8)] + [(1 << 64) - 1], np.uint64)


@inlined
def _word(text, at):
    # The compiler makes one load of this.
    u = np.uint64
    return (
        u(text[at])
        | (u(text[at + 1]) << u(8))
        | (u(text[at + 2]) << u(16))
        | (u(text[at + 3]) << u(24))
        | (u(text[at + 4]) << u(32))
        | (u(text[at + 5]) << u(40))
        | (u(text[at + 6]) << u(48))
        | (u(text[at + 7]) << u(56))
    )


@inlined
def _word_up_to(text, at, end):
    """Up to 8 bytes of text[at:end], never reading past the array."""
    n = end - at
    if at + 8 <= len(text):
        w = _word(text, at)
        return w if n >= 8 else w & _LOW_BYTES[n]
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
def _hash_long(text, start, end):
    h = np.uint64(end - start)
    at = start
    while at + 8 <= end:
        h = _mix(h, _word(text, at))
        at += 8
    if at < end:
        h = _mix(h, _word_up_to(text, at, end))
    return h


@inlined
def _decode(text, at):
    """(code point, bytes) of the character at `at`, in valid UTF-8."""
    b = np.int64(text[at])
    if b < 0x80:
        return b, 1
    if b < 0xE0:
        return ((b & 0x1F) << 6) | (np.int64(text[at + 1]) & 0x3F), 2
    if b < 0xF0:
        return ((b & 0x0F) << 12) | ((np.int64(text[at + 1]) & 0x3F) << 6) | (
            np.int64(text[at + 2]) & 0x3F
        ), 3
    return (
        ((b & 0x07) << 18)
        | ((np.int64(text[at + 1]) & 0x3F) << 12)
        | ((np.int64(text[at + 2]) & 0x3F) << 6)
        | (np.int64(text[at + 3]) & 0x3F)
    ), 4


@inlined
def _match(model, level, text, at, limit):
    """The end of the level's match that begins at `at`, or -1."""
    state = model.starts[level]
    end = np.int64(-1)
    while at < limit:
        point, size = _decode(text, at)
        step = np.int64(model.steps[state + model.classes[point]])
        if step & 1:
            end = at
        state = step >> 1
        if state == 0:
            return end
        at += size
    if model.steps[state + model.width - 1] & 1:
        end = at
    return end


@inlined
def _has(model, left, right):
    key = ((np.uint64(left) << np.uint64(21)) | np.uint64(right)) * _K1
    bit = np.int64(key >> np.uint64(model.pair_shift))
    return (model.pairs[bit >> 3] >> (bit & 7)) & 1 != 0


@inlined
def _spanned(model, left, right):
    """Whether a merge's product may span the two characters."""
    if _has(model, left, right):
        return True
    by_left = np.int64(model.groups[left] >> np.uint32(16))
    by_right = np.int64(model.groups[right] & np.uint32(0xFFFF))
    if by_left and _has(model, 0x110000 + by_left, right):
        return True
    if by_right:
        if _has(model, left, 0x110000 + by_right):
            return True
        if by_left and _has(model, 0x110000 + by_left, 0x110000 + by_right):
            return True
    return False


@compiled
def _chunk_end(model, text, start, token_end):
    """The first place after `start` where the pre-token may be cut, or its end."""
    left, size = _decode(text, start)
    at = start + size
    while at < token_end:
        right, size = _decode(text, at)
        if ((left | right) >= 0x80 or at - start >= model.ascii_run) and not _spanned(model, left, right):
            return at
        left = right
        at += size
    return token_end


@inlined
def _next_token(model, text, state):
    """Sets TOKEN_START and TOKEN_END to the pre-token that begins at AT."""
    n_levels = len(model.starts)
    at = state[AT]
    state[TOKEN_START] = at
    if n_levels == 1:
        # No end of an outer level to watch; what the pattern does not match is a pre-token up to the next match.
        limit = state[SEGMENT_END]
        end = _match(model, 0, text, at, limit)
        if end < 0:
            end = at + _decode(text, at)[1]
            while end < limit and _match(model, 0, text, end, limit) < 0:
                end += _decode(text, end)[1]
        state[TOKEN_END] = end
        return
    # Level k keeps: the end of its piece, and the match that follows where the piece is a gap.
    limit = state[SEGMENT_END]
    for level in range(n_levels):
        base = LEVELS + 3 * level
        if state[base] <= at:
            if state[base + 1] == at:
                state[base] = state[base + 2]
            else:
                end = _match(model, level, text, at, limit)
                if end < 0:
                    gap = at + _decode(text, at)[1]
                    while gap < limit:
                        end = _match(model, level, text, gap, limit)
                        if end >= 0:
                            break
                        gap += _decode(text, gap)[1]
                    state[base + 1] = gap
                    state[base + 2] = end
                    end = gap
                state[base] = end
            for inner in range(level + 1, n_levels):
                state[LEVELS + 3 * inner] = -1
                state[LEVELS + 3 * inner + 1] = -1
        limit = state[base]
    state[TOKEN_END] = limit


@inlined
def _next_segment(batch, state):
    """Moves on to where text or an added token follows. Returns the added token's match, or -1; -2 at the end of
    a piece, -3 at the end of the batch."""
    piece = state[PIECE]
    if piece >= len(batch.pieces) - 1:
        return -3
    end = batch.pieces[piece + 1]
    if state[AT] >= end or batch.skip[piece] != 0:
        return -2
    m = state[MATCH]
    while m < len(batch.matches) and batch.matches[m, 3] < piece:
        m += 1
    state[MATCH] = m
    if m < len(batch.matches) and batch.matches[m, 3] == piece:
        if batch.matches[m, 0] == state[AT]:
            return m
        end = batch.matches[m, 0]
    state[SEGMENT_END] = end
    state[TOKEN_END] = state[AT]
    for k in range(LEVELS, STATE_SIZE):
        state[k] = -1
    return -1


@inlined
def _home(first, second, tag):
    return _mix(first ^ (tag * _K2), second)


@compiled
def keep(table, row, first, second, tag, text, start, ids, n):
    """Fill an empty row with a chunk (its length in `tag`) and its ids."""
    rows, used = table.rows, table.used
    length = np.int64(tag & np.uint64(0xFFFFFFFF)) - 1
    rows[row, 0] = first
    if length > 16:
        rows[row, 1] = np.uint64(used[1])
        for i in range(length):
            table.bytes[used[1] + i] = text[start + i]
        used[1] += length
    else:
        rows[row, 1] = second
    rows[row, 2] = tag | (np.uint64(n) << np.uint64(48))
    if n <= 2:
        value = np.uint64(0)
        for i in range(n):
            value |= np.uint64(ids[i]) << np.uint64(32 * i)
        rows[row, 3] = value
    else:
        rows[row, 3] = np.uint64(used[2])
        for i in range(n):
            table.ids[used[2] + i] = ids[i]
        used[2] += n
    used[0] += 1


@inlined
def _look_up(table, first, second, tag, text, start):
    """The row of a chunk, or of the empty row where it belongs."""
    rows = table.rows
    mask = np.int64(len(rows) - 1)
    length = np.int64(tag & np.uint64(0xFFFFFFFF)) - 1
    row = np.int64(_home(first, np.uint64(0) if length > 16 else second, tag)) & mask
    while True:
        found = rows[row, 2]
        if found == 0:
            return row
        if (found & np.uint64(0xFFFFFFFFFFFF)) == tag and rows[row, 0] == first:
            if length <= 16:
                if rows[row, 1] == second:
                    return row
            else:
                place = np.int64(rows[row, 1])
                same = True
                for i in range(length):
                    if table.bytes[place + i] != text[start + i]:
                        same = False
                        break
                if same:
                    return row
        row = (row + 1) & mask


@inlined
def _key(text, start, end, kind):
    tag = np.uint64(end - start + 1) | (np.uint64(kind) << np.uint64(32))
    if end - start > 16:
        return _hash_long(text, start, end), np.uint64(0), tag
    first = _word_up_to(text, start, end)
    second = _word_up_to(text, start + 8, end) if end - start > 8 else np.uint64(0)
    return first, second, tag


@compiled
def preload(table, texts, ends, ids, kind):
    """Keep texts[ends[i]:ends[i + 1]] with the one id ids[i]."""
    for i in range(len(ids)):
        start, end = ends[i], ends[i + 1]
        if end - start > LONG or end == start:
            continue
        first, second, tag = _key(texts, start, end, kind)
        row = _look_up(table, first, second, tag, texts, start)
        if table.rows[row, 2] == 0:
            keep(table, row, first, second, tag, texts, start, ids[i : i + 1], 1)


@compiled
def regrow(table, bigger):
    """Copy all rows into the empty rows of a larger table that shares the rest."""
    old, new = table.rows, bigger.rows
    mask = np.int64(len(new) - 1)
    for i in range(len(old)):
        tag = old[i, 2] & np.uint64(0xFFFFFFFFFFFF)
        if tag == 0:
            continue
        length = np.int64(tag & np.uint64(0xFFFFFFFF)) - 1
        row = np.int64(_home(old[i, 0], np.uint64(0) if length > 16 else old[i, 1], tag)) & mask
        while new[row, 2] != 0:
            row = (row + 1) & mask
        for j in range(4):
            new[row, j] = old[i, j]


@compiled
def encode_chunk(model, vocabulary, text, start, end, kind, symbols, ranks, products):
    """Encode a chunk by itself; its ids are left in `symbols` (room: its bytes). Returns how many."""
    n = end - start
    if kind == WHOLE and n <= LONG:
        first, second, tag = _key(text, start, end, WHOLE)
        row = _look_up(vocabulary, first, second, tag, text, start)
        if vocabulary.rows[row, 2] != 0:
            symbols[0] = np.int32(vocabulary.rows[row, 3])
            return 1
    for i in range(n):
        symbols[i] = model.single[text[start + i]]
    if n <= SHORT:
        return merge_short(symbols, n, ranks, products, model.merge_keys, model.merge_values)
    return merge_long(symbols, n, model.widths, model.merge_keys, model.merge_values)


@inlined
def _emit(batch, out, state, piece, start, end, ids, first, n, widths, t):
    """Write n ids of the text start:end, with their mask where the batch has spans; returns the new total."""
    for i in range(n):
        out.ids[t + i] = ids[first + i]
    if batch.has_spans:
        spans = batch.spans
        s = state[SPAN]
        while s < len(spans) and spans[s, 1] <= start:
            s += 1
        state[SPAN] = s
        if s >= len(spans) or spans[s, 0] >= end:
            for i in range(n):
                out.mask[t + i] = 0
        elif spans[s, 0] <= start and end <= spans[s, 1]:
            for i in range(n):
                out.mask[t + i] = 1
        else:
            at = start
            for i in range(n):
                after = end if n == 1 else at + widths[ids[first + i]]
                while s < len(spans) and spans[s, 1] <= at:
                    s += 1
                inside = s < len(spans) and spans[s, 0] < after
                out.mask[t + i] = inside
                if inside and not (spans[s, 0] <= at and after <= spans[s, 1]):
                    out.seams[piece] += 1
                at = after
    return t + n


@compiled
def run(model, vocabulary, table, batch, state, out):
    """Encode on from `state` into `out`, until the batch is done, `out` or the table is full.

    Returns (why it stopped, tokens written, the least room in tokens for the next group).
    """
    text = batch.text
    starts = np.empty(GROUP, np.int64)
    ends = np.empty(GROUP, np.int64)
    # The kind of a chunk; or -1: the end of a piece; or -2 - m: the added token of match m.
    kinds = np.empty(GROUP, np.int64)
    firsts = np.empty(GROUP, np.uint64)
    seconds = np.empty(GROUP, np.uint64)
    tags = np.empty(GROUP, np.uint64)
    found = np.empty(GROUP, np.int64)
    symbols = np.empty(LONG + 1, np.int32)
    ranks = np.empty(SHORT + 1, np.int32)
    products = np.empty(SHORT + 1, np.int32)
    saved = np.empty_like(state)
    t = np.int64(0)
    room = len(out.ids)
    while True:
        saved[:] = state
        n = 0
        tokens_most = np.int64(0)
        ids_kept = np.int64(0)
        bytes_kept = np.int64(0)
        done = False
        while n < GROUP:
            at = state[AT]
            if at >= state[TOKEN_END]:
                if at >= state[SEGMENT_END]:
                    m = _next_segment(batch, state)
                    if m == -3:
                        done = True
                        break
                    if m == -2:
                        kinds[n] = -1
                        n += 1
                        state[PIECE] += 1
                        state[AT] = batch.pieces[state[PIECE]]
                        state[SEGMENT_END] = state[AT]
                        state[TOKEN_END] = state[AT]
                        continue
                    if m >= 0:
                        kinds[n] = -2 - m
                        n += 1
                        tokens_most += 1
                        state[MATCH] += 1
                        state[AT] = batch.matches[m, 1]
                        state[SEGMENT_END] = state[AT]
                        state[TOKEN_END] = state[AT]
                        continue
                _next_token(model, text, state)
            token_end = state[TOKEN_END]
            size = token_end - at
            end = token_end
            if size <= 16:
                first = _word_up_to(text, at, end)
                second = _word_up_to(text, at + 8, end) if size > 8 else np.uint64(0)
                if (first | second) & _HIGH:
                    end = _chunk_end(model, text, at, token_end)
                    size = end - at
                    if size <= 8:
                        first &= _LOW_BYTES[size]
                        second = np.uint64(0)
                    else:
                        second &= _LOW_BYTES[size - 8]
            else:
                end = _chunk_end(model, text, at, token_end)
                size = end - at
                if size <= 16:
                    first = _word_up_to(text, at, end)
                    second = _word_up_to(text, at + 8, end) if size > 8 else np.uint64(0)
                elif size <= LONG:
                    first = _hash_long(text, at, end)
                    second = np.uint64(0)
                    bytes_kept += size
                else:
                    first = np.uint64(0)
                    second = np.uint64(0)
            kind = PART
            if model.whole_differs and end == token_end and at == state[TOKEN_START]:
                kind = WHOLE
            starts[n] = at
            ends[n] = end
            kinds[n] = kind
            firsts[n] = first
            seconds[n] = second
            tags[n] = np.uint64(size + 1) | (np.uint64(kind) << np.uint64(32))
            tokens_most += size
            if size <= LONG:
                ids_kept += size
            n += 1
            state[AT] = end
        if n == 0:
            return DONE, t, np.int64(0)
        if t + tokens_most > room:
            state[:] = saved
            return NO_ROOM, t, tokens_most
        if (
            2 * (table.used[0] + GROUP) > len(table.rows)
            or table.used[1] + bytes_kept > len(table.bytes)
            or table.used[2] + ids_kept > len(table.ids)
        ):
            state[:] = saved
            return TABLE_FULL, t, ids_kept
        for i in range(n):
            if kinds[i] >= 0 and ends[i] - starts[i] <= LONG:
                row = _look_up(table, firsts[i], seconds[i], tags[i], text, starts[i])
                found[i] = row if table.rows[row, 2] != 0 else -1
        piece = saved[PIECE]
        for i in range(n):
            if kinds[i] < 0:
                if kinds[i] == -1:
                    out.piece_ends[piece] = state[TOTAL] + t
                    piece += 1
                else:
                    m = -2 - kinds[i]
                    symbols[0] = batch.matches[m, 2]
                    t = _emit(
                        batch,
                        out,
                        state,
                        piece,
                        batch.matches[m, 0],
                        batch.matches[m, 1],
                        symbols,
                        0,
                        1,
                        model.widths,
                        t,
                    )
                continue
            start, end = starts[i], ends[i]
            if end - start > LONG:
                many = np.empty(end - start, np.int32)
                count = encode_chunk(model, vocabulary, text, start, end, kinds[i], many, ranks, products)
                t = _emit(batch, out, state, piece, start, end, many, 0, count, model.widths, t)
                continue
            row = found[i]
            if row < 0:
                # New, unless it came twice in this group.
                row = _look_up(table, firsts[i], seconds[i], tags[i], text, start)
                if table.rows[row, 2] == 0:
                    count = encode_chunk(
                        model, vocabulary, text, start, end, kinds[i], symbols, ranks, products
                    )
                    keep(table, row, firsts[i], seconds[i], tags[i], text, start, symbols, count)
            count = np.int64(table.rows[row, 2] >> np.uint64(48))
            value = table.rows[row, 3]
            if count <= 2:
                symbols[0] = np.int32(value & np.uint64(0xFFFFFFFF))
                symbols[1] = np.int32(value >> np.uint64(32))
                t = _emit(batch, out, state, piece, start, end, symbols, 0, count, model.widths, t)
            else:
                t = _emit(
                    batch, out, state, piece, start, end, table.ids, np.int64(value), count, model.widths, t
                )
        if done:
            return DONE, t, np.int64(0)


@inlined
def _next_match(text, at, end, nodes, first):
    """(start, end, id) of the leftmost and there longest added token in text[at:end]; start is -1 where none."""
    while at < end:
        node = np.int64(first[text[at]])
        best = np.int64(-1)
        token = np.int64(-1)
        place = at
        while node != 0:
            place += 1
            if nodes[node, 3] != -1:
                best = place
                token = np.int64(nodes[node, 3])
            if place >= end:
                break
            node = np.int64(nodes[node, 1])
            while node != 0 and nodes[node, 0] != text[place]:
                node = np.int64(nodes[node, 2])
        if best >= 0:
            return at, best, token
        at += 1
    return np.int64(-1), np.int64(-1), np.int64(-1)


@compiled
def find_added(text, pieces, raw_nodes, raw_first, nodes, first, matches):
    """Added tokens of all pieces as rows of `matches` (start, end, id, piece), in order: those looked for in raw
    text first, then others between them. Returns their number, which may exceed the room: then call again."""
    n = 0
    has_raw = len(raw_nodes) > 1
    has_other = len(nodes) > 1
    for piece in range(len(pieces) - 1):
        at, piece_end = pieces[piece], pieces[piece + 1]
        while at < piece_end:
            start, end, token = np.int64(-1), np.int64(-1), np.int64(-1)
            if has_raw:
                start, end, token = _next_match(text, at, piece_end, raw_nodes, raw_first)
            if has_other:
                limit = start if start >= 0 else piece_end
                while at < limit:
                    s, e, i = _next_match(text, at, limit, nodes, first)
                    if s < 0:
                        break
                    if n < len(matches):
                        matches[n, 0], matches[n, 1], matches[n, 2], matches[n, 3] = s, e, i, piece
                    n += 1
                    at = e
            if start < 0:
                break
            if n < len(matches):
                matches[n, 0], matches[n, 1], matches[n, 2], matches[n, 3] = start, end, token, piece
            n += 1
            at = end
    return n


@compiled
def find_unsettled(text, pieces, unsettled):
    """uint8[p]: pieces that hold a character of `unsettled` (bool[0x110000])."""
    found = np.zeros(len(pieces) - 1, np.uint8)
    for piece in range(len(pieces) - 1):
        at, end = pieces[piece], pieces[piece + 1]
        while at < end:
            if text[at] < 0x80:
                at += 1
                continue
            point, size = _decode(text, at)
            if unsettled[point]:
                found[piece] = 1
                break
            at += size
    return found
