"""The 256 printable characters that byte-level tokenizers write bytes as (GPT-2's table)."""

from __future__ import annotations

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_REST = [b for b in range(256) if b not in set(_PRINTABLE)]

ALPHABET: dict[int, str] = {b: chr(b) for b in _PRINTABLE} | {b: chr(0x100 + i) for i, b in enumerate(_REST)}
BYTES: dict[str, int] = {c: b for b, c in ALPHABET.items()}

_ENCODE = {b: ord(c) for b, c in ALPHABET.items()}


def to_alphabet(data: bytes) -> str:
    """Bytes as the alphabet writes them.

    >>> to_alphabet(b" a\\xe5")
    'Ġaå'
    """
    return data.decode("latin-1").translate(_ENCODE)


def from_alphabet(text: str) -> bytes | None:
    """The bytes that a text of the alphabet stands for; None where a character is not of it.

    >>> from_alphabet("Ġa"), from_alphabet("日")
    (b' a', None)
    """
    try:
        return bytes(map(BYTES.__getitem__, text))
    except KeyError:
        return None
