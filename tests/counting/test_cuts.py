from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from coverage_job.counting import patterns, pretokens
from coverage_job.counting.cuts import Cuts, derive
from tests.counting.test_kernel import SPLIT, by_characters, byte_level, t5, unigram, words
from tests.counting.texts import texts

PATTERNS = [
    SPLIT,
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'re)|[^\r\n\p{L}\p{N}]?+\p{L}++|(?>\p{N}{1,3})| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++\z|\s*[\r\n]|\s",
    r"a+?b|ab{2,3}|[^ab]{1,2}|c??a(?=a)",
    r"\p{Lu}\p{Ll}*|\d+",
    r"[一-龥぀-ゟ]+|\s$|x(?:y|yz)?z*",
]


@lru_cache
def _built(pattern: str) -> tuple[npt.NDArray[np.uint8], list[patterns.Automaton]]:
    classes, automata, _ = pretokens.build([pretokens.Level(patterns.parse(pattern), False)])
    return classes, automata


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=150, deadline=None)
@given(text=texts | st.text("abcxyz A1\n", max_size=20))
def test_an_automaton_splits_as_the_engine_does(pattern: str, text: str) -> None:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    classes, automata = _built(pattern)
    theirs = [end for _, (_, end) in split.pre_tokenize_str(text)]
    assert pretokens.boundaries(text, classes, automata) == theirs


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(?<=a)b", "a group"),
        (r"(a)\1", "the escape"),
        (r"a(?!bc)", "look-ahead of more than one"),
        (r"a*", "the empty text"),
        (r"(?:a*)+b", "what may be empty"),
        (r"^a", r"'\^'"),
        (r"a{1,1000}", "too long"),
        (r"a{1,2}?", "a repeat of a repeat"),
        (r"(?i:[a-z])", "ignores case"),
        (r"(?i:ss)", "fold together"),
    ],
)
def test_what_cannot_be_read_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(patterns.Unsupported, match=reason):
        patterns.parse(pattern)


def test_a_letter_that_folds_to_an_ascii_one_is_found() -> None:
    # The long s is a case of s to the engine, which a table of ASCII letters would miss.
    assert patterns.ask("(?i:s)")[[ord("s"), ord("S"), ord("ſ"), ord("z")]].tolist() == [
        True,
        True,
        True,
        False,
    ]


def without_an_unknown_token() -> Tokenizer:
    return Tokenizer(models.Unigram([("a", -1.0)], None, False))


def with_lower_case() -> Tokenizer:
    return unigram(normalizers.Lowercase())


def with_words_of_another_kind() -> Tokenizer:
    return unigram(None, pre_tokenizers.Whitespace())


def without_a_byte() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    return tokenizer


def with_another_normalizer() -> Tokenizer:
    return byte_level(False, normalizers.Lowercase())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (without_an_unknown_token, "no unknown token"),
        (with_lower_case, "its normalizer has Lowercase"),
        (with_words_of_another_kind, "its pre-tokenizer is Whitespace"),
        (without_a_byte, "no token for the byte"),
        (with_another_normalizer, "its normalizer is Lowercase"),
    ],
)
def test_a_tokenizer_without_a_proven_path_says_why(make: object, reason: str) -> None:
    cuts = derive(make())  # type: ignore[operator]
    assert reason in cuts.reason
    assert Cuts.from_bytes(cuts.to_bytes()).reason == cuts.reason


@pytest.mark.parametrize("make", [lambda: byte_level(True), lambda: by_characters(True), words, t5])
def test_cuts_come_back_from_bytes(make: object) -> None:
    cuts = derive(make())  # type: ignore[operator]
    again = Cuts.from_bytes(cuts.to_bytes())
    assert (again.reason, again.facts) == ("", cuts.facts)
    assert again.arrays.keys() == cuts.arrays.keys()
    assert all((again.arrays[name] == cuts.arrays[name]).all() for name in cuts.arrays)


def test_damaged_cuts_are_told() -> None:
    data = derive(without_a_byte()).to_bytes()
    for damaged in (b"", data[:40], b"x" * 100):
        with pytest.raises(ValueError, match="not a file of cuts"):
            Cuts.from_bytes(damaged)
