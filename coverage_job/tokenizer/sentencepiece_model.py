"""SentencePiece `.model` files (BPE and Unigram) as a `tokenizers.Tokenizer`.

The file is one protocol buffer (`sentencepiece_model.proto`): pieces with score and type, a trainer's and a
normalizer's settings. The few fields needed are read from the wire format, so that the package itself is not
wanted. No pre-tokenizer is set: the models run over the whole normalized text, as SentencePiece does.

Control pieces are added as special tokens and recognised in text (SentencePiece never reads them from text).
Two more differences are known. SentencePiece adds Unigram scores in 32 bits, so that among paths of equal
score (runs of spaces) rounding decides, by the position in the text; here the arithmetic is in 64 bits. And
where a model knows not even the characters of ``<0x0A>``, that text is read as the byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from coverage_job.errors import TokenizerError

SPACE = "▁"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    type: int


@dataclass(frozen=True)
class Model:
    """What is used of a model file."""

    pieces: list[Piece]
    model_type: int
    byte_fallback: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a message: an int for a varint, bytes for all else."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 1:
            size = 8
        elif wire == 5:
            size = 4
        elif wire == 2:
            size, at = _varint(data, at)
        else:
            raise ValueError(f"wire type {wire}")
        if number == 0 or at + size > end:
            raise ValueError("a field that ends past its message")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number that does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def read(path: str, data: bytes) -> Model:
    """The model of a file's bytes. Raises TokenizerError where they are not one that can be used."""
    try:
        model = _read(data)
    except (ValueError, TypeError, struct.error) as error:
        raise TokenizerError(
            f"tokenizer {path}: not a SentencePiece model ({error}); give a tokenizer.json, tekken.json, "
            "*.model or a rank file with its pattern"
        ) from None
    if model.model_type not in (UNIGRAM, BPE):
        raise TokenizerError(
            f"tokenizer {path}: SentencePiece model type {model.model_type} (word or char); "
            "BPE and Unigram are read"
        )
    if model.model_type == BPE and any(p.type == UNUSED for p in model.pieces):
        raise TokenizerError(f"tokenizer {path}: a BPE model with unused pieces; give its tokenizer.json")
    if not any(p.type == NORMAL for p in model.pieces):
        raise TokenizerError(f"tokenizer {path}: a SentencePiece model without one normal piece")
    if sum(p.type == UNKNOWN for p in model.pieces) != 1:
        raise TokenizerError(f"tokenizer {path}: a SentencePiece model has exactly one unknown piece")
    return model


def _read(data: bytes) -> Model:
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            fields = dict(_fields(value))
            text, score, kind = fields.get(1, b""), fields.get(2, b"\0\0\0\0"), fields.get(3, NORMAL)
            if not isinstance(text, bytes) or not isinstance(score, bytes) or not isinstance(kind, int):
                raise ValueError("a piece of another form")
            pieces.append(Piece(text.decode("utf-8"), struct.unpack("<f", score)[0], kind))
        elif number == 2 and isinstance(value, bytes):
            trainer = dict(_fields(value))
        elif number == 3 and isinstance(value, bytes):
            normalizer = dict(_fields(value))
    if not pieces:
        raise ValueError("no pieces")
    if len({p.text for p in pieces}) != len(pieces):
        raise ValueError("a piece that stands twice")
    if trainer.get(24, 0):
        raise ValueError("treat_whitespace_as_suffix is set, which is not supported")
    charsmap = normalizer.get(2, b"")
    return Model(
        pieces=pieces,
        model_type=int(trainer.get(3, UNIGRAM)),
        byte_fallback=bool(trainer.get(35, 0)),
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
        escape_whitespaces=bool(normalizer.get(5, 1)),
    )


def build(path: str, model: Model) -> Tokenizer:
    """The tokenizer of a model. Raises TokenizerError."""
    tokenizer = Tokenizer(_bpe(model) if model.model_type == BPE else _unigram(model))
    isolated = [p.text for p in model.pieces if p.type == USER_DEFINED and not _in_model(model, p)]
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    space = SPACE if model.escape_whitespaces else " "
    if model.add_dummy_prefix and not isolated:
        steps.append(normalizers.Prepend(space))
    if model.escape_whitespaces:
        steps.append(normalizers.Replace(" ", SPACE))
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    if model.add_dummy_prefix and isolated:
        # A normalizer would put the prefix after each user-defined piece too.
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(space, prepend_scheme="first", split=False)
    start = [decoders.Strip(" ", 1, 0)] if model.add_dummy_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *start]
    )
    tokenizer.add_special_tokens(
        [
            AddedToken(p.text, special=True, normalized=False)
            for p in model.pieces
            if p.type in (UNKNOWN, CONTROL)
        ]
    )
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in isolated])
    return tokenizer


def _in_model(model: Model, piece: Piece) -> bool:
    """Whether a user-defined piece can be left to the model: Unigram's, which normalizing leaves alone."""
    if model.model_type != UNIGRAM or " " in piece.text:
        return False
    return (
        not model.charsmap or normalizers.Precompiled(model.charsmap).normalize_str(piece.text) == piece.text
    )


def _unigram(model: Model) -> models.Unigram:
    pieces = model.pieces
    known = [p.score for p in pieces if p.type == NORMAL]
    lowest, highest = min(known), max(known)
    # Control, byte and unused pieces are no part of the lattice, which here holds every entry: a score that
    # loses to any other path over the same known characters keeps them out.
    never = (lowest - 10.0) * (2 + max(len(p.text) for p in pieces))
    scores = []
    for p in pieces:
        if p.type == USER_DEFINED:
            scores.append((p.text, len(p.text.encode()) * highest - 0.1))
        else:
            scores.append((p.text, p.score if p.type == NORMAL else never))
    unknown = next(i for i, p in enumerate(pieces) if p.type == UNKNOWN)
    return models.Unigram(scores, unknown, model.byte_fallback)


def _bpe(model: Model) -> models.BPE:
    pieces = model.pieces
    # The best score merges first, the leftmost of equals; see `ranks` for why a piece has one merge.
    mergeable = {p.text: p.score for p in pieces if p.type == NORMAL}
    # Runs of spaces often share one score: the leftmost of equals grows first, as if longer ones were better.
    order = sorted(mergeable, key=lambda text: (-mergeable[text], -len(text)))
    rank = {text: i for i, text in enumerate(order)}
    merges = []
    for text in order:
        pair = _last_merge(mergeable, text) if len(text) > 1 else None
        if pair is not None and all(part in rank for part in pair):
            merges.append(pair)
    unknown = next(p.text for p in pieces if p.type == UNKNOWN)
    return models.BPE(
        {p.text: i for i, p in enumerate(pieces)},
        merges,
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _last_merge(scores: dict[str, float], text: str) -> tuple[str, str] | None:
    parts = list(text)
    while True:
        best, at = 0.0, -1
        for i in range(len(parts) - 1):
            score = scores.get(parts[i] + parts[i + 1])
            if score is not None and (at < 0 or score > best):
                best, at = score, i
        if at < 0:
            return None
        left, right = parts[at], parts[at + 1]
        if len(parts) == 2:
            return left, right
        parts[at : at + 2] = [left + right]
