"""The compiled loop: text -> chunks -> ids.

A batch is read once, chunk by chunk; a chunk is looked up in a table by its bytes, and what is not there is
encoded and kept. Chunks are handled a thousand at a time, step by step, so that the look-ups of one
group, each likely a cache miss, overlap.
"""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from typing import Any, NamedTuple

import numpy as np

from coverage_job.counting.bpe import BLOCK, LANES, SHORT, Lanes, merge_long, merge_together, new_lanes
from coverage_job.counting.compiled import compiled, get, get_from, inlined, put
from coverage_job.counting.split import decode, find_tokens, find_tokens_by_steps
from coverage_job.counting.table import LONG, LOW_BYTES, hash_long, keep, key_of, look_up, word, word_up_to

GROUP = 1024  # chunks looked up together
# Words of alphabets repeat as they are; only where they go on, and among the characters from here on (CJK,
# kana, Hangul), which are written without spaces, is it worth cutting by pairs.
RUN = 32
DENSE = 0x2E80
ASCII_PAIRS = 0x80 * 0x80  # which have a bit each, before those of all others
_HIGH = np.uint64(0x8080808080808080)
_HASH = np.uint64(0x9E3779B97F4A7C15)

# How a chunk was cut: what it encodes to may depend on it.
PART, WHOLE, FIRST = 0, 1, 2
# How a chunk is encoded.
BYTES, CHARACTERS, WORDS = 0, 1, 2
# Or what stands in a chunk's place.
END_OF_PIECE, ADDED = -1, -2

# As the seams of a piece: it must be left to the reference.
UNKNOWN_BORDER = -(1 << 30)

# Why the loop came back.
DONE, NO_ROOM, TABLE_FULL = 0, 1, 2


class Model(NamedTuple):
    """What is known of the tokenizer (see cuts.py), laid out for the loop."""

    classes: Any  # uint8[0x110000]
    steps: Any  # int32, see split.py
    starts: Any  # int64[levels], the offset of each level's start state
    width: int  # classes + 1
    pairs: Any  # uint8[bits / 8]
    pair_shift: int
    torn: Any  # uint8[bits / 8]
    torn_shift: int
    groups: Any  # uint32[0x110000]
    run: int  # bytes of a pre-token past which all pairs are tested
    family: int  # BYTES or CHARACTERS are merged, WORDS are looked up piece by piece
    start_kind: int  # of a chunk that begins a pre-token: WHOLE where it is all of it, FIRST, or PART
    single: Any  # int32[256], the symbols of bytes
    symbols: Any  # int32[0x110000], those of characters (-1: as bytes)
    widths: Any  # int32[rows], the symbols that a token was merged from
    spans: Any  # int32[rows], a token's bytes, or characters where text begins as those (-1: a byte)
    merges: Any  # see bpe.index_merges
    becomes: (
        Any  # int32[0x110000, 2], of WORDS: what a character becomes, a place and a length in what follows
    )
    becomes_bytes: Any
    unknown: int  # the id of a word that has no pieces
    most_characters: int  # of a word; a longer one is unknown


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
    """ids int32[room]; mask uint8[room]; piece_ends int64[p]: tokens up to the piece's end, of all outputs;
    seams int32[p]."""

    ids: Any
    mask: Any
    piece_ends: Any
    seams: Any


class Group(NamedTuple):
    """Chunks handled together, each with GROUP places: start, end, kind (or END_OF_PIECE; or ADDED, whose
    start is the number of the match), the parts of its key in the table, its row."""

    starts: Any
    ends: Any
    kinds: Any
    firsts: Any
    seconds: Any
    tags: Any
    found: Any
    token_ends: Any  # pre-tokens found ahead
    levels: Any  # see split.find_tokens_by_steps
    lanes: Lanes  # room to encode what is not in the table


def new_group() -> Group:
    int64s, uint64s = np.empty((5, GROUP), np.int64), np.empty((3, GROUP), np.uint64)
    return Group(
        starts=int64s[0],
        ends=int64s[1],
        kinds=int64s[2],
        firsts=uint64s[0],
        seconds=uint64s[1],
        tags=uint64s[2],
        found=int64s[3],
        token_ends=int64s[4],
        levels=np.full((16, 3), -1, np.int64),
        lanes=new_lanes(LONG + 1),
    )


