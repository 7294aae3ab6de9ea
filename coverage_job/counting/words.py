"""What the kernel needs of WordPiece with BERT's normalizer and pre-tokenizer."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from coverage_job.counting import patterns
from coverage_job.counting.added import read_added
from coverage_job.counting.bpe_model import word_list
from coverage_job.counting.patterns import CODE_POINTS, Unsupported
from coverage_job.counting.scan import ASCII_PAIRS

Array = npt.NDArray[Any]


def word_model(config: dict[str, Any], tokenizer: Tokenizer) -> tuple[dict[str, Any], dict[str, Array]]:
    """Facts and arrays (see `Cuts`).

    Both work character by character: each is removed, a space, a token of its own, or part of a word, and
    becomes what it becomes alone. The exception are combining marks that normalizing reorders: text with
    those is left to the reference.
    """
    model = config["model"]
    for part, name in (("normalizer", "BertNormalizer"), ("pre_tokenizer", "BertPreTokenizer")):
        if (config.get(part) or {}).get("type") != name:
            raise Unsupported(f"its {part} is not {name}")
    if any(token["normalized"] for token in config["added_tokens"]):
        raise Unsupported("it has added tokens that are looked for in normalized text")
    normalize, split = tokenizer.normalizer.normalize_str, tokenizer.pre_tokenizer.pre_tokenize_str
    kinds = np.zeros(CODE_POINTS, np.uint8)  # 0 part of a word, 1 space, 2 a token of its own
    unsettled = np.zeros(CODE_POINTS, np.bool_)
    places: dict[str, tuple[int, int]] = {"": (0, 0)}
    spelled = bytearray()
    becomes = np.zeros((CODE_POINTS, 2), np.int32)
    isolated: dict[str, bool] = {}
    for c in range(CODE_POINTS):
        if 0xD800 <= c < 0xE000:
            continue
        character = chr(c)
        normal = normalize(character)
        text = normal.strip()
        if (
            any(unicodedata.combining(x) for x in normal)
            or len(text.split()) > 1
            or unicodedata.category(character) == "Cn"
        ):
            unsettled[c] = True
            continue
        if len(text) > len(character.encode()):
            # The kernel reckons with no more tokens than bytes.
            unsettled[c] = True
            continue
        if normal and not text:
            kinds[c] = 1
            continue
        if text and (alone := isolated.get(text)) is None:
            pieces = len(split(f"a{text}a"))
            if pieces not in (1, 3) or (pieces == 3 and len(text) > 1):
                unsettled[c] = True
                continue
            alone = isolated[text] = pieces == 3
        if text and (alone or normal != text):
            if not alone and normal != f" {text} ":
                unsettled[c] = True
                continue
            kinds[c] = 2
        if text not in places:
            data = text.encode()
            places[text] = (len(spelled), len(data))
            spelled += data
        becomes[c] = places[text]
    members = {name: np.arange(3) == k for k, name in enumerate(("word", "space", "alone"))}
    node = patterns.Choice(
        (
            patterns.Repeat(patterns.One("word"), 1, None, False),
            patterns.Repeat(patterns.One("space"), 1, None, False),
            patterns.One("alone"),
        )
    )
    automaton = patterns.compile_pattern(node, members)
    prefix = model["continuing_subword_prefix"]
    begins = dict(model["vocab"])
    goes_on = {t[len(prefix) :]: i for t, i in model["vocab"].items() if t.startswith(prefix) and t != prefix}
    if not prefix or model["unk_token"] not in begins:
        raise Unsupported("its model has no prefix or no unknown token")
    arrays: dict[str, Array] = {
        "classes": kinds,
        "steps": automaton.steps,
        "states": np.array([len(automaton.steps)], np.int64),
        "single": np.zeros(256, np.int32),
        "symbols": np.zeros(0, np.int32),
        "merges": np.zeros((0, 3), np.int32),
        "widths": np.zeros(max(begins.values()) + 1, np.int32),
        "spans": np.zeros(max(begins.values()) + 1, np.int32),
        "becomes": becomes,
        "becomes_bytes": np.frombuffer(bytes(spelled), np.uint8),
        "unsettled": unsettled,
        # Never cut inside a word: every pair counts as spanned.
        "pairs": np.full(ASCII_PAIRS // 8 + 1, 0xFF, np.uint8),
        "torn": np.full(ASCII_PAIRS // 8 + 1, 0xFF, np.uint8),
        "groups": np.zeros(CODE_POINTS, np.uint32),
        **word_list("whole", begins),
        **word_list("inner", goes_on),
        **read_added(config["added_tokens"], tokenizer),
    }
    facts = {
        "family": "words",
        "ignore_merges": False,
        "normal_form": None,
        "prefix": False,
        "unknown": begins[model["unk_token"]],
        "most_characters": int(model["max_input_chars_per_word"]),
    }
    return facts, arrays
