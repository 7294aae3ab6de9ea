"""The compiled loops of Unigram models: text is normalized, and cut into the entries of the best path.

The path is a Viterbi pass whose sums are those of the `tokenizers` library, float for float: from the
start of the text, an entry at a time, in the same order. Thus equal scores, and scores that differ by
rounding alone, are decided as there, and nothing is cut or kept: each text is gone through anew.
"""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from typing import Any, NamedTuple

import numpy as np

from coverage_job.counting.added import next_match
from coverage_job.counting.compiled import compiled, get, inlined, put
from coverage_job.counting.double_array import UNIT_BASE, UNIT_ID, UNIT_LABEL, larger
from coverage_job.counting.split import decode

# What becomes of a character: itself; a space; another one; anything else, or several.
SAME, SPACE, OTHER, SEVERAL = 0, 1, 2, 3
# In the place of a code point: a carriage return and the line feed after it.
CRLF = 0x110000
# Why a piece is left to the reference.
BORDER, HIDDEN = 1, 2

_BLOCK = 1 << 16
_LEAD = 3  # bytes before the normalized text, room for what is put before it


class Model(NamedTuple):
    """What is known of the tokenizer (see unigram_model.py)."""

    kinds: Any  # uint8[0x110001], what becomes of text
    normal_kinds: Any  # uint8[0x110001], the same of text whose characters the tokenizer has mapped
    becomes: Any  # int32[0x110001, 2], a place and a length in what follows
    becomes_bytes: Any  # uint8
    growth: int  # most bytes that a byte becomes
    has_crlf: bool  # whether CRLF is looked for
    strip_left: bool  # of spaces
    strip_right: bool
    collapse: bool  # runs of spaces to one
    sign: Any  # uint8[1 or 3], what a space is written as
    prefix: Any  # uint8[0 to 3], what the normalizer puts before text
    meta: int  # 0; 1 a sign is put before text that does not begin with one, 2 only where it begins a piece
    by_words: bool  # text is split at white space, each word with a sign before it
    split: bool  # text is split before each sign
    units: Any  # uint64, a double array of the vocabulary
    scores: Any  # float64[ids]
    widths: Any  # int32[ids], bytes
    window: int  # a power of two above the longest entry
    unknown: int  # the id
    unknown_score: float
    single: Any  # int32[256], fallback bytes (-1: none)
    hidden_nodes: Any  # added tokens that are looked for in normalized text, see added.py
    hidden_first: Any


class Source(NamedTuple):
    """text, pieces, matches: as scan.Batch, of which pieces with `normal` (uint8[p]) have their characters
    mapped; own_pieces, own_matches: the same in the text before that, where spans (int64[s, 2]) are."""

    text: Any
    pieces: Any
    skip: Any
    normal: Any
    matches: Any
    own_pieces: Any
    own_matches: Any
    spans: Any
    has_spans: bool


@inlined
def _signs(sign, buffer, n, count):
    for _ in range(count):
        for i in range(len(sign)):
            put(buffer, n, get(sign, i))
            n += 1
    return n


@inlined
def _gap(sign, strip_left, collapse, by_words, starts_with_sign, buffer, n, gap):
    """Write the spaces that stand before a character."""
    if by_words:
        return n if starts_with_sign else _signs(sign, buffer, n, 1)
    if strip_left and n == _LEAD:
        return n
    return _signs(sign, buffer, n, 1 if collapse else gap)


