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
PART, WHOLE = 0, 1
END_OF_PIECE, ADDED = -1, -2

# Why the loop came back.
DONE, NO_ROOM, TABLE_FULL = 0, 1, 2


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
    merges: Any  # see bpe.index_merges


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


class Group(NamedTuple):
    """Chunks handled together, each with GROUP places: start, end, kind (or END_OF_PIECE; or ADDED, whose start is
    the number of the match), the parts of its key in the table, its row."""

    starts: Any
    ends: Any
    kinds: Any
    firsts: Any
    seconds: Any
    tags: Any
    found: Any


# Positions in `state`, an int64 array that lives from call to call.
PIECE, AT, SEGMENT_END, TOKEN_START, TOKEN_END, MATCH, SPAN, TOTAL, LEVELS = 0, 1, 2, 3, 4, 5, 6, 7, 8
STATE_SIZE = LEVELS + 3 * 16

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
        point, size = b, 1
    elif b < 0xE0:
        point, size = ((b & 0x1F) << 6) | (np.int64(text[at + 1]) & 0x3F), 2
    elif b < 0xF0:
        point = ((b & 0x0F) << 12) | ((np.int64(text[at + 1]) & 0x3F) << 6) | (np.int64(text[at + 2]) & 0x3F)
        size = 3
    else:
        point = (
            ((b & 0x07) << 18)
            | ((np.int64(text[at + 1]) & 0x3F) << 12)
            | ((np.int64(text[at + 2]) & 0x3F) << 6)
            | (np.int64(text[at + 3]) & 0x3F)
        )
        size = 4
    return point, size


@compiled
def _match(classes, steps, start, width, text, at, limit):
    """The end of the match that begins at `at`, or -1; the automaton begins in state `start`."""
    state = start
    end = np.int64(-1)
    while at < limit:
        point, size = _decode(text, at)
        step = np.int64(steps[state + classes[point]])
        if step & 1:
            end = at
        state = step >> 1
        if state == 0:
            return end
        at += size
    if steps[state + width - 1] & 1:
        end = at
    return end


@inlined
def _has(pairs, shift, left, right):
    key = ((np.uint64(left) << np.uint64(21)) | np.uint64(right)) * _K1
    bit = np.int64(key >> np.uint64(shift))
    return (pairs[bit >> 3] >> (bit & 7)) & 1 != 0


@compiled
def _chunk_end(pairs, shift, groups, ascii_run, text, start, token_end):
    """The first place after `start` between two characters that no product spans, or the pre-token's end."""
    left, size = _decode(text, start)
    at = start + size
    while at < token_end:
        right, size = _decode(text, at)
        if ((left | right) >= 0x80 or at - start >= ascii_run) and not _has(pairs, shift, left, right):
            by_left = np.int64(groups[left] >> np.uint32(16))
            by_right = np.int64(groups[right] & np.uint32(0xFFFF))
            if not (
                (by_left and _has(pairs, shift, 0x110000 + by_left, right))
                or (by_right and _has(pairs, shift, left, 0x110000 + by_right))
                or (by_left and by_right and _has(pairs, shift, 0x110000 + by_left, 0x110000 + by_right))
            ):
                return at
        left = right
        at += size
    return token_end


@compiled
def _next_match_or_gap(classes, steps, start, width, text, at, limit):
    """(end of the pre-token at `at`, end of the match that follows it where it is a gap, else -1)."""
    end = _match(classes, steps, start, width, text, at, limit)
    if end >= 0:
        return end, np.int64(-1)
    gap = at + _decode(text, at)[1]
    while gap < limit:
        end = _match(classes, steps, start, width, text, gap, limit)
        if end >= 0:
            break
        gap += _decode(text, gap)[1]
    return gap, end


@compiled
def _next_token(classes, steps, starts, width, text, at, limit, levels):
    """The end of the pre-token at `at`, where each step of several splits what the one before left.

    levels int64[levels, 3]: the end of each step's piece; where that is a gap, its end and the end of the match that
    follows.
    """
    for level in range(len(starts)):
        if levels[level, 0] <= at:
            if levels[level, 1] == at:
                levels[level, 0] = levels[level, 2]
            else:
                end, after = _next_match_or_gap(classes, steps, starts[level], width, text, at, limit)
                levels[level, 0] = end
                levels[level, 1] = end if after >= 0 else -1
                levels[level, 2] = after
            levels[level + 1 :, :2] = -1
        limit = levels[level, 0]
    return limit


