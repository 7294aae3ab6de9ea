"""What goes before cutting: added tokens are found, and text that may not be in normal form."""

from __future__ import annotations

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from coverage_job.counting.bpe_model import SPACE
from coverage_job.counting.compiled import compiled, get, inlined
from coverage_job.counting.patterns import Unsupported
from coverage_job.counting.split import decode

Array = npt.NDArray[Any]


def read_added(
    added: Sequence[dict[str, Any]], tokenizer: Tokenizer, spaces: bool = False
) -> dict[str, Array]:
    """Added tokens as tries of bytes: `raw_*`, looked for in the text as it is, and `normal_*`, looked for
    in what is left, normalized. Those with flags of white space or words are found, not encoded: -2.

    spaces: normalizing changes spaces, so that what is looked for in normalized text would be missed in the
    text. A text that holds such a token without its spaces, which it must to hold it at all, is found by
    `suspect_*`.
    """
    tries: dict[str, dict[bytes, int]] = {"raw": {}, "normal": {}, "suspect": {}}
    for token in added:
        content = token["content"]
        if token["normalized"] and spaces:
            tries["suspect"][content.replace(SPACE, "").replace(" ", "").encode()] = -2
            continue
        if token["normalized"] and tokenizer.normalizer is not None:
            content = tokenizer.normalizer.normalize_str(content)
        flagged = token["lstrip"] or token["rstrip"] or token["single_word"]
        if content:
            kind = "normal" if token["normalized"] else "raw"
            tries[kind][content.encode()] = -2 if flagged else token["id"]
    if b"" in tries["suspect"]:
        raise Unsupported("it has an added token of spaces")
    arrays: dict[str, Array] = {}
    for name, literals in tries.items():
        nodes, first = trie(literals)
        arrays |= {f"{name}_nodes": nodes, f"{name}_first": first}
    return arrays


def trie(literals: dict[bytes, int]) -> tuple[Array, Array]:
    """int32[n, 4] of (byte, first child, next sibling, id or -1), row 0 unused; and the node of each first
    byte (int32[256], 0 where none)."""
    nodes: list[list[int]] = [[0, 0, 0, -1]]
    first = np.zeros(256, np.int32)
    for data, i in sorted(literals.items()):
        parent = 0
        for depth, byte in enumerate(data):
            at = int(first[byte]) if depth == 0 else nodes[parent][1]
            while at and nodes[at][0] != byte:
                at = nodes[at][2]
            if not at:
                nodes.append([byte, 0, 0 if depth == 0 else nodes[parent][1], -1])
                at = len(nodes) - 1
                if depth == 0:
                    first[byte] = at
                else:
                    nodes[parent][1] = at
            parent = at
        nodes[parent][3] = i
    return np.array(nodes, np.int32), first


@inlined
def _may_begin(text, at, first):
    """Whether an added token may begin at one of the 8 bytes from `at` on."""
    found = get(first, get(text, at)) | get(first, get(text, at + 1))
    found |= get(first, get(text, at + 2)) | get(first, get(text, at + 3))
    found |= get(first, get(text, at + 4)) | get(first, get(text, at + 5))
    return (found | get(first, get(text, at + 6)) | get(first, get(text, at + 7))) != 0


@inlined
def next_match(text, at, end, nodes, first):
    """(start, end, id) of the leftmost and there longest added token in text[at:end]; start is -1 where
    none."""
    while at < end:
        while at + 8 <= end and not _may_begin(text, at, first):
            at += 8
        if at == end:
            break
        node = np.int64(get(first, get(text, at)))
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
    """Added tokens of all pieces as rows of `matches` (start, end, id, piece), in order: those looked for
    in raw text first, then others between them. Returns their number, which may exceed the room: then call
    again."""
    n = 0
    has_raw = len(raw_nodes) > 1
    has_other = len(nodes) > 1
    for piece in range(len(pieces) - 1):
        at, piece_end = pieces[piece], pieces[piece + 1]
        while at < piece_end:
            start, end, token = np.int64(-1), np.int64(-1), np.int64(-1)
            if has_raw:
                start, end, token = next_match(text, at, piece_end, raw_nodes, raw_first)
            if has_other:
                limit = start if start >= 0 else piece_end
                while at < limit:
                    s, e, i = next_match(text, at, limit, nodes, first)
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