# Positions in `state`, an int64 array that lives from call to call.
PIECE, AT, SEGMENT_END, TOKEN_START, TOKEN_END, TOKEN, TOKENS, MATCH, SPAN, TOTAL, CUT = range(11)
# What `_cut` says of the group, which may wait for room: chunks, most tokens, most ids and bytes to keep,
# the end.
N, MOST_TOKENS, MOST_IDS, MOST_BYTES, LAST, FIRST_PIECE = range(11, 17)
STATE_SIZE = 17


@inlined
def _has(pairs, shift, left, right):
    key = ((np.uint64(left) << np.uint64(21)) | np.uint64(right)) * _HASH
    hashed = ASCII_PAIRS + np.int64(key >> np.uint64(shift))
    bit = (left << 7) | right if (left | right) < 0x80 else hashed
    return (get(pairs, bit >> 3) >> (bit & 7)) & 1 != 0


@inlined
def _torn(torn, shift, groups, left, right):
    """Whether a product may span the two characters and begin or end inside one of them."""
    by_left = np.int64(get(groups, left) >> np.uint32(16))
    by_right = np.int64(get(groups, right) & np.uint32(0xFFFF))
    return (
        ((by_left != 0) & _has(torn, shift, 0x110000 + by_left, right))
        | ((by_right != 0) & _has(torn, shift, left, 0x110000 + by_right))
        | ((by_left != 0) & (by_right != 0) & _has(torn, shift, 0x110000 + by_left, 0x110000 + by_right))
    )


@inlined
def _spanned(pairs, shift, groups, left, right):
    """Whether a product may span the two characters. All is looked up, which is cheaper than to foresee."""
    return _has(pairs, shift, left, right) | _torn(pairs, shift, groups, left, right)


@inlined
def _has_long_character(word):
    """Whether a word of text has a byte of 0xE0 or more, which begins a character of three or four bytes."""
    return (word & (word << np.uint64(1)) & (word << np.uint64(2)) & _HIGH) != 0


@inlined
def _cut_token(pairs, shift, groups, run, text, token_start, token_end, at, ends, n):
    """Cut a pre-token on from `at`, writing the ends of chunks from n on, up to GROUP; returns the new n."""
    left, size = decode(text, at)
    place = at + size
    while place < token_end and n < GROUP:
        right, size = decode(text, place)
        tested = (left >= DENSE) | (right >= DENSE) | (place - token_start >= run)
        # Written always, counted where it is a cut.
        put(ends, n, place)
        n += np.int64(tested & (not _spanned(pairs, shift, groups, left, right)))
        left = right
        place += size
    if n < GROUP:
        ends[n] = token_end
        n += 1
    return n


