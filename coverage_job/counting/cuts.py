"""Where a tokenizer's text may be cut: all that the fast kernel knows of a tokenizer, as plain arrays.

Derived once, on the driver, from the tokenizer itself; workers get the arrays. A tokenizer that has a part
for which no exact path is known gets `reason`, and its text the reference path.

Two kinds of cut, both exact (docs/counting.md has the arguments):
- between pre-tokens: found by an automaton that gives the tokenizer's own pre-tokens (patterns.py);
- inside a pre-token: between two characters that no merge's product spans.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from coverage_job.counting import patterns, pretokens
from coverage_job.counting.added import read_added
from coverage_job.counting.bpe_model import SPACE, byte_model, character_model
from coverage_job.counting.normal_forms import unsettled
from coverage_job.counting.patterns import CODE_POINTS, Unsupported
from coverage_job.counting.unigram_model import unigram_model
from coverage_job.counting.words import word_model

# Raised whenever what is derived changes; a cached file of another version is derived anew.
FORMAT = 6

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Cuts:
    """What the kernel knows of a tokenizer.

    reason: why it has no fast path; '' where it has one.
    facts: small values: ``family`` (byte_bpe | char_bpe | words | unigram), ``ignore_merges``,
    ``normal_form`` (or None), ``prefix``; or those of `unigram.Model`.
    arrays: what `scan.Model` or `unigram.Model` is made of, the tries of added tokens, and which characters
    leave normalizing open.
    """

    reason: str
    facts: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """As a .npz archive without pickles."""
        buffer = io.BytesIO()
        head = json.dumps({"format": FORMAT, "reason": self.reason, "facts": self.facts})
        arrays: dict[str, Any] = {"head": np.frombuffer(head.encode(), np.uint8)} | self.arrays
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Cuts:
        """What `to_bytes` wrote. Raises ValueError where it is of another format version or damaged."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            head = json.loads(arrays.pop("head").tobytes())
        except Exception as error:
            raise ValueError(f"not a file of cuts ({error})") from None
        if head["format"] != FORMAT:
            raise ValueError(f"cuts of format {head['format']}, this is {FORMAT}")
        return cls(head["reason"], head["facts"], arrays)


def derive(tokenizer: Tokenizer) -> Cuts:
    """The cuts of a tokenizer; with `reason` where it has no fast and exact path."""
    try:
        return _derive(tokenizer, json.loads(tokenizer.to_str()))
    except Unsupported as error:
        return Cuts(str(error))


def _derive(tokenizer: Tokenizer, config: dict[str, Any]) -> Cuts:
    model = config["model"]
    if model["type"] == "WordPiece":
        return Cuts("", *word_model(config, tokenizer))
    normalizers = _flat(config.get("normalizer"), "normalizers")
    splits = _flat(config.get("pre_tokenizer"), "pretokenizers")
    if model["type"] == "Unigram":
        return Cuts("", *unigram_model(config, normalizers, splits, tokenizer))
    if model["type"] != "BPE":
        raise Unsupported(f"its model is {model['type']}")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise Unsupported(f"its model has {key}")
    if not splits:
        return _derive_characters(config, normalizers, tokenizer)
    if splits[-1]["type"] != "ByteLevel":
        raise Unsupported(f"its pre-tokenizer is {splits[-1]['type']}")
    normal_form = _normal_form(normalizers)
    levels = pretokens.read_levels(splits)
    classes, automata, representatives = pretokens.build(levels)
    pretokens.compare(tokenizer, classes, automata, representatives)
    arrays: dict[str, Array] = {
        "classes": classes,
        "steps": np.concatenate([a.steps for a in automata]),
        "states": np.array([len(a.steps) for a in automata], np.int64),
    }
    arrays |= byte_model(model)
    arrays |= read_added(config["added_tokens"], tokenizer)
    if normal_form:
        arrays["unsettled"] = unsettled(normal_form)
    facts = {
        "family": "byte_bpe",
        "ignore_merges": bool(model.get("ignore_merges")),
        "normal_form": normal_form,
        "prefix": False,
    }
    return Cuts("", facts, arrays)


def _derive_characters(
    config: dict[str, Any], normalizers: Sequence[dict[str, Any]], tokenizer: Tokenizer
) -> Cuts:
    """The cuts of a SentencePiece-like BPE: merges of characters, over the whole text."""
    model = config["model"]
    steps = [n["type"] for n in normalizers]
    prefix = normalizers[0]["prepend"] if steps[:1] == ["Prepend"] else ""
    if prefix not in ("", SPACE) or steps[-1:] != ["Replace"] or len(steps) != 1 + bool(prefix):
        raise Unsupported("its normalizer is " + (", ".join(steps) or "none"))
    if normalizers[-1]["pattern"] != {"String": " "} or normalizers[-1]["content"] != SPACE:
        raise Unsupported("its normalizer replaces something else than a space")
    arrays: dict[str, Array] = {
        "classes": np.zeros(CODE_POINTS, np.uint8),
        "steps": np.zeros((0, 2), np.int32),
        "states": np.zeros(0, np.int64),
    }
    arrays |= character_model(model)
    arrays |= read_added(config["added_tokens"], tokenizer, spaces=True)
    return Cuts(
        "",
        {"family": "char_bpe", "ignore_merges": False, "normal_form": None, "prefix": bool(prefix)},
        arrays,
    )


def _flat(part: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [p for inner in part[key] for p in _flat(inner, key)]
    return [part]


def _normal_form(normalizers: Sequence[dict[str, Any]]) -> patterns.Form | None:
    if not normalizers:
        return None
    forms: tuple[patterns.Form, ...] = ("NFC", "NFD", "NFKC", "NFKD")
    for form in forms:
        if len(normalizers) == 1 and normalizers[0]["type"] == form:
            return form
    raise Unsupported("its normalizer is " + ", ".join(n["type"] for n in normalizers))
