"""Which characters normalizing leaves to themselves, whatever stands beside them."""

from __future__ import annotations

import struct
import unicodedata

import numpy as np
from tokenizers import normalizers

from coverage_job.counting.patterns import CODE_POINTS, Bools, Form

# Hangul letters join one another to a cluster, Kirat Rai vowels too, and flags are pairs.
_JOINING = [(0x1100, 0x1200), (0xA960, 0xA980), (0xD7B0, 0xD800), (0x16D63, 0x16D6B), (0x1F1E6, 0x1F200)]


def unsettled(form: Form) -> Bools:
    """The code points whose presence leaves open whether a text is in normal form: bool[0x110000].

    A text of settled characters alone is in normal form whatever their order: each is a starter, is its own
    normal form, and never composes with what stands before it. The Unicode stability policy keeps this
    true of assigned characters in all versions; those that this Python does not know are unsettled.
    """
    found = np.zeros(CODE_POINTS, np.bool_)
    second: set[int] = set()
    for c in range(CODE_POINTS):
        decomposition = unicodedata.decomposition(chr(c))
        if decomposition and not decomposition.startswith("<"):
            second.update(int(p, 16) for p in decomposition.split()[1:])
    for c in range(CODE_POINTS):
        character = chr(c)
        found[c] = (
            unicodedata.category(character) in ("Cn", "Cs")
            or unicodedata.combining(character) != 0
            or unicodedata.normalize(form, character) != character
            or c in second
            or 0x1160 <= c <= 0x11FF  # vowels and finals of Hangul compose by rule
        )
    return found


def join_clusters() -> Bools:
    """The code points that may stand in a grapheme cluster with others: bool[0x110000].

    Asked of the engine that maps clusters (normalizers.Precompiled): a map in which every text becomes
    a letter for each of its clusters. A text of the other characters alone is one cluster a character; but
    for a line feed, which joins the carriage return before it.
    """
    units = np.zeros(1024, np.uint32)
    units[0] = 256 << 10
    for byte in range(1, 256):
        # Units as of darts-clone: the label, a flag that a value follows, and the way to it.
        units[256 + byte] = byte | 1 << 8 | 768 << 10
        units[512 + byte] = 2 if byte == 10 else 0
    data = struct.pack("<I", 4 * len(units)) + units.tobytes() + b"x\0\n\0"
    count = normalizers.Precompiled(data).normalize_str
    found = np.ones(CODE_POINTS, np.bool_)
    for first in range(0, CODE_POINTS, 4096):
        part = [c for c in range(first, first + 4096) if c != 10 and not 0xD800 <= c < 0xE000]
        if part:
            counted = count("\n".join(f"a{chr(c)}a" for c in part)).split("\n")
            found[part] = [len(letters) != 3 for letters in counted]
    found[10] = False
    for first, after in _JOINING:
        found[first:after] = True
    return found