@inlined
def _home(first, second, tag):
    return _mix(first ^ (tag * _K2), second)


@compiled
def _keep(rows, kept, table_ids, used, row, first, second, tag, text, start, ids, n):
    """Fill an empty row with a chunk (its length in `tag`) and its ids."""
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
            value |= np.uint64(ids[i]) << np.uint64(32 * i)
        rows[row, 3] = value
    else:
        rows[row, 3] = np.uint64(used[2])
        for i in range(n):
            table_ids[used[2] + i] = ids[i]
        used[2] += n
    used[0] += 1


@inlined
def _look_up(rows, kept, first, second, tag, text, start):
    """The row of a chunk, or of the empty row where it belongs. kept: the table's bytes of longer chunks."""
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
                    if kept[place + i] != text[start + i]:
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
        row = _look_up(table.rows, table.bytes, first, second, tag, texts, start)
        if table.rows[row, 2] == 0:
            _keep(table.rows, table.bytes, table.ids, table.used, row, first, second, tag, texts, start, ids[i : i + 1], 1)


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
def encode_chunk(single, widths, merges, vocabulary_rows, vocabulary_bytes, text, start, end, kind, symbols, pairs):
    """Encode a chunk by itself; its ids are left in `symbols` (room: its bytes). Returns how many."""
    n = end - start
    if kind == WHOLE and n <= LONG:
        first, second, tag = _key(text, start, end, WHOLE)
        row = _look_up(vocabulary_rows, vocabulary_bytes, first, second, tag, text, start)
        if vocabulary_rows[row, 2] != 0:
            symbols[0] = np.int32(vocabulary_rows[row, 3])
            return 1
    for i in range(n):
        symbols[i] = single[text[start + i]]
    if n <= SHORT:
        return merge_short(symbols, n, pairs, merges)
    return merge_long(symbols, n, widths, merges)


@compiled
def _mask(spans, s, start, end, ids, n, widths, mask, t):
    """Write the mask of the n tokens ids[t:], of the text start:end; returns (the first span not passed, seams)."""
    while s < len(spans) and spans[s, 1] <= start:
        s += 1
    if s >= len(spans) or spans[s, 0] >= end:
        mask[t : t + n] = 0
        return s, 0
    if spans[s, 0] <= start and end <= spans[s, 1]:
        mask[t : t + n] = 1
        return s, 0
    seams = 0
    at = start
    near = s
    for i in range(n):
        after = end if n == 1 else at + widths[ids[t + i]]
        while near < len(spans) and spans[near, 1] <= at:
            near += 1
        inside = near < len(spans) and spans[near, 0] < after
        mask[t + i] = inside
        if inside and not (spans[near, 0] <= at and after <= spans[near, 1]):
            seams += 1
        at = after
    return s, seams


