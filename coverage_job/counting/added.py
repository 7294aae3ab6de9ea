"""Compiled searches that go before cutting: added tokens, and text that may not be in normal form."""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
import numpy as np

from coverage_job.counting.compiled import compiled, inlined
from coverage_job.counting.split import decode


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
            point, size = decode(text, at)
            if unsettled[point]:
                found[piece] = 1
                break
            at += size
    return found
