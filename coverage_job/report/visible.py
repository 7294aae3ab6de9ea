"""Token text as HTML in which nothing hides and nothing acts.

Characters without a glyph (controls, bidi marks, zero-width, exotic spaces, private use) become chips
that name them; every text is isolated from the direction of what stands around it. The page's script
does the same for what it shows (`visible` in `templates/visible.js`).
"""

from __future__ import annotations

import re
import unicodedata
from itertools import groupby

from markupsafe import Markup, escape

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Drawn as nothing although their category is that of a letter or a mark (Default_Ignorable_Code_Point).
_IGNORABLE = frozenset([0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10)])
_LONG_RUN = 6


def hidden(character: str) -> bool:
    """Whether a character shows nothing of itself, the plain space excepted.

    >>> [hidden(c) for c in "a \\u202e\\u00a0\\u3164"]
    [False, False, True, True, True]
    """
    code, category = ord(character), unicodedata.category(character)
    return (
        category[0] == "C"
        or category in ("Zl", "Zp")
        or (category == "Zs" and character != " ")
        or code in _IGNORABLE
        or 0xE0100 <= code < 0xE01F0
    )


def visible(text: str) -> Markup:
    """A text as HTML: markup escaped, hidden characters named, spaces at its borders shown.

    >>> visible("<b> ")
    Markup('<bdi>&lt;b&gt;<span class="chip">␣</span></bdi>')
    >>> visible("a\\u202eb\\n")
    Markup('<bdi>a<span class="chip">U+202E</span>b<span class="chip">\\\\n</span></bdi>')
    """
    if not text:
        return Markup('<span class="note">(empty)</span>')
    bare = text.strip(" ")
    start = len(text) - len(text.lstrip(" "))
    end = start + len(bare)
    parts: list[str] = []
    if bare and unicodedata.category(bare[0])[0] == "M":
        parts.append("◌")
    position = 0
    for character, run in groupby(text):
        length = len(list(run))
        inside = start <= position < end
        position += length
        if hidden(character) or (character == " " and (length > 1 or not inside)):
            name = "␣" if character == " " else _NAMED.get(character, f"U+{ord(character):04X}")
            names = [f"{name}×{length}"] if length >= _LONG_RUN else [name] * length
            parts += [Markup('<span class="chip">{}</span>').format(n) for n in names]
        else:
            parts.append(escape(character * length))
    return Markup("<bdi>{}</bdi>").format(Markup("").join(parts))


def visible_bytes(data: bytes) -> Markup:
    """Bytes that should be UTF-8, those that are not named in hex.

    >>> visible_bytes(b"ab\\xff")
    Markup('<bdi>ab</bdi><span class="chip">0xFF</span>')
    """
    parts = []
    for piece in re.split("([\udc80-\udcff]+)", data.decode("utf-8", "surrogateescape")):
        if not piece:
            continue
        if "\udc80" <= piece[0] <= "\udcff":
            names = " ".join(f"0x{ord(c) - 0xDC00:02X}" for c in piece)
            parts.append(Markup('<span class="chip">{}</span>').format(names))
        else:
            parts.append(visible(piece))
    return Markup("").join(parts)