@compiled
def _cut(model, batch, state, levels, group):
    """Cut the next chunks, up to GROUP, into the arrays of `group`; a long one is the last.

    Returns (how many, whether the batch ends there, most tokens they may be, most ids and bytes the table may keep).
    """
    classes, steps, starts, width = model.classes, model.steps, model.starts, model.width
    pairs, shift, groups, ascii_run = model.pairs, model.pair_shift, model.groups, model.ascii_run
    text, pieces, skip, matches = batch.text, batch.pieces, batch.skip, batch.matches
    chunk_starts, chunk_ends, kinds = group.starts, group.ends, group.kinds
    firsts, seconds, tags = group.firsts, group.seconds, group.tags
    whole_differs = model.whole_differs
    n_levels = len(starts)
    piece, m = state[PIECE], state[MATCH]
    at, segment_end = state[AT], state[SEGMENT_END]
    token_start, token_end = state[TOKEN_START], state[TOKEN_END]
    n_pieces = len(pieces) - 1
    n = 0
    tokens = ids_kept = bytes_kept = np.int64(0)
    done = False
    while n < GROUP:
        if at >= token_end:
            if at >= segment_end:
                if piece >= n_pieces:
                    done = True
                    break
                piece_end = pieces[piece + 1]
                if at >= piece_end or skip[piece] != 0:
                    kinds[n] = END_OF_PIECE
                    n += 1
                    piece += 1
                    at = token_end = segment_end = piece_end
                    continue
                while m < len(matches) and matches[m, 3] < piece:
                    m += 1
                segment_end = piece_end
                if m < len(matches) and matches[m, 3] == piece:
                    segment_end = matches[m, 0]
                    if segment_end == at:
                        kinds[n] = ADDED
                        chunk_starts[n] = m
                        n += 1
                        tokens += 1
                        at = token_end = segment_end = matches[m, 1]
                        m += 1
                        continue
                levels[:] = -1
            token_start = at
            if n_levels == 1:
                token_end = _match(classes, steps, starts[0], width, text, at, segment_end)
                if token_end < 0:
                    token_end = _next_match_or_gap(classes, steps, starts[0], width, text, at, segment_end)[0]
            else:
                token_end = _next_token(classes, steps, starts, width, text, at, segment_end, levels)
        end = token_end
        size = end - at
        first = second = np.uint64(0)
        if size <= 16:
            first = _word_up_to(text, at, end)
            if size > 8:
                second = _word_up_to(text, at + 8, end)
            if (first | second) & _HIGH:
                end = _chunk_end(pairs, shift, groups, ascii_run, text, at, token_end)
                size = end - at
                if size <= 8:
                    first &= _LOW_BYTES[size]
                    second = np.uint64(0)
                else:
                    second &= _LOW_BYTES[size - 8]
        else:
            end = _chunk_end(pairs, shift, groups, ascii_run, text, at, token_end)
            size = end - at
            if size <= 16:
                first = _word_up_to(text, at, end)
                if size > 8:
                    second = _word_up_to(text, at + 8, end)
            elif size <= LONG:
                first = _hash_long(text, at, end)
                bytes_kept += size
        kind = PART
        if whole_differs and end == token_end and at == token_start:
            kind = WHOLE
        chunk_starts[n] = at
        chunk_ends[n] = end
        kinds[n] = kind
        firsts[n] = first
        seconds[n] = second
        tags[n] = np.uint64(size + 1) | (np.uint64(kind) << np.uint64(32))
        tokens += size
        n += 1
        at = end
        if size > LONG:
            break
        ids_kept += size
    state[PIECE], state[MATCH] = piece, m
    state[AT], state[SEGMENT_END] = at, segment_end
    state[TOKEN_START], state[TOKEN_END] = token_start, token_end
    return n, done, tokens, ids_kept, bytes_kept


@compiled
def _find(rows, kept, text, group, n):
    """The row of each chunk, or -1 where it is not in the table. Returns how many are not."""
    starts, kinds = group.starts, group.kinds
    firsts, seconds, tags, found = group.firsts, group.seconds, group.tags, group.found
    missing = 0
    for i in range(n):
        if kinds[i] >= 0:
            row = _look_up(rows, kept, firsts[i], seconds[i], tags[i], text, starts[i])
            found[i] = row
            if rows[row, 2] == 0:
                found[i] = -1
                missing += 1
    return missing


@compiled
def _add(model, vocabulary, table, text, group, n):
    """Encode and keep the chunks that are not in the table."""
    starts, ends, kinds = group.starts, group.ends, group.kinds
    firsts, seconds, tags, found = group.firsts, group.seconds, group.tags, group.found
    rows, kept, table_ids, used = table.rows, table.bytes, table.ids, table.used
    vocabulary_rows, vocabulary_bytes = vocabulary.rows, vocabulary.bytes
    single, widths, merges = model.single, model.widths, model.merges
    symbols = np.empty(LONG, np.int32)
    pairs = np.empty(SHORT, np.uint64)
    for i in range(n):
        if kinds[i] < 0 or found[i] >= 0:
            continue
        start = starts[i]
        # It may be there by now: the same chunk may come twice in a group.
        row = _look_up(rows, kept, firsts[i], seconds[i], tags[i], text, start)
        if rows[row, 2] == 0:
            count = encode_chunk(
                single, widths, merges, vocabulary_rows, vocabulary_bytes, text, start, ends[i], kinds[i], symbols, pairs
            )
            _keep(rows, kept, table_ids, used, row, firsts[i], seconds[i], tags[i], text, start, symbols, count)
        found[i] = row