@compiled
def _cut(model, batch, state, group):
    """Cut the next chunks, up to GROUP, into the arrays of `group`; a long one is the last. What it found
    is in state[N:]."""
    classes, steps, starts, width = model.classes, model.steps, model.starts, model.width
    pairs, shift, groups, run = model.pairs, model.pair_shift, model.groups, model.run
    text, pieces, skip, matches = batch.text, batch.pieces, batch.skip, batch.matches
    chunk_starts, chunk_ends, kinds = group.starts, group.ends, group.kinds
    firsts, seconds, tags = group.firsts, group.seconds, group.tags
    token_ends, levels = group.token_ends, group.levels
    start_kind = model.start_kind
    piece, m = state[PIECE], state[MATCH]
    at, segment_end = state[AT], state[SEGMENT_END]
    token_start, token_end = state[TOKEN_START], state[TOKEN_END]
    token, n_tokens = state[TOKEN], state[TOKENS]
    n_pieces = len(pieces) - 1
    n_levels = len(starts)
    safe = len(text) - RUN  # from here on a word may be read beyond the text
    n = 0
    tokens = bytes_kept = np.int64(0)
    last = False
    state[FIRST_PIECE] = piece
    while n < GROUP:
        if at >= token_end:
            # Pre-tokens that are not cut: short ones without dense characters, by far the most in many texts.
            while token < n_tokens and n < GROUP:
                end = get(token_ends, token)
                size = end - at
                if (size > RUN) | (at > safe):
                    break
                one, two = word(text, at), word(text, at + 8)
                first = one & get(LOW_BYTES, min(size, 8))
                second = two & get(LOW_BYTES, min(max(size - 8, 0), 8))
                if _has_long_character(first) | _has_long_character(second):
                    break
                if size > 16:
                    three = word(text, at + 16) & get(LOW_BYTES, min(size - 16, 8))
                    four = word(text, at + 24) & get(LOW_BYTES, max(size - 24, 0))
                    if _has_long_character(three) | _has_long_character(four):
                        break
                    first, second = hash_long(text, at, end), np.uint64(0)
                    bytes_kept += size
                put(chunk_starts, n, at)
                put(chunk_ends, n, end)
                put(kinds, n, start_kind)
                put(firsts, n, first)
                put(seconds, n, second)
                put(tags, n, np.uint64(size + 1) | (np.uint64(start_kind) << np.uint64(32)))
                tokens += size + 1
                n += 1
                token += 1
                at = end
            if n == GROUP:
                break
            if token < n_tokens:
                token_start, token_end = at, token_ends[token]
                token += 1
            elif at < segment_end:
                token = 0
                if n_levels == 1:
                    n_tokens = find_tokens(
                        classes, steps, starts[0], width, text, at, segment_end, token_ends
                    )
                elif n_levels == 0:
                    token_ends[0] = segment_end
                    n_tokens = 1
                else:
                    n_tokens = find_tokens_by_steps(
                        classes, steps, starts, width, text, at, segment_end, token_ends, levels
                    )
                token_end = at
                continue
            else:
                if piece >= n_pieces:
                    last = True
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
                token_end = at
                continue
        i = n
        n = _cut_token(pairs, shift, groups, run, text, token_start, token_end, at, chunk_ends, n)
        is_long = False
        while i < n:
            end = get(chunk_ends, i)
            size = end - at
            first = second = np.uint64(0)
            if size <= 16:
                if at <= safe:
                    first = word(text, at) & get(LOW_BYTES, min(size, 8))
                    second = word(text, at + 8) & get(LOW_BYTES, max(size - 8, 0))
                else:
                    first, second = word_up_to(text, at, end), word_up_to(text, at + 8, end)
            elif size <= LONG:
                first = hash_long(text, at, end)
                bytes_kept += size
            kind = PART
            if at == token_start and (end == token_end or start_kind == FIRST):
                kind = start_kind
            put(chunk_starts, i, at)
            put(kinds, i, kind)
            put(firsts, i, first)
            put(seconds, i, second)
            put(tags, i, np.uint64(size + 1) | (np.uint64(kind) << np.uint64(32)))
            tokens += size + 1
            i += 1
            at = end
            if size > LONG:
                is_long = True
                n = i
        if is_long:
            break
    state[PIECE], state[MATCH] = piece, m
    state[AT], state[SEGMENT_END] = at, segment_end
    state[TOKEN_START], state[TOKEN_END] = token_start, token_end
    state[TOKEN], state[TOKENS] = token, n_tokens
    is_long = n > 0 and kinds[n - 1] >= 0 and chunk_ends[n - 1] - chunk_starts[n - 1] > LONG
    ids_kept = tokens - (chunk_ends[n - 1] - chunk_starts[n - 1]) - 1 if is_long else tokens
    state[N], state[MOST_TOKENS], state[MOST_IDS], state[MOST_BYTES] = n, tokens, ids_kept, bytes_kept
    state[LAST] = last