@compiled
def _normalize(
    kinds,
    becomes,
    becomes_bytes,
    has_crlf,
    strip_left,
    collapse,
    by_words,
    sign,
    text,
    at,
    stop,
    end,
    buffer,
    n,
    gap,
    even,
):
    """Write what text[at:stop] becomes from buffer[n] on, of a text that ends at `end`.

    gap: spaces not yet written. even: whether each character became one. Returns (at, n, gap, even)."""
    while at < stop:
        point, size = np.int64(get(text, at)), 1
        if point >= 0x80:
            point, size = decode(text, at)
        elif has_crlf & (point == 13) and at + 1 < end and get(text, at + 1) == 10:
            point, size = np.int64(CRLF), 2
        kind = get(kinds, point)
        if kind == SAME:
            if gap > 0:
                even &= (gap == 1) | (not collapse)
                even &= not (strip_left & (n == _LEAD))
                n = _gap(sign, strip_left, collapse, by_words, point == 0x2581, buffer, n, gap)
                gap = 0
            put(buffer, n, get(text, at))
            for i in range(1, size):
                put(buffer, n + i, get(text, at + i))
            n += size
        elif kind == SPACE:
            gap += 1
        else:
            even &= kind == OTHER
            place, length = np.int64(becomes[point, 0]), np.int64(becomes[point, 1])
            for i in range(place, place + length):
                byte = get(becomes_bytes, i)
                if byte == 0x20:
                    gap += 1
                    continue
                if gap > 0:
                    even &= (gap == 1) | (not collapse)
                    even &= not (strip_left & (n == _LEAD))
                    begins = (
                        i + 3 <= place + length
                        and byte == 0xE2
                        and becomes_bytes[i + 1] == 0x96
                        and becomes_bytes[i + 2] == 0x81
                    )
                    n = _gap(sign, strip_left, collapse, by_words, begins, buffer, n, gap)
                    gap = 0
                put(buffer, n, byte)
                n += 1
        at += size
    return at, n, gap, even


@inlined
def _is_sign(sign, buffer, at, end):
    same = at + len(sign) <= end
    for i in range(len(sign)):
        same = same and get(buffer, at + i) == get(sign, i)
    return same


@compiled
def _best(units, scores, unknown_score, buffer, start, end, ring, back):
    """The best path of buffer[start:end]: back[place] is the id of the entry that ends there, or -1 for a
    character that is none. ring: float64[window], -inf throughout, which it is left as."""
    mask = len(ring) - 1
    root = np.uint64(get(units, 0)) >> UNIT_BASE
    ring[start & mask] = 0.0
    at = start
    while at < end:
        here = get(ring, at & mask)
        put(ring, at & mask, -np.inf)
        first = get(buffer, at)
        after = at + 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0)
        has_single = False
        base = root
        place = at
        while place < end:
            byte = np.uint64(get(buffer, place))
            unit = units[base ^ byte]
            if (unit >> UNIT_LABEL) & np.uint64(0x1FF) != byte | np.uint64(0x100):
                break
            place += 1
            base = unit >> UNIT_BASE
            entry = np.int64(unit & UNIT_ID)
            if entry > 0:
                candidate = get(scores, entry - 1) + here
                if candidate > get(ring, place & mask):
                    put(ring, place & mask, candidate)
                    put(back, place, np.int32(entry - 1))
                has_single |= place == after
        if not has_single:
            candidate = unknown_score + here
            if candidate > get(ring, after & mask):
                put(ring, after & mask, candidate)
                put(back, after, np.int32(-1))
        at = after
    ring[end & mask] = -np.inf


@compiled
def _entry(units, buffer, start, end):
    """The id of the entry buffer[start:end], or -1."""
    base = units[0] >> UNIT_BASE
    entry = np.int64(0)
    for i in range(start, end):
        byte = np.uint64(get(buffer, i))
        unit = units[base ^ byte]
        if (unit >> UNIT_LABEL) & np.uint64(0x1FF) != byte | np.uint64(0x100):
            return np.int64(-1)
        base = unit >> UNIT_BASE
        entry = np.int64(unit & UNIT_ID)
    return entry - 1


@compiled
def _collect(units, widths, unknown, single, buffer, start, end, back, tos, froms):
    """Write the ids of the path that `_best` left in `back` to its end, up to back[end]; with `froms` and
    `tos` (as long, or empty) the bytes each stands for. Unknown characters that stand together are one.
    Returns where they begin."""
    w = end + 1
    stop = end
    has_places = len(tos) > 0
    while stop > start:
        entry = np.int64(get(back, stop))
        at = stop
        if entry >= 0 and entry != unknown:
            at -= np.int64(get(widths, entry))
            w -= 1
            put(back, w, np.int32(entry))
            if has_places:
                froms[w], tos[w] = at, stop
            stop = at
            continue
        while at > start:
            entry = np.int64(get(back, at))
            if entry == unknown:
                at -= np.int64(get(widths, entry))
            elif entry < 0:
                at -= 1
                while get(buffer, at) & 0xC0 == 0x80:
                    at -= 1
            else:
                break
        entry = _entry(units, buffer, at, stop)
        in_bytes = entry < 0
        for i in range(at, stop):
            in_bytes &= get(single, get(buffer, i)) >= 0
        if in_bytes:
            for i in range(stop - 1, at - 1, -1):
                w -= 1
                # What is written over has been read: no id stands for less than a byte.
                put(back, w, get(single, get(buffer, i)))
                if has_places:
                    froms[w], tos[w] = at, stop
        else:
            w -= 1
            put(back, w, np.int32(entry if entry >= 0 else unknown))
            if has_places:
                froms[w], tos[w] = at, stop
        stop = at
    return w


