"""What the kernel needs of a Unigram model: its vocabulary as a trie, and what normalizing does to text.

Normalizers are read in this order, each of which may be missing: one that maps characters (Precompiled,
NFC, NFD, NFKC, NFKD); one that strips spaces at the ends; one that makes one of a run of spaces; Prepend;
one that writes spaces as a sign. Text is then one part, or split by Metaspace, or by WhitespaceSplit and
Metaspace.
"""

from __future__ import annotations

import base64
import json
import math
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, normalizers

from coverage_job.counting.added import read_added, trie
from coverage_job.counting.bpe_model import SPACE
from coverage_job.counting.double_array import build_trie
from coverage_job.counting.normal_forms import join_clusters, unsettled
from coverage_job.counting.patterns import CODE_POINTS, Bools, Form, Unsupported
from coverage_job.counting.unigram import CRLF, OTHER, SAME, SEVERAL
from coverage_job.counting.unigram import SPACE as A_SPACE

Array = npt.NDArray[Any]
Step = dict[str, Any]

_MOST_BYTES = 1 << 16  # of an entry
_MOST_SCORE = 1e100  # beyond which sums might not stay finite
_STRIP = r"\A +| +\z"
_RUNS = {" {2,}", "  +"}


def unigram_model(
    config: dict[str, Any], steps: Sequence[Step], splits: Sequence[Step], tokenizer: Tokenizer
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Facts and arrays (see `Cuts`) of a tokenizer with these normalizers and pre-tokenizers."""
    model = config["model"]
    if known := sorted(set(model) - {"type", "unk_id", "vocab", "byte_fallback"}):
        raise Unsupported(f"its model has {known[0]}")
    if model["unk_id"] is None:
        raise Unsupported("its model has no unknown token")
    spaces = _read_spaces(list(steps))
    meta, by_words, split, written = _read_splits(splits)
    character_step = spaces.pop("characters")
    replaces = spaces.pop("replaces") or written
    if by_words and (spaces["prefix"] or spaces["run"] == SPACE):
        raise Unsupported("its normalizer writes signs that its pre-tokenizer does not expect")
    if not replaces and spaces["run"] == SPACE:
        raise Unsupported("its normalizer writes some spaces as a sign and not others")
    facts = {
        "family": "unigram",
        "strip_left": spaces["strip_left"],
        "strip_right": spaces["strip_right"],
        "collapse": bool(spaces["run"]),
        "sign": SPACE if replaces or by_words else " ",
        "prefix": spaces["prefix"].replace(" ", SPACE) if replaces else spaces["prefix"],
        "meta": meta,
        "by_words": by_words,
        "split": split,
    }
    characters, character_facts = _characters(character_step, by_words)
    entries, entry_facts = _entries(model)
    arrays = characters | entries | _added(config["added_tokens"], tokenizer, facts["sign"], by_words)
    return facts | character_facts | entry_facts, arrays


def _read_spaces(steps: list[Step]) -> dict[str, Any]:
    read: dict[str, Any] = {"characters": None, "strip_left": False, "strip_right": False, "run": ""}
    read |= {"prefix": "", "replaces": False}
    if steps and steps[0]["type"] in ("Precompiled", *get_args(Form)):
        read["characters"] = steps.pop(0)
    if steps and _replaces(steps[0], "Regex", {_STRIP}, {""}):
        read["strip_left"] = read["strip_right"] = True
        steps.pop(0)
    if steps and _replaces(steps[0], "Regex", _RUNS, {" ", SPACE}):
        read["run"] = steps.pop(0)["content"]
    if steps and steps[0]["type"] == "Prepend" and steps[0]["prepend"] in (" ", SPACE):
        read["prefix"] = steps.pop(0)["prepend"]
    if steps and _replaces(steps[0], "String", {" "}, {SPACE}):
        read["replaces"] = bool(steps.pop(0))
    if steps:
        raise Unsupported(f"its normalizer has {steps[0]['type']}, or has it in another place")
    return read


def _replaces(step: Step, kind: str, patterns: set[str], contents: set[str]) -> bool:
    return step["type"] == "Replace" and step["pattern"].get(kind) in patterns and step["content"] in contents


def _read_splits(splits: Sequence[Step]) -> tuple[int, bool, bool, bool]:
    """`unigram.Model`'s meta, by_words and split, and whether spaces are written as signs."""
    kinds = [s["type"] for s in splits]
    if not splits:
        return 0, False, False, False
    if kinds not in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
        raise Unsupported("its pre-tokenizer is " + ", ".join(kinds))
    last = splits[-1]
    scheme, split = last["prepend_scheme"], last["split"]
    if last["replacement"] != SPACE:
        raise Unsupported("its pre-tokenizer writes spaces as another sign")
    if len(splits) == 1:
        return {"never": 0, "always": 1, "first": 2}[scheme], False, split, True
    if scheme != "always" or not split:
        raise Unsupported("its pre-tokenizer splits at white space and leaves words without a sign")
    return 0, True, True, True


def character_map(step: Step | None) -> Callable[[str], str]:
    """What a normalizer that maps characters does to a text; nothing where there is none."""
    if step is None:
        return str
    if step["type"] == "Precompiled":
        return normalizers.Precompiled(base64.b64decode(step["precompiled_charsmap"])).normalize_str
    form: normalizers.Normalizer = getattr(normalizers, step["type"])()
    return form.normalize_str


def _characters(step: Step | None, by_words: bool) -> tuple[dict[str, Array], dict[str, Any]]:
    """What becomes of each character, and which leave it open.

    Precompiled maps grapheme clusters (or the characters of one that has six bytes or more, or is not in
    the map). Characters that join none are mapped each by itself, so what one becomes alone it becomes
    anywhere among them. With a normal form, what a character becomes alone must be of settled characters:
    text of these is in that form, and is what normalizing gives, for normal forms may be taken part by part.
    """
    open_ones: Bools = np.zeros(CODE_POINTS, np.bool_)
    normalize = character_map(step)
    settled: Bools | None = None  # of a normal form
    if step is not None and step["type"] == "Precompiled":
        open_ones = join_clusters()
    elif step is not None:
        form: Form = step["type"]
        settled = ~unsettled(form)
    kinds, normal_kinds = np.full((2, CODE_POINTS + 1), SAME, np.uint8)
    becomes = np.zeros((CODE_POINTS + 1, 2), np.int32)
    spelled = bytearray()
    growth = 3
    has_crlf = False
    for c in range(CODE_POINTS):
        if 0xD800 <= c < 0xE000:
            continue
        character = chr(c)
        is_space = c == 0x20 or (by_words and _is_white(character))
        if is_space:
            normal_kinds[c] = A_SPACE
        normal = normalize(character)
        if settled is not None and not settled[c]:
            # One that does not know the character, or knows it otherwise, is not the one asked above.
            open_ones[c] = (
                unicodedata.category(character) == "Cn"
                or unicodedata.normalize(form, character) != normal
                or not all(settled[ord(x)] for x in normal)
            )
        elif settled is not None and normal != character:
            open_ones[c] = True
        if open_ones[c]:
            continue
        if normal == " " or (normal == character and is_space):
            kinds[c] = A_SPACE
        elif normal != character:
            if by_words and any(_is_white(x) and x != " " for x in normal):
                open_ones[c] = True
                continue
            growth = max(growth, _growth(normal, character))
            kinds[c] = OTHER if len(normal) == 1 else SEVERAL
            becomes[c] = len(spelled), len(normal.encode())
            spelled += normal.encode()
    if normalize("\r\n") != normalize("\r") + normalize("\n"):
        normal = normalize("\r\n")
        if by_words and any(_is_white(x) and x != " " for x in normal):
            raise Unsupported("its normalizer keeps ends of lines")
        has_crlf = True
        growth = max(growth, _growth(normal, "\r\n"))
        kinds[CRLF] = SEVERAL
        becomes[CRLF] = len(spelled), len(normal.encode())
        spelled += normal.encode()
    if open_ones[:0x80].any():
        raise Unsupported("its normalizer treats ASCII by what stands beside it")
    arrays: dict[str, Array] = {
        "kinds": kinds,
        "normal_kinds": normal_kinds,
        "becomes": becomes,
        "becomes_bytes": np.frombuffer(bytes(spelled), np.uint8),
        "unsettled": open_ones,
        "character_step": np.frombuffer(json.dumps(step).encode(), np.uint8),
    }
    return arrays, {"growth": growth, "has_crlf": has_crlf, "open": bool(open_ones.any())}


def _is_white(character: str) -> bool:
    """Whether it has the property White_Space: what Python calls space, without the separators of ASCII."""
    return character.isspace() and not 0x1C <= ord(character) <= 0x1F


def _growth(normal: str, text: str) -> int:
    return math.ceil(len(normal.replace(" ", SPACE).encode()) / len(text.encode()))


def _entries(model: dict[str, Any]) -> tuple[dict[str, Array], dict[str, Any]]:
    vocab = model["vocab"]
    scores = np.array([score for _, score in vocab], np.float64)
    if not (np.abs(scores) < _MOST_SCORE).all():
        raise Unsupported("its model has scores that are no numbers")
    # Of entries with one text the last is taken.
    ids = {text.encode(): i for i, (text, _) in enumerate(vocab)}
    widths = np.array([len(text.encode()) for text, _ in vocab], np.int32)
    if widths.max() > _MOST_BYTES:
        raise Unsupported("its vocabulary has an entry that is too long")
    texts = sorted(t for t in ids if t)
    chosen = np.array([ids[t] for t in texts], np.int64)
    units = build_trie(
        np.frombuffer(b"".join(texts), np.uint8),
        np.cumsum([0] + [len(t) for t in texts]).astype(np.int64),
        chosen,
        np.exp(scores[chosen] - scores.max()),
    )
    if not len(units):
        raise Unsupported("its vocabulary is too large")
    single = np.full(256, -1, np.int32)
    if model.get("byte_fallback"):
        for byte in range(256):
            single[byte] = ids.get(b"<0x%02X>" % byte, -1)
    facts = {
        "unknown": int(model["unk_id"]),
        "unknown_score": float(scores.min()) - 10.0,
        "window": 1 << max(4, int(widths.max()).bit_length()),
    }
    return {"units": units, "scores": scores, "widths": widths, "single": single}, facts


def _added(added: list[Step], tokenizer: Tokenizer, sign: str, by_words: bool) -> dict[str, Array]:
    """Added tokens as tries: those looked for in raw text, and `hidden`, what a text must hold, normalized,
    to hold one of the others, which leaves it to the reference."""
    hidden: dict[bytes, int] = {}
    for token in added:
        if token["normalized"]:
            for text in (
                {token["content"], tokenizer.normalizer.normalize_str(token["content"])}
                if (tokenizer.normalizer is not None)
                else {token["content"]}
            ):
                core = text.replace(" ", sign).strip(SPACE + " ")
                if not core or (by_words and any(_is_white(c) or c == SPACE for c in core)):
                    raise Unsupported("it has an added token of spaces")
                hidden[core.encode()] = 0
    arrays = read_added([t for t in added if not t["normalized"]], tokenizer)
    arrays["hidden_nodes"], arrays["hidden_first"] = trie(hidden)
    return arrays
