"""Showing a tokenizer and telling two apart."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tokenizers import AddedToken, Tokenizer, models, normalizers

from coverage_job.errors import TokenizerError
from coverage_job.tokenizer.compare import compare, row_map, show
from coverage_job.tokenizer.load import TokenizerSpec, describe
from coverage_job.tokenizer.printing import print_comparison, print_shown
from tests.conftest import SHARED, needs_shared
from tests.tokenizer.tiny import byte_level

MERGES = [(b"a", b"b"), (b"ab", b"c"), (b" ", b"x"), (b"1", b"2")]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVERAGE_JOB_CACHE", str(tmp_path / "cache"))


def printed(renderable: object) -> str:
    out = StringIO()
    Console(file=out, width=120).print(renderable)
    return out.getvalue()


def test_show_counts_everything_once_and_says_why(tmp_path: Path) -> None:
    spec = byte_level(
        tmp_path,
        MERGES,
        alone=("e\u0301".encode(),),
        normalizer=normalizers.NFC(),
        pattern=r"\p{N}|[^\p{N}]+",
    )
    shown = show(spec)
    assert all(sum(counts.values()) == spec.rows for counts in shown.counts.values())
    assert shown.published == {"bytes": 256, "unreachable": 2, "partial": 0, "special": 1}
    why = {row["token"]: row for row in shown.unreachable.to_pylist()}
    assert why["12"]["gives"] == [ord("1"), ord("2")]
    assert not why["12"]["normalizer"]
    assert why["e\u0301"]["gives"] == list("é".encode())
    assert "unreachable 2" in printed(print_shown(shown))


def test_show_names_the_normalizer_where_it_is_the_cause(tmp_path: Path) -> None:
    accent = "\u0301".encode()
    merges = [(accent[:1], accent[1:]), (b"e", accent)]
    spec = byte_level(tmp_path, merges, normalizer=normalizers.NFC(), pattern=r".+")
    (row,) = show(spec).unreachable.to_pylist()
    assert row["normalizer"] is True


def test_a_tokenizer_is_itself(tmp_path: Path) -> None:
    one = byte_level(tmp_path / "a", MERGES)
    other = byte_level(tmp_path / "b", MERGES)
    result = compare(one, other, ["abc ab x12"])
    assert result.same
    assert result.texts == 1
    assert "the same tokenizer" in printed(print_comparison(result))


def test_one_merge_removed(tmp_path: Path) -> None:
    one = byte_level(tmp_path / "a", MERGES)
    other = byte_level(tmp_path / "b", [MERGES[0], *MERGES[2:]], alone=(b"abc",))
    result = compare(one, other, ["abc", "no", "x abc"])
    assert not result.same
    assert result.merges_only_a == [("ab", "c")]
    assert result.merges_only_b == []
    assert (result.only_a, result.only_b) == ({}, {})
    assert {token for token, _, _ in result.moved} == {"abc", " x", "12"}
    assert (result.texts, result.texts_differing) == (3, 2)
    assert result.examples[0].text == "abc"
    assert result.examples[0].at == 0
    assert "NOT the same" in printed(print_comparison(result))


def test_merges_in_another_order(tmp_path: Path) -> None:
    one = byte_level(tmp_path / "a", [(b"a", b"b"), (b"b", b"c")])
    vocabulary_order = byte_level(tmp_path / "b", [(b"b", b"c"), (b"a", b"b")])
    result = compare(one, vocabulary_order, ["abc"])
    assert result.merges_reordered == 2
    assert result.texts_differing == 1


def test_a_normalizer_alone_is_told(tmp_path: Path) -> None:
    one = byte_level(tmp_path / "a", MERGES)
    other = byte_level(tmp_path / "b", MERGES, normalizer=normalizers.NFC())
    result = compare(one, other, ["abc"])
    assert [name for name, _, _ in result.settings] == ["normalizer"]
    assert result.texts_differing == 0
    assert not result.same


def saved(folder: Path, tokenizer: Tokenizer) -> TokenizerSpec:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return describe(str(folder))


def test_scores_of_pieces_are_compared(tmp_path: Path) -> None:
    def unigram(name: str, score: float) -> TokenizerSpec:
        pieces = [("<unk>", 0.0), ("a", -2.0), ("b", -2.0), ("ab", score)]
        return saved(tmp_path / name, Tokenizer(models.Unigram(pieces, unk_id=0)))

    one = unigram("one", -3.0)
    result = compare(one, unigram("other", -9.0), ["ab"])
    assert (result.scores_differing, result.texts_differing, result.same) == (1, 1, False)
    assert "pieces with another score: 1" in printed(print_comparison(result))
    assert compare(one, unigram("float32", float(np.float32(-3.0000001)))).same


def test_how_added_tokens_match_is_compared(tmp_path: Path) -> None:
    def adding(name: str, **flags: bool) -> TokenizerSpec:
        tokenizer = Tokenizer(models.BPE({"a": 0}, []))
        tokenizer.add_tokens([AddedToken("tool", **flags), AddedToken("other")])
        return saved(tmp_path / name, tokenizer)

    result = compare(adding("one"), adding("strips", lstrip=True))
    assert result.settings == [
        ("added_tokens", '{"tool": ["normalized"]}', '{"tool": ["lstrip", "normalized"]}')
    ]
    assert not result.same


def test_tokens_that_look_alike_are_told_apart(tmp_path: Path) -> None:
    def suffixed(name: str, *tokens: str) -> TokenizerSpec:
        vocab = {token: i for i, token in enumerate(["a", "b", "b</w>", *tokens])}
        merges = [("a", "b"), ("a", "b</w>")]
        return saved(tmp_path / name, Tokenizer(models.BPE(vocab, merges, end_of_word_suffix="</w>")))

    one, other = suffixed("one", "ab", "ab</w>"), suffixed("other", "ab</w>", "ab")
    assert compare(one, other).moved == [("ab", 3, 4), ("ab</w>", 4, 3)]
    rows = row_map(one, other)
    assert rows is not None
    assert rows.tolist() == [0, 1, 2, 4, 3]
    # Bytes are shown in hex, as a token may be written.
    half, hexed = "嘉".encode()[:2], b"<E5 98>"
    one = byte_level(tmp_path / "half", [], alone=(half,))
    other = byte_level(tmp_path / "hexed", [], alone=(hexed,))
    assert (compare(one, other).only_a, compare(one, other).only_b) == ({"<E5 98>": 256}, {"<E5 98>": 256})


def test_hostile_tokens_and_settings_are_cut_and_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    one = byte_level(tmp_path / "a", MERGES, alone=(b"q" * 5000, b"\x1b[2J"))
    evil = normalizers.Replace("x\x9b31m", "\u202e")
    other = byte_level(tmp_path / "b", MERGES, normalizer=evil)
    text = printed(print_comparison(compare(one, other))) + printed(print_shown(show(one)))
    assert "x<U+009B>31m" in text
    assert len(text) < 10_000
    assert not {"\x1b", "\x9b", "\u202e"} & set(text)


@pytest.mark.parametrize(
    "model",
    [models.Unigram([("a", -1.0), ("", -1.0)]), models.WordPiece({"a": 0, "##": 1}, unk_token="[UNK]")],
)
def test_a_tokenizer_that_refuses_unknown_text_is_a_line(tmp_path: Path, model: models.Model) -> None:
    spec = saved(tmp_path / "t", Tokenizer(model))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: cannot encode every text .*unknown token"):
        show(spec)
    with pytest.raises(TokenizerError, match="cannot encode every text"):
        compare(spec, spec, ["é"])


def test_tokens_added_and_gone(tmp_path: Path) -> None:
    one = byte_level(tmp_path / "a", MERGES, special=("<|end|>",))
    other = byte_level(tmp_path / "b", [*MERGES, (b"q", b"q")], special=("<|stop|>",))
    result = compare(one, other)
    assert list(result.only_a) == ["[special] <|end|>"]
    assert list(result.only_b) == ["qq", "[special] <|stop|>"]


@needs_shared
def test_two_files_of_one_tokenizer_are_the_same() -> None:
    folder = SHARED / "tokenizers" / "mistral_v1"
    result = compare(
        describe(str(folder)), describe(str(folder / "tokenizer.model")), ["def f(x):\n    return 嘉祺"]
    )
    # Runs of spaces have one score in the model file: either file may take its own way to the same run.
    for merges in (result.merges_only_a, result.merges_only_b):
        assert all(set(left + right) == {"▁"} for left, right in merges or ())
    assert result.texts_differing == 0
    assert result.moved == []
