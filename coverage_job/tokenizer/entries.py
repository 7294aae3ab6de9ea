"""What each id of a tokenizer is: its bytes and its kind, whatever the family writes them as."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, models

from coverage_job.schemas import Decodable, Kind
from coverage_job.tokenizer.byte_alphabet import from_alphabet

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


@dataclass(frozen=True)
class Family:
    """How a tokenizer writes text into its vocabulary.

    model: BPE, Unigram, WordPiece or WordLevel. byte_level: entries are in the byte alphabet.
    byte_fallback: entries ``<0xNN>`` are bytes. space_mark: what stands for a space, such as ``▁``.
    continuing_prefix, end_suffix: what marks a piece inside or at the end of a word (``##``, ``</w>``).
    adds_prefix: whether a space is put before the text.
    """

    model: str
    byte_level: bool
    byte_fallback: bool
    space_mark: str
    continuing_prefix: str
    end_suffix: str
    adds_prefix: bool


@dataclass(frozen=True)
class Entry:
    """One id. content: as the tokenizer writes it. data: the bytes of text it stands for."""

    content: str
    data: bytes
    kind: Kind
    continues: bool  # stands inside a word only


def _parts(component: Any) -> Iterator[dict[str, Any]]:
    """The parts of a normalizer, pre-tokenizer or decoder, sequences opened."""
    if component is None:
        return
    state = component if isinstance(component, dict) else json.loads(component.__getstate__())
    nested = state.get("normalizers") or state.get("pretokenizers") or state.get("decoders")
    if nested is None:
        yield state
        return
    for part in nested:
        yield from _parts(part)


def family(tokenizer: Tokenizer) -> Family:
    """The family of a tokenizer, read off its parts."""
    normalizer, splitter = list(_parts(tokenizer.normalizer)), list(_parts(tokenizer.pre_tokenizer))
    decoder = list(_parts(tokenizer.decoder))
    model = tokenizer.model
    mark, adds_prefix = "", False
    for part in decoder:
        if part["type"] == "Replace" and part["content"] == " ":
            mark = part["pattern"].get("String", mark)
    for part in normalizer:
        if part["type"] == "Replace" and part["pattern"].get("String") == " ":
            mark = part["content"]
        adds_prefix = adds_prefix or part["type"] == "Prepend"
    for part in splitter + decoder:
        if part["type"] == "Metaspace":
            mark = part["replacement"]
            scheme = part.get("prepend_scheme", "always" if part.get("add_prefix_space") else "never")
            adds_prefix = adds_prefix or scheme != "never"
    for part in splitter:
        adds_prefix = adds_prefix or (part["type"] == "ByteLevel" and part["add_prefix_space"])
    return Family(
        model=type(model).__name__,
        byte_level=any(part["type"] == "ByteLevel" for part in normalizer + splitter + decoder),
        byte_fallback=_falls_back(model),
        space_mark=mark,
        continuing_prefix=getattr(model, "continuing_subword_prefix", None) or "",
        end_suffix=getattr(model, "end_of_word_suffix", None) or "",
        adds_prefix=adds_prefix,
    )


def _falls_back(model: Any) -> bool:
    if isinstance(model, models.Unigram):
        # Not among its attributes; the last of its state, which holds the whole vocabulary.
        return bytes(model.__getstate__()).rstrip().endswith(b'"byte_fallback":true}')
    return bool(getattr(model, "byte_fallback", False))


def entries(tokenizer: Tokenizer, of: Family) -> dict[int, Entry]:
    """Every id that has an entry; ids that are missing are holes."""
    added = tokenizer.get_added_tokens_decoder()
    found: dict[int, Entry] = {}
    for content, i in tokenizer.get_vocab(with_added_tokens=True).items():
        token = added.get(i)
        if token is not None:
            text = (
                token.content
                if token.special or not of.space_mark
                else token.content.replace(of.space_mark, " ")
            )
            found[i] = Entry(content, text.encode(), Kind.SPECIAL if token.special else Kind.ADDED, False)
            continue
        found[i] = _model_entry(content, of)
    return found


def _model_entry(content: str, of: Family) -> Entry:
    text, continues = content, False
    if of.end_suffix and text.endswith(of.end_suffix):
        text = text[: -len(of.end_suffix)]
    if of.continuing_prefix and text.startswith(of.continuing_prefix):
        text, continues = text[len(of.continuing_prefix) :], True
    if of.byte_level:
        data = from_alphabet(text)
        if data is None:
            return Entry(content, text.encode(), Kind.BASE, continues)
        return Entry(content, data, Kind.BYTE if len(data) == 1 else Kind.BASE, continues)
    if of.byte_fallback and (match := _BYTE_PIECE.match(text)):
        return Entry(content, bytes([int(match[1], 16)]), Kind.BYTE, continues)
    if of.space_mark:
        text = text.replace(of.space_mark, " ")
    return Entry(content, text.encode(), Kind.BASE, continues)


def text_of(data: bytes) -> str | None:
    """The text that bytes are; None where they are no UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def decodable(data: bytes) -> Decodable:
    """What bytes are by themselves: text, one byte of a longer character, or parts of characters.

    >>> [decodable(b).value for b in (b"A", b"\\xe5", b"\\xe5\\x98", "嘉".encode())]
    ['utf8', 'byte', 'partial', 'utf8']
    """
    if text_of(data) is not None:
        return Decodable.UTF8
    return Decodable.BYTE if len(data) == 1 else Decodable.PARTIAL


def begun_by(head: bytes) -> range:
    """The code points whose UTF-8 begins with some bytes (surrogates among them); empty where none does.

    >>> [hex(code) for code in begun_by("嘉".encode()[:2])[:: 63]]
    ['0x5600', '0x563f']
    """
    if not head or not 0xC2 <= head[0] <= 0xF4 or any(b & 0xC0 != 0x80 for b in head[1:]):
        return range(0)
    size = 2 if head[0] < 0xE0 else 3 if head[0] < 0xF0 else 4
    if len(head) > size:
        return range(0)
    code = head[0] & (0xFF >> (size + 1))
    for byte in head[1:]:
        code = code << 6 | byte & 0x3F
    missing = 6 * (size - len(head))
    shortest = (0x80, 0x800, 0x10000)[size - 2]  # below, a shorter form is the only one allowed
    return range(max(code << missing, shortest), min(((code + 1) << missing), 0x110000))