@compiled
def _emit(rows, table_ids, group, n, piece, base, matches, out_ids, t, piece_ends):
    """Write the ids of n chunks; returns the end of what is written."""
    kinds, found, starts = group.kinds, group.found, group.starts
    for i in range(n):
        if kinds[i] < 0:
            if kinds[i] == END_OF_PIECE:
                piece_ends[piece] = base + t
                piece += 1
            else:
                out_ids[t] = matches[starts[i], 2]
                t += 1
            continue
        row = found[i]
        count = np.int64(rows[row, 2] >> np.uint64(48))
        value = rows[row, 3]
        if count == 1:
            out_ids[t] = np.int32(value)
        elif count == 2:
            out_ids[t] = np.int32(value & np.uint64(0xFFFFFFFF))
            out_ids[t + 1] = np.int32(value >> np.uint64(32))
        else:
            place = np.int64(value)
            for j in range(count):
                out_ids[t + j] = table_ids[place + j]
        t += count
    return t


@compiled
def _emit_masks(rows, group, n, piece, matches, spans, span, widths, out_ids, out_mask, t, seams):
    """Write the masks of what `_emit` wrote from t on; returns the first span not passed."""
    kinds, found, starts, ends = group.kinds, group.found, group.starts, group.ends
    for i in range(n):
        if kinds[i] == END_OF_PIECE:
            piece += 1
            continue
        start, end, count = starts[i], ends[i], np.int64(1)
        if kinds[i] == ADDED:
            start, end = matches[starts[i], 0], matches[starts[i], 1]
        else:
            count = np.int64(rows[found[i], 2] >> np.uint64(48))
        span, straddling = _mask(spans, span, start, end, out_ids, count, widths, out_mask, t)
        seams[piece] += straddling
        t += count
    return span


@compiled
def run(model, vocabulary, table, batch, state, out):
    """Encode on from `state` into `out`, until the batch is done, `out` or the table is full.

    Returns (why it stopped, tokens written, the room that the next group needs in `out` or in the table's ids).
    """
    text, matches = batch.text, batch.matches
    group = Group(
        np.empty(GROUP, np.int64),
        np.empty(GROUP, np.int64),
        np.empty(GROUP, np.int64),
        np.empty(GROUP, np.uint64),
        np.empty(GROUP, np.uint64),
        np.empty(GROUP, np.uint64),
        np.empty(GROUP, np.int64),
    )
    levels = state[LEVELS:].reshape(-1, 3)
    t = np.int64(0)
    while True:
        saved = state.copy()
        n, done, tokens, ids_kept, bytes_kept = _cut(model, batch, state, levels, group)
        if t + tokens > len(out.ids):
            state[:] = saved
            return NO_ROOM, t, tokens
        if (
            2 * (table.used[0] + GROUP) > len(table.rows)
            or table.used[1] + bytes_kept > len(table.bytes)
            or table.used[2] + ids_kept > len(table.ids)
        ):
            state[:] = saved
            return TABLE_FULL, t, ids_kept
        # A long chunk, always the last of its group, is encoded each time.
        long = n > 0 and group.kinds[n - 1] >= 0 and group.ends[n - 1] - group.starts[n - 1] > LONG
        short = n - 1 if long else n
        if _find(table.rows, table.bytes, text, group, short) > 0:
            _add(model, vocabulary, table, text, group, short)
        written = _emit(
            table.rows, table.ids, group, short, saved[PIECE], state[TOTAL], matches, out.ids, t, out.piece_ends
        )
        if batch.has_spans:
            state[SPAN] = _emit_masks(
                table.rows,
                group,
                short,
                saved[PIECE],
                matches,
                batch.spans,
                state[SPAN],
                model.widths,
                out.ids,
                out.mask,
                t,
                out.seams,
            )
        t = written
        if long:
            start, end = group.starts[n - 1], group.ends[n - 1]
            symbols = np.empty(end - start, np.int32)
            count = encode_chunk(
                model.single,
                model.widths,
                model.merges,
                vocabulary.rows,
                vocabulary.bytes,
                text,
                start,
                end,
                group.kinds[n - 1],
                symbols,
                np.empty(0, np.uint64),
            )
            out.ids[t : t + count] = symbols[:count]
            if batch.has_spans:
                state[SPAN], straddling = _mask(
                    batch.spans, state[SPAN], start, end, out.ids, count, model.widths, out.mask, t
                )
                out.seams[state[PIECE]] += straddling
            t += count
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
