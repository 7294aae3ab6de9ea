"""Byte-level BPE from ranks: `*.tiktoken` files and Mistral's `tekken.json`.

A rank file lists byte strings; a pair of neighbours merges where its concatenation is listed, the lowest rank
first and the leftmost of equals. `tokenizers` wants the pairs themselves. A token can be made from one pair
only: its bytes merge in the same order wherever they stand, as long as no merge crosses their border, and one
that crosses it makes another token. So the last step of a token's own merging is its merge; a token that its
own bytes do not lead to has none, and is found as a whole pre-token only (`ignore_merges`).
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from coverage_job.errors import TokenizerError
from coverage_job.tokenizer.byte_alphabet import to_alphabet

# What tekken files before version 11 leave to their reader: the first ids, in order.
_TEKKEN_SPECIAL = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
]


@dataclass(frozen=True)
class RankModel:
    """A rank file as read.

    ranks: bytes -> rank. offset: what is added to a rank to make an id.
    special: text -> id, with whether it is a control token.
    """

    ranks: dict[bytes, int]
    offset: int
    pattern: str
    normalizer: str | None
    special: dict[str, tuple[int, bool]]


def read_tiktoken(path: str, data: bytes) -> dict[bytes, int]:
    """Ranks of a file of lines ``<base64> <rank>``. Raises TokenizerError naming the line."""
    ranks: dict[bytes, int] = {}
    seen: set[int] = set()
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            encoded, rank_text = line.split()
            token, rank = base64.b64decode(encoded, validate=True), int(rank_text)
        except (ValueError, binascii.Error):
            raise TokenizerError(
                f"tokenizer {path}: line {number} is not `<base64> <rank>`, one token a line"
            ) from None
        if not token or token in ranks or rank < 0 or rank in seen:
            raise TokenizerError(f"tokenizer {path}: line {number}: an empty token, or a token or rank twice")
        ranks[token] = rank
        seen.add(rank)
    return _with_all_bytes(path, ranks)


def read_tekken(path: str, data: bytes) -> RankModel:
    """The model of a ``tekken.json``: cut to its default size, ids after the special tokens."""
    try:
        tree = json.loads(data)
        config = tree["config"]
        offset, size = int(config["default_num_special_tokens"]), int(config["default_vocab_size"])
        entries = tree["vocab"][: size - offset]
        ranks = {base64.b64decode(e["token_bytes"], validate=True): int(e["rank"]) for e in entries}
        named = tree.get("special_tokens")
        if named is None:
            named = [{"rank": i, "token_str": text} for i, text in enumerate(_TEKKEN_SPECIAL)]
        special = {str(e["token_str"]): (int(e["rank"]), bool(e.get("is_control", True))) for e in named}
        pattern = str(config["pattern"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TokenizerError(f"tokenizer {path}: not a tekken.json file ({error!r})") from None
    if sorted(ranks.values()) != list(range(size - offset)):
        raise TokenizerError(
            f"tokenizer {path}: its vocabulary does not hold the ranks 0 to {size - offset - 1} once each"
        )
    taken = {i for i, _ in special.values()}
    special |= {f"<SPECIAL_{i}>": (i, True) for i in range(offset) if i not in taken}
    if len(special) != offset or {i for i, _ in special.values()} != set(range(offset)):
        raise TokenizerError(f"tokenizer {path}: special tokens do not fill the ids 0 to {offset - 1}")
    return RankModel(_with_all_bytes(path, ranks), offset, pattern, None, special)


def _with_all_bytes(path: str, ranks: dict[bytes, int]) -> dict[bytes, int]:
    missing = [b for b in range(256) if bytes([b]) not in ranks]
    if missing:
        raise TokenizerError(
            f"tokenizer {path}: {len(missing)} single bytes have no rank (the first is 0x{missing[0]:02X}); "
            "text could not be encoded"
        )
    return ranks


def last_merge(ranks: dict[bytes, int], token: bytes) -> tuple[bytes, bytes] | None:
    """The pair that makes `token`, or None where merging its bytes does not lead to it.

    >>> last_merge({b"a": 0, b"b": 1, b"ab": 2, b"abb": 3}, b"abb")
    (b'ab', b'b')
    """
    parts = [token[i : i + 1] for i in range(len(token))]
    while True:
        best, at = -1, -1
        for i in range(len(parts) - 1):
            rank = ranks.get(parts[i] + parts[i + 1])
            if rank is not None and (at < 0 or rank < best):
                best, at = rank, i
        if at < 0:
            return None
        left, right = parts[at], parts[at + 1]
        if len(parts) == 2:
            return left, right
        parts[at : at + 2] = [left + right]


def oniguruma(pattern: str) -> str:
    r"""A pattern in Rust's syntax, as tiktoken reads it, in the syntax `tokenizers` reads.

    Two things differ: `{1,3}+` is possessive in one and a repeated repetition in the other, and `^`, `$` are
    the text's borders in one and a line's in the other.

    >>> print(oniguruma(r"\p{N}{1,3}+|\s++$|[^\s$]{2}"))
    (?>\p{N}{1,3})|\s++\z|[^\s$]{2}
    """
    out: list[str] = []
    atom = 0  # where in `out` the last repeatable item begins
    open_groups: list[int] = []
    i = 0
    while i < len(pattern):
        c = pattern[i]
        if c == "\\":
            end = i + 2
            if pattern[i + 1 : i + 2] in ("p", "P", "x", "u") and pattern[i + 2 : i + 3] == "{":
                end = pattern.index("}", i) + 1
            atom = len(out)
            out.append(pattern[i:end])
            i = end
        elif c == "[":
            end = _class_end(pattern, i)
            atom = len(out)
            out.append(pattern[i:end])
            i = end
        elif c == "(":
            open_groups.append(len(out))
            out.append(c)
            i += 1
        elif c == ")":
            atom = open_groups.pop() if open_groups else len(out)
            out.append(c)
            i += 1
        elif c == "{":
            end = pattern.index("}", i) + 1
            out.append(pattern[i:end])
            i = end
            if pattern[i : i + 1] == "+":
                out[atom:] = ["(?>" + "".join(out[atom:]) + ")"]
                i += 1
        elif c in "?*+":
            out.append(c)
            i += 1
        else:
            atom = len(out)
            out.append({"^": r"\A", "$": r"\z"}.get(c, c))
            i += 1
    return "".join(out)


def _class_end(pattern: str, start: int) -> int:
    depth, i = 0, start
    while i < len(pattern):
        if pattern[i] == "\\":
            i += 1
        elif pattern[i] == "[":
            depth += 1
        elif pattern[i] == "]":
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    return len(pattern)


def build(path: str, model: RankModel) -> Tokenizer:
    """The tokenizer of ranks. Raises TokenizerError for a pattern or special tokens that cannot be used."""
    vocab = {to_alphabet(token): rank + model.offset for token, rank in model.ranks.items()}
    ids = set(vocab.values())
    for text, (i, _) in model.special.items():
        # `tokenizers` numbers added tokens itself, without holes; one that stands in the model keeps its id.
        if vocab.get(text, i) != i or i in ids or i < 0:
            raise TokenizerError(
                f"tokenizer {path}: special token {text!r} with id {i}: the text or the id is already taken"
            )
        vocab[text] = i
        ids.add(i)
    merges = []
    for token in sorted(model.ranks, key=model.ranks.__getitem__):
        pair = last_merge(model.ranks, token) if len(token) > 1 else None
        if pair is not None:
            merges.append((to_alphabet(pair[0]), to_alphabet(pair[1])))
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    try:
        split = pre_tokenizers.Split(Regex(oniguruma(model.pattern)), behavior="isolated")
    except Exception as error:  # tokenizers raises bare Exception
        raise TokenizerError(
            f"tokenizer {path}: `pattern` is no regular expression that can be used ({error})"
        ) from None
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    if model.normalizer:
        tokenizer.normalizer = getattr(normalizers, model.normalizer)()
    for control in (True, False):
        tokens = [
            AddedToken(t, special=control, normalized=False)
            for t, (_, is_control) in sorted(model.special.items(), key=lambda item: item[1])
            if is_control == control
        ]
        (tokenizer.add_special_tokens if control else tokenizer.add_tokens)(tokens)
    return tokenizer
