"""What the kernel needs of a BPE model: its symbols, its merges, and which pairs of characters they span."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from coverage_job.counting.bpe import MAX_IDS, MAX_MERGES, find_used, index_pairs
from coverage_job.counting.patterns import CODE_POINTS, Unsupported
from coverage_job.counting.scan import ASCII_PAIRS
from coverage_job.counting.table import LONG
from coverage_job.tokenizer.byte_alphabet import BYTES

Array = npt.NDArray[Any]
SPACE = "▁"  # what SentencePiece writes a space as
# Bytes that no UTF-8 text holds.
_NEVER = {0xC0, 0xC1, *range(0xF5, 0x100)}
_MAX_GROUPS = 4096
# Stand for a group of characters, by their first or last bytes, in the set of spanned pairs.
GROUPS_FROM = CODE_POINTS


def _merge_pairs(merges: Iterable[Any]) -> Iterable[tuple[str, str]]:
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right


def byte_model(model: dict[str, Any]) -> dict[str, Array]:
    alphabet, vocab = BYTES, model["vocab"]
    single = np.full(256, -1, np.int32)
    for character, byte in alphabet.items():
        single[byte] = vocab.get(character, -1)
    missing = [b for b in range(256) if single[b] < 0 and b not in _NEVER]
    if missing:
        raise Unsupported(f"its vocabulary has no token for the byte 0x{missing[0]:02X}")
    spelled = {}
    for token, i in vocab.items():
        if all(c in alphabet for c in token):
            spelled[i] = bytes(alphabet[c] for c in token)
    merges = np.array(
        [(vocab[a], vocab[b], vocab[a + b]) for a, b in _merge_pairs(model["merges"])], np.int32
    ).reshape(-1, 3)
    # A product spelled outside the alphabet can never arise from text.
    products = {spelled[i] for i in merges[:, 2].tolist() if i in spelled}
    rows = max(vocab.values()) + 1
    widths = np.zeros(rows, np.int32)
    for i, data in spelled.items():
        widths[i] = len(data)
    if len(widths) > MAX_IDS or len(merges) > MAX_MERGES or widths.max() > LONG:
        raise Unsupported("its vocabulary is too large")
    merges = _used(merges, spelled, single)
    whole = (
        {data.decode(): i for i, data in spelled.items() if is_text(data)}
        if model.get("ignore_merges")
        else {}
    )
    return {
        "single": single,
        "merges": merges,
        "widths": widths,
        "spans": widths,
        "symbols": _whole_characters(merges, spelled, single),
        **word_list("whole", whole),
        **_spanned(products),
    }


def _used(merges: Array, spelled: dict[int, bytes], single: Array) -> Array:
    """The merges that can ever be made, in order."""
    texts = [spelled[i] for i in np.unique(merges[:, 2]).tolist() if i in spelled]
    used = np.zeros(len(merges), np.bool_)
    find_used(
        np.frombuffer(b"".join(texts), np.uint8),
        np.cumsum([0] + [len(t) for t in texts]),
        single,
        index_pairs(merges),
        np.ascontiguousarray(merges[:, 2]),
        used,
    )
    return merges[used]


def _whole_characters(merges: Array, spelled: dict[int, bytes], single: Array) -> Array:
    """int32[0x110000]: the token that the bytes of a character become before any merge could take that token
    further, -1 where there is none. Text may begin with it wherever no product tears the character."""
    symbols = np.full(CODE_POINTS, -1, np.int32)
    symbols[:0x80] = single[:0x80]
    ranks = {(left, right): rank for rank, (left, right, _) in enumerate(merges.tolist())}
    first_use = np.full(int(max(spelled)) + 1, len(merges))
    for side in (0, 1):
        np.minimum.at(first_use, merges[:, side], np.arange(len(merges)))
    for i, data in spelled.items():
        if not (2 <= len(data) <= 4 and is_text(data) and len(data.decode()) == 1):
            continue
        parts, last = [int(single[b]) for b in data], -1
        while len(parts) > 1:
            rank, at = min((ranks.get(pair, len(ranks)), k) for k, pair in enumerate(pairwise(parts)))
            if rank == len(ranks):
                break
            last = max(last, rank)
            parts[at : at + 2] = [int(merges[rank, 2])]
        if parts == [i] and first_use[i] > last:
            symbols[ord(data.decode())] = i
    return symbols


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def character_model(model: dict[str, Any]) -> dict[str, Array]:
    vocab = model["vocab"]
    single = np.array([vocab.get(f"<0x{byte:02X}>", -1) for byte in range(256)], np.int32)
    if not model.get("byte_fallback") or any(single[b] < 0 for b in range(256) if b not in _NEVER):
        # Unknown characters that stand together become one unknown token, wherever one would cut.
        raise Unsupported("it has no byte fallback")
    if model.get("ignore_merges"):
        raise Unsupported("it takes whole texts from its vocabulary")
    merges = np.array(
        [(vocab[a], vocab[b], vocab[a + b]) for a, b in _merge_pairs(model["merges"])], np.int32
    ).reshape(-1, 3)
    spelled = {i: token for token, i in vocab.items()}
    if np.isin(merges[:, :2], single).any():
        raise Unsupported("it merges fallback bytes")
    # Characters that are written as they are; a space is written as its sign.
    symbols = np.full(CODE_POINTS, -1, np.int32)
    for token, i in vocab.items():
        if len(token) == 1:
            symbols[ord(token)] = i
    symbols[ord(" ")] = symbols[ord(SPACE)]
    if symbols[ord(SPACE)] < 0:
        raise Unsupported("it has no sign for a space")
    widths = np.zeros(max(vocab.values()) + 1, np.int32)
    for i, token in spelled.items():
        widths[i] = len(token)
    spans = widths.copy()
    widths[single[single >= 0]] = 1
    # A fallback byte is a byte of the text, all others so many characters.
    spans[single[single >= 0]] = -1
    if len(widths) > MAX_IDS or len(merges) > MAX_MERGES or widths.max() > LONG:
        raise Unsupported("its vocabulary is too large")
    products = {spelled[i] for i in merges[:, 2].tolist()}
    # Cuts are sought in the text before normalizing, where a space is a space or its sign.
    products |= {p.replace(SPACE, " ") for p in products} | {
        a + b
        for p in products
        for x, y in pairwise(p)
        if SPACE in (x, y)
        for a in (x, " " if x == SPACE else x)
        for b in (y, " " if y == SPACE else y)
    }
    return {
        "single": single,
        "symbols": symbols,
        "merges": merges,
        "widths": widths,
        "spans": spans,
        **word_list("whole", {}),
        **_spanned(p.encode() for p in products),
    }


def word_list(name: str, words: dict[str, int]) -> dict[str, Array]:
    listed = [(text.encode(), i) for text, i in sorted(words.items()) if text]
    return {
        f"{name}_ids": np.array([i for _, i in listed], np.int32),
        f"{name}_ends": np.cumsum([0] + [len(d) for d, _ in listed]).astype(np.int64),
        f"{name}_bytes": np.frombuffer(b"".join(d for d, _ in listed), np.uint8),
    }


def _spanned(products: Iterable[bytes]) -> dict[str, Array]:
    """Which pairs of neighbouring characters some product spans.

    A product may begin with the last bytes of a character and end with the first bytes of one. Those ends are
    kept by groups: characters that end (begin) with the same such bytes.

    Returns `pairs`, a Bloom-like set (see _bits): one wrongly found only means a cut less; `groups`
    uint32[0x110000]: left group << 16 | right group, 0 where none; and `torn`, as `pairs`, where the product
    begins or ends inside one of the two.
    """
    pairs: set[tuple[int, int]] = set()
    heads: set[tuple[bytes, int]] = set()
    tails: set[tuple[int, bytes]] = set()
    both: set[tuple[bytes, bytes]] = set()
    for data in products:
        first = 0
        while first < len(data) and data[first] & 0xC0 == 0x80:
            first += 1
        head, rest, tail = data[:first], data[first:], b""
        try:
            text = rest.decode()
        except UnicodeDecodeError as error:
            # Only what ends inside its last character can stand in a text.
            if error.end != len(rest) or error.reason != "unexpected end of data":
                continue
            text, tail = rest[: error.start].decode(), rest[error.start :]
        if len(head) > 3:
            continue
        points = list(map(ord, text))
        pairs.update(pairwise(points))
        if points and head:
            heads.add((head, points[0]))
        if points and tail:
            tails.add((points[-1], tail))
        if head and tail and not points:
            both.add((head, tail))
    left_bytes = {h for h, _ in heads} | {h for h, _ in both}
    right_bytes = {t for _, t in tails} | {t for _, t in both}
    left_of, left_groups = _groups(left_bytes, ends=True)
    right_of, right_groups = _groups(right_bytes, ends=False)
    heads_by: dict[bytes, list[int]] = {}
    for h, c in heads:
        heads_by.setdefault(h, []).append(c)
    tails_by: dict[bytes, list[int]] = {}
    for c, t in tails:
        tails_by.setdefault(t, []).append(c)
    torn: set[tuple[int, int]] = set()
    for g, members in enumerate(left_groups, 1):
        torn.update((GROUPS_FROM + g, c) for h in members for c in heads_by.get(h, ()))
        for k, others in enumerate(right_groups, 1):
            if any((h, t) in both for h in members for t in others):
                torn.add((GROUPS_FROM + g, GROUPS_FROM + k))
    for k, others in enumerate(right_groups, 1):
        torn.update((c, GROUPS_FROM + k) for t in others for c in tails_by.get(t, ()))
    return {
        "pairs": _bits(pairs | torn),
        "torn": _bits(torn),
        "groups": left_of << np.uint32(16) | right_of,
    }


def _groups(parts: set[bytes], ends: bool) -> tuple[npt.NDArray[np.uint32], list[frozenset[bytes]]]:
    """Characters by which of `parts` they end (begin) with, as proper parts: a group per code point (0 where
    none), and the parts of each group from 1 on."""
    of = np.zeros(CODE_POINTS, np.uint32)
    numbers: dict[frozenset[bytes], int] = {}
    if parts:
        for c in range(0x80, CODE_POINTS):
            if 0xD800 <= c < 0xE000:
                continue
            data = chr(c).encode()
            found = frozenset(
                p for n in range(1, len(data)) if (p := data[-n:] if ends else data[:n]) in parts
            )
            if found:
                of[c] = numbers.setdefault(found, len(numbers) + 1)
    if len(numbers) >= _MAX_GROUPS:
        raise Unsupported("its merges end inside characters in too many ways")
    return of, list(numbers)


def _bits(keys: set[tuple[int, int]]) -> npt.NDArray[np.uint8]:
    """A bit for each pair of ASCII characters (left << 7 | right), then 2^k bits for all others, by hash."""
    table = np.array(sorted(keys), np.uint64).reshape(-1, 2)
    size = 16
    while 1 << size < 64 * len(table):
        size += 1
    size = min(size, 26)
    left, right = table.T
    h = ((left << np.uint64(21)) | right) * np.uint64(0x9E3779B97F4A7C15)
    hashed = ASCII_PAIRS + (h >> np.uint64(64 - size)).astype(np.int64)
    plain = (left << np.uint64(7) | right).astype(np.int64)
    bits = np.zeros(ASCII_PAIRS + (1 << size), np.bool_)
    bits[np.where(left | right < np.uint64(0x80), plain, hashed)] = True
    return np.packbits(bits, bitorder="little")