@inlined
def _spell(single, symbols_of, torn, shift, groups, family, text, start, end, kind, symbols, n):
    """Write the symbols of text[start:end] from n on (room: its bytes + 1), of which each is a character or a
    byte; returns the end of what is written."""
    if kind == FIRST:
        symbols[n] = symbols_of[0x20]
        n += 1
    is_plain = True
    for i in range(start, end):
        is_plain &= get(text, i) < 0x80
    if family == BYTES and (is_plain or end - start > SHORT):
        # Long chunks are merged by the widths of tokens in bytes.
        for i in range(start, end):
            put(symbols, n, get(single, get(text, i)))
            n += 1
        return n
    at = start
    point, size = decode(text, at)
    left_torn = False
    while at < end:
        after = at + size
        right_torn = False
        following = np.int64(0)
        size = np.int64(0)
        if after < end:
            following, size = decode(text, after)
            if (family == BYTES) & ((point >= 0x80) | (following >= 0x80)):
                right_torn = _torn(torn, shift, groups, point, following)
        symbol = get(symbols_of, point)
        if (symbol >= 0) & (not left_torn) & (not right_torn):
            put(symbols, n, symbol)
            n += 1
        else:
            for i in range(at, after):
                put(symbols, n, get(single, get(text, i)))
                n += 1
        left_torn = right_torn
        at, point = after, following
    return n


@compiled
def _pieces(words, word_bytes, becomes, becomes_bytes, unknown, most, text, start, end, symbols):
    """WordPiece: the longest entry that begins the word, then the longest that goes on, and so on; its
    ids are left in `symbols`. Returns how many."""
    room = np.empty(4 * most + 16, np.uint8)
    n = characters = 0
    at = start
    while at < end:
        point, size = decode(text, at)
        at += size
        place, length = becomes[point, 0], becomes[point, 1]
        for i in range(place, place + length):
            if becomes_bytes[i] & 0xC0 != 0x80:
                characters += 1
                if characters > most:
                    symbols[0] = unknown
                    return 1
            room[n] = becomes_bytes[i]
            n += 1
    count = 0
    at = 0
    while at < n:
        stop = n
        kind = WHOLE if at == 0 else PART
        while stop > at:
            first, second, tag = key_of(room, at, stop, kind)
            row = look_up(words, word_bytes, first, second, tag, room, at)
            if words[row, 2] != 0:
                symbols[count] = np.int32(words[row, 3])
                count += 1
                break
            stop -= 1
            while stop > at and room[stop] & 0xC0 == 0x80:
                stop -= 1
        if stop == at:
            symbols[0] = unknown
            return 1
        at = stop
    return count


@compiled
def _mask(text, spans, s, start, end, kind, ids, n, widths, family, mask, t):
    """Write the mask of the n tokens ids[t:], of the text start:end; returns (the first span not passed,
    seams).

    widths: see Model.spans."""
    while s < len(spans) and spans[s, 1] <= start:
        s += 1
    if s >= len(spans) or spans[s, 0] >= end:
        mask[t : t + n] = 0
        return s, 0
    if spans[s, 0] <= start and end <= spans[s, 1]:
        mask[t : t + n] = 1
        return s, 0
    if family == WORDS:
        # Where the pieces of a word come from is known to the tokenizer alone.
        return s, UNKNOWN_BORDER
    seams = 0
    at = start
    near = s
    for i in range(n):
        width = np.int64(widths[ids[t + i]]) if n > 1 else end - start
        after = at + width
        if family == CHARACTERS and n > 1:
            after = at + 1
            if width > 0:
                after = at
                if kind == FIRST and i == 0:
                    # The sign put before the text has no place in it.
                    width -= 1
                for _ in range(width):
                    after += decode(text, after)[1]
        while near < len(spans) and spans[near, 1] <= at:
            near += 1
        # A token of no bytes counts as the byte that follows.
        inside = near < len(spans) and spans[near, 0] < max(after, at + 1)
        mask[t + i] = inside
        if inside and not (spans[near, 0] <= at and max(after, at + 1) <= spans[near, 1]):
            seams += 1
        at = after
    return s, seams