@inlined
def _supervise(spans, near, start, end, mask, t):
    """Write mask[t] of a token of the text start:end; returns (the first span not passed, seams)."""
    while near < len(spans) and spans[near, 1] <= start:
        near += 1
    inside = near < len(spans) and spans[near, 0] < end
    mask[t] = inside
    whole = inside and spans[near, 0] <= start and end <= spans[near, 1]
    return near, np.int64(inside and not whole)


@compiled
def run(model, source):
    """(ids int32[t], mask uint8[t] or [0], the tokens up to each piece's end int64[p], seams int32[p],
    uint8[p] why a piece was left to the reference, else 0)."""
    text, pieces, skip, normal = source.text, source.pieces, source.skip, source.normal
    matches, own_pieces, own_matches = source.matches, source.own_pieces, source.own_matches
    spans, has_spans = source.spans, source.has_spans
    kinds, normal_kinds, becomes, becomes_bytes = (
        model.kinds,
        model.normal_kinds,
        model.becomes,
        model.becomes_bytes,
    )
    strip_left, strip_right, collapse = model.strip_left, model.strip_right, model.collapse
    sign, prefix, meta = model.sign, model.prefix, model.meta
    units, scores, widths, single = model.units, model.scores, model.widths, model.single
    hidden_nodes, hidden_first = model.hidden_nodes, model.hidden_first
    n_pieces = len(pieces) - 1
    ids = np.empty(len(text) // 3 + 64, np.int32)
    mask = np.empty(len(ids) if has_spans else 0, np.uint8)
    ends, seams = np.zeros(n_pieces, np.int64), np.zeros(n_pieces, np.int32)
    left = np.zeros(n_pieces, np.uint8)
    buffer = np.empty(4 * _BLOCK, np.uint8)
    back = np.empty(len(buffer) + 1, np.int32)
    froms = np.empty(0, np.int64)
    tos = np.empty(0, np.int64)
    ring = np.full(model.window, -np.inf)
    t = m = span = np.int64(0)
    for piece in range(n_pieces):
        first_token, first_span = t, span
        at, piece_end = pieces[piece], pieces[piece + 1]
        own_at, own_end = own_pieces[piece], own_pieces[piece + 1]
        piece_start = own_at
        if skip[piece] != 0:
            at = piece_end
        while m < len(matches) and matches[m, 3] < piece:
            m += 1
        while at < piece_end and left[piece] == 0:
            segment_end, own_stop = piece_end, own_end
            is_match = m < len(matches) and matches[m, 3] == piece
            if is_match:
                segment_end, own_stop = matches[m, 0], own_matches[m, 0]
            if own_stop == own_at:
                # An added token; what comes before it may have become nothing.
                own_at = own_matches[m, 1]
                if t == len(ids):
                    ids = larger(ids, 0)
                    mask = larger(mask, 0)
                ids[t] = matches[m, 2]
                if has_spans:
                    span, straddling = _supervise(
                        spans, span, own_matches[m, 0], max(own_at, own_matches[m, 0] + 1), mask, t
                    )
                    seams[piece] += straddling
                t += 1
                at = matches[m, 1]
                m += 1
                continue
            # Normalizing.
            shift = at - own_at
            is_normal = normal[piece] != 0
            n, gap, even = np.int64(_LEAD), np.int64(model.by_words), not is_normal and not model.by_words
            while at < segment_end:
                stop = min(at + _BLOCK, segment_end)
                room = n + len(sign) * (gap + 1) + (_BLOCK + 4) * model.growth + 8
                if room > len(buffer):
                    buffer = larger(buffer, room)
                at, n, gap, even = _normalize(
                    normal_kinds if is_normal else kinds,
                    becomes,
                    becomes_bytes,
                    model.has_crlf and not is_normal,
                    strip_left,
                    collapse,
                    model.by_words,
                    sign,
                    text,
                    at,
                    stop,
                    segment_end,
                    buffer,
                    n,
                    gap,
                    even,
                )
            if gap > 0 and not model.by_words:
                if strip_right or (strip_left and n == _LEAD):
                    even = False
                else:
                    even &= gap == 1 or not collapse
                    n = _signs(sign, buffer, n, 1 if collapse else gap)
            start = np.int64(_LEAD)
            if n > start:
                if len(prefix) > 0:
                    start -= len(prefix)
                    buffer[start:_LEAD] = prefix
                elif (meta == 1 or (meta == 2 and own_at == piece_start)) and not _is_sign(
                    sign, buffer, start, n
                ):
                    start -= len(sign)
                    buffer[start:_LEAD] = sign
            if len(hidden_nodes) > 1 and next_match(buffer, start, n, hidden_nodes, hidden_first)[0] >= 0:
                left[piece] = HIDDEN
                break
            # The best path of each part.
            if n >= len(back):
                back = np.empty(len(buffer) + 1, np.int32)
            inside = False
            if has_spans:
                while span < len(spans) and spans[span, 1] <= own_at:
                    span += 1
                inside = span < len(spans) and spans[span, 0] < own_stop
                if inside and not (spans[span, 0] <= own_at and own_stop <= spans[span, 1]):
                    if not even:
                        left[piece] = BORDER
                        break
                    if len(tos) < len(back):
                        froms, tos = np.empty(len(back), np.int64), np.empty(len(back), np.int64)
                    inside = False
                else:
                    # All of one kind, wherever its tokens come from.
                    even = False
            places = even and has_spans
            near = span
            before, own_place, own_after = np.int64(_LEAD), own_at, own_at
            while start < n:
                stop = n
                if model.split:
                    stop = start + 1
                    while stop < n and not _is_sign(sign, buffer, stop, n):
                        stop += 1
                _best(units, scores, model.unknown_score, buffer, start, stop, ring, back)
                w = _collect(
                    units,
                    widths,
                    model.unknown,
                    single,
                    buffer,
                    start,
                    stop,
                    back,
                    tos if places else tos[:0],
                    froms,
                )
                count = stop + 1 - w
                if t + count > len(ids):
                    ids = larger(ids, t + count)
                    if has_spans:
                        mask = larger(mask, len(ids))
                for i in range(count):
                    put(ids, t + i, get(back, w + i))
                if places:
                    for i in range(w, stop + 1):
                        # Walk both texts, a character each, to where the token begins and ends; fallback
                        # bytes of one text share both.
                        if i == w or froms[i] != froms[i - 1]:
                            own_place = own_after
                            while before < tos[i]:
                                before += decode(buffer, before)[1]
                                own_after += decode(text, own_after + shift)[1]
                        # A token of no bytes, the prefix, counts as the character that follows.
                        near, straddling = _supervise(
                            spans, near, own_place, max(own_after, own_place + 1), mask, t + i - w
                        )
                        seams[piece] += straddling
                elif has_spans:
                    mask[t : t + count] = inside
                t += count
                start = stop
            at, own_at = segment_end, own_stop
        if left[piece] != 0:
            t, span = first_token, first_span
            seams[piece] = 0
        ends[piece] = t
    return ids[:t], mask[:t] if has_spans else mask, ends, seams, left


@compiled
def next_border(text, at, end, unsettled):
    """The first place from `at` on, or `end`, with a settled character on either side: what characters become
    on one does not depend on the other."""
    while at < end and text[at] & 0xC0 == 0x80:
        at += 1
    was_open = True
    was_return = False
    while at < end:
        point, size = decode(text, at)
        is_open = unsettled[point]
        if not (was_open or is_open or (was_return and point == 10)):
            return at
        was_open, was_return = is_open, point == 13
        at += size
    return end