@compiled
def _find(rows, kept, text, group, n):
    """The row of each chunk, or -1 where it is not in the table. Returns how many are not."""
    starts, kinds = group.starts, group.kinds
    firsts, seconds, tags, found = group.firsts, group.seconds, group.tags, group.found
    missing = 0
    for i in range(n):
        if get(kinds, i) >= 0:
            first, second, tag = get(firsts, i), get(seconds, i), get(tags, i)
            row = look_up(rows, kept, first, second, tag, text, get(starts, i))
            is_there = get_from(rows, row, 2) != 0
            put(found, i, row if is_there else -1)
            missing += not is_there
    return missing


@compiled
def _add_some(model, vocabulary, table, text, group, m):
    """Encode and keep the chunks lanes.chunks[:m], in steps that each make cache misses of their own."""
    starts, ends, kinds = group.starts, group.ends, group.kinds
    firsts, seconds, tags, found = group.firsts, group.seconds, group.tags, group.found
    rows, kept, table_ids, used = table.rows, table.bytes, table.ids, table.used
    words, word_bytes = vocabulary.rows, vocabulary.bytes
    single, characters, groups = model.single, model.symbols, model.groups
    torn, shift, family = model.torn, model.torn_shift, model.family
    lanes = group.lanes
    chunks, symbols, begins, counts = lanes.chunks, lanes.symbols, lanes.begins, lanes.counts
    for j in range(m):
        i = chunks[j]
        counts[j] = 0
        if kinds[i] == WHOLE:
            entry = look_up(words, word_bytes, firsts[i], seconds[i], tags[i], text, starts[i])
            if words[entry, 2] != 0:
                counts[j] = 1
                lanes.ranks[j] = np.int32(words[entry, 3])
    end = n_active = np.int64(0)
    for j in range(m):
        i = chunks[j]
        begins[j] = end
        if counts[j] == 1:
            symbols[end] = lanes.ranks[j]
            end += 1
        elif family == WORDS:
            counts[j] = _pieces(
                words,
                word_bytes,
                model.becomes,
                model.becomes_bytes,
                model.unknown,
                model.most_characters,
                text,
                starts[i],
                ends[i],
                symbols[end:],
            )
            end += counts[j]
        else:
            n = _spell(
                single,
                characters,
                torn,
                shift,
                groups,
                family,
                text,
                starts[i],
                ends[i],
                kinds[i],
                symbols,
                end,
            )
            n -= end
            counts[j] = n
            if n > SHORT:
                counts[j] = merge_long(symbols[end:], n, model.widths, model.merges)
            else:
                lanes.active[n_active] = j
                n_active += 1
            end += n + BLOCK
    merge_together(lanes, n_active, model.merges)
    for j in range(m):
        i = chunks[j]
        first, second, tag = firsts[i], seconds[i], tags[i]
        # It may be there by now: the same chunk may come twice in a group.
        row = look_up(rows, kept, first, second, tag, text, starts[i])
        if rows[row, 2] == 0:
            keep(
                rows,
                kept,
                table_ids,
                used,
                row,
                first,
                second,
                tag,
                text,
                starts[i],
                symbols,
                begins[j],
                counts[j],
            )
        found[i] = row


@compiled
def _add(model, vocabulary, table, text, group, n):
    """Encode and keep the chunks that are not in the table."""
    kinds, found, lanes = group.kinds, group.found, group.lanes
    m = 0
    for i in range(n):
        if kinds[i] >= 0 and found[i] < 0:
            lanes.chunks[m] = i
            m += 1
            if m == LANES:
                _add_some(model, vocabulary, table, text, group, m)
                m = 0
    if m > 0:
        _add_some(model, vocabulary, table, text, group, m)


@compiled
def _encode_long(model, vocabulary, text, start, end, kind, symbols):
    # No entry of a vocabulary is as long (cuts.py sees to it).
    if model.family == WORDS:
        return _pieces(
            vocabulary.rows,
            vocabulary.bytes,
            model.becomes,
            model.becomes_bytes,
            model.unknown,
            model.most_characters,
            text,
            start,
            end,
            symbols,
        )
    n = _spell(
        model.single,
        model.symbols,
        model.torn,
        model.torn_shift,
        model.groups,
        model.family,
        text,
        start,
        end,
        kind,
        symbols,
        0,
    )
    return merge_long(symbols, n, model.widths, model.merges)


@compiled
def _emit(rows, table_ids, group, n, piece, base, matches, out_ids, t, piece_ends):
    """Write the ids of n chunks; returns the end of what is written."""
    kinds, found, starts = group.kinds, group.found, group.starts
    for i in range(n):
        if get(kinds, i) < 0:
            if kinds[i] == END_OF_PIECE:
                piece_ends[piece] = base + t
                piece += 1
            else:
                out_ids[t] = matches[starts[i], 2]
                t += 1
            continue
        row = get(found, i)
        count = np.int64(get_from(rows, row, 2) >> np.uint64(48))
        value = get_from(rows, row, 3)
        if count <= 2:
            # Two are written; there is room, and the next chunk writes over what is too much.
            put(out_ids, t, np.int32(value & np.uint64(0xFFFFFFFF)))
            put(out_ids, t + 1, np.int32(value >> np.uint64(32)))
        else:
            place = np.int64(value)
            for j in range(count):
                put(out_ids, t + j, get(table_ids, place + j))
        t += count
    return t


@compiled
def _emit_masks(
    rows, group, n, piece, text, matches, spans, span, widths, family, out_ids, out_mask, t, seams
):
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
        span, straddling = _mask(
            text, spans, span, start, end, kinds[i], out_ids, count, widths, family, out_mask, t
        )
        seams[piece] = straddling if straddling < 0 else seams[piece] + straddling
        t += count
    return span


@compiled
def run(model, vocabulary, table, batch, state, group, out):
    """Encode on from `state` into `out`, until the batch is done, `out` or the table is full.

    Returns (why it stopped, tokens written, the room that the next group needs in `out` or in the table's
    ids).
    """
    text, matches = batch.text, batch.matches
    family = model.family
    t = np.int64(0)
    while True:
        if state[CUT] == 0:
            _cut(model, batch, state, group)
            state[CUT] = 1
        n = state[N]
        if t + state[MOST_TOKENS] > len(out.ids):
            return NO_ROOM, t, state[MOST_TOKENS]
        if (
            2 * (table.used[0] + GROUP) > len(table.rows)
            or table.used[1] + state[MOST_BYTES] > len(table.bytes)
            or table.used[2] + state[MOST_IDS] > len(table.ids)
        ):
            return TABLE_FULL, t, state[MOST_IDS]
        state[CUT] = 0
        piece = state[FIRST_PIECE]
        # A long chunk, always the last of its group, is encoded each time.
        is_long = n > 0 and group.kinds[n - 1] >= 0 and group.ends[n - 1] - group.starts[n - 1] > LONG
        short = n - 1 if is_long else n
        if _find(table.rows, table.bytes, text, group, short) > 0:
            _add(model, vocabulary, table, text, group, short)
        written = _emit(
            table.rows, table.ids, group, short, piece, state[TOTAL], matches, out.ids, t, out.piece_ends
        )
        if batch.has_spans:
            state[SPAN] = _emit_masks(
                table.rows,
                group,
                short,
                piece,
                text,
                matches,
                batch.spans,
                state[SPAN],
                model.spans,
                family,
                out.ids,
                out.mask,
                t,
                out.seams,
            )
        t = written
        if is_long:
            start, end = group.starts[n - 1], group.ends[n - 1]
            symbols = np.empty(end - start + 1, np.int32)
            count = _encode_long(model, vocabulary, text, start, end, group.kinds[n - 1], symbols)
            out.ids[t : t + count] = symbols[:count]
            if batch.has_spans:
                state[SPAN], straddling = _mask(
                    text,
                    batch.spans,
                    state[SPAN],
                    start,
                    end,
                    group.kinds[n - 1],
                    out.ids,
                    count,
                    model.spans,
                    family,
                    out.mask,
                    t,
                )
                out.seams[state[PIECE]] = (
                    straddling if straddling < 0 else out.seams[state[PIECE]] + straddling
                )
            t += count
        if state[LAST]:
            return DONE, t, np.int64(0)
