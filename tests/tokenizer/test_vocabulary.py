"""The vocabulary table: what it says of each id is what encoding says."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from coverage_job.schemas import VOCABULARY
from coverage_job.tokenizer.load import TokenizerSpec, describe, load
from coverage_job.tokenizer.vocabulary import printable, raise_contextual, vocabulary_table
from tests.tokenizer.tiny import byte_level, wordpiece


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVERAGE_JOB_CACHE", str(tmp_path / "cache"))


def row(table: pa.Table, data: bytes | str, kind: str | None = None) -> dict[str, object]:
    data = data.encode() if isinstance(data, str) else data
    found = [r for r in table.to_pylist() if r["token_bytes"] == data and kind in (None, r["kind"])]
    assert len(found) == 1, found
    return found[0]


def check_examples(spec: TokenizerSpec, table: pa.Table) -> None:
    """Every kept text's encoding has the id; round trips are the id alone, inside its neighbours."""
    tokenizer = load(spec)
    rows = table.select(["token_id", "example", "reachability"]).to_pylist()
    kept = [r for r in rows if r["example"] is not None]
    encoded = tokenizer.encode_batch_fast([r["example"] for r in kept], add_special_tokens=False)
    wrong = [r for r, e in zip(kept, encoded, strict=True) if r["token_id"] not in e.ids]
    assert wrong == []
    with_text = {"direct", "contextual"}
    assert all((r["reachability"] in with_text) <= (r["example"] is not None) for r in rows)
    never = {"unreachable", "merge_intermediate", "byte_never", "unused"}
    assert all((r["reachability"] in never) <= (r["example"] is None) for r in rows)


def test_a_vocabulary_known_by_heart(tmp_path: Path) -> None:
    ja, zh = "嘉".encode(), "中".encode()
    spec = byte_level(
        tmp_path,
        [
            (b"t", b"h"),
            (b"th", b"e"),
            (b" ", b"the"),
            (ja[:1], ja[1:2]),  # half of a character, which another character leaves standing
            (ja[:2], ja[2:3]),
            (b"e", "\u0301".encode()[:1]),  # e and half an accent: NFC and the pattern keep them apart
            (b"1", b"2"),  # digits are split one by one
        ],
        alone=("e\u0301".encode(), b"the the", zh[1:]),
        normalizer=normalizers.NFC(),
        added=("<tool>",),
    )
    table = vocabulary_table(spec, 300)
    assert table.schema.equals(VOCABULARY)
    assert table["token_id"].to_pylist() == list(range(300))
    check_examples(spec, table)

    the = row(table, " the")
    assert (the["kind"], the["decodable"], the["round_trip"], the["reachability"]) == (
        "base", "utf8", True, "direct",
    )  # fmt: skip
    half = row(table, ja[:2])
    assert (half["decodable"], half["round_trip"], half["reachability"]) == ("partial", False, "contextual")
    assert half["token"] == "<E5 98>"
    assert row(table, b"e\xcc")["reachability"] == "merge_intermediate"
    assert row(table, b"12")["reachability"] == "unreachable"
    assert row(table, "e\u0301")["reachability"] == "unreachable"
    assert row(table, b"the the")["reachability"] == "unreachable"
    assert row(table, zh[1:])["reachability"] == "merge_intermediate"
    assert row(table, b"A")["kind"] == "byte"
    assert row(table, b"A")["reachability"] == "direct"
    assert row(table, b"\xe5")["decodable"] == "byte"
    assert row(table, b"\xe5")["reachability"] == "contextual"
    never = [r["token_bytes"][0] for r in table.to_pylist() if r["reachability"] == "byte_never"]
    assert never == [0xC0, 0xC1, *range(0xF5, 0x100)], "the bytes that UTF-8 never uses"
    assert (row(table, "<|end|>")["kind"], row(table, "<|end|>")["reachability"]) == ("special", "special")
    assert (row(table, "<tool>")["kind"], row(table, "<tool>")["reachability"]) == ("added", "direct")
    unused = table.slice(spec.rows)
    assert set(unused["kind"].to_pylist()) == set(unused["reachability"].to_pylist()) == {"unused"}
    for column in ("kind", "reachability", "decodable"):
        counts = pl.from_arrow(table)[column].value_counts()  # type: ignore[union-attr]
        assert counts["count"].sum() == 300


def test_ignoring_merges_reaches_a_whole_pre_token_only(tmp_path: Path) -> None:
    options = {"alone": (b"xyz",), "merges": [(b"x", b"y")]}
    with_shortcut = byte_level(tmp_path / "a", ignore_merges=True, **options)  # type: ignore[arg-type]
    without = byte_level(tmp_path / "b", ignore_merges=False, **options)  # type: ignore[arg-type]
    assert row(vocabulary_table(with_shortcut), b"xyz")["reachability"] == "direct"
    assert row(vocabulary_table(without), b"xyz")["reachability"] == "unreachable"


def test_a_neighbour_can_be_what_a_token_needs(tmp_path: Path) -> None:
    """The pattern takes a sign with the letter after it, never alone."""
    spec = byte_level(tmp_path, [(b"a", b"-"), (b"-", b"-")], pattern=r"-?\p{L}-?|.", alone=(b"-b",))
    table = vocabulary_table(spec)
    check_examples(spec, table)
    assert row(table, b"--")["reachability"] == "unreachable"
    assert row(table, b"a-")["reachability"] == "direct"


def test_wordpiece_inner_pieces_are_read_after_a_letter(tmp_path: Path) -> None:
    spec = wordpiece(tmp_path, ["a", "b", "##b", "##ing", "ab", "A", "##中", "[unused1]"])
    table = vocabulary_table(spec)
    check_examples(spec, table)
    by_token = {r["token"]: r for r in table.to_pylist()}
    assert (by_token["##ing"]["token_bytes"], by_token["##ing"]["reachability"]) == (b"ing", "direct")
    assert by_token["##中"]["reachability"] == "unreachable", "Han characters are words of their own"
    assert by_token["A"]["reachability"] == "unreachable", "text is lowered first"
    assert by_token["[UNK]"]["kind"] == "special"


def test_sentencepiece_bytes_and_spaces(tmp_path: Path) -> None:
    from tests.tokenizer.test_load import describe, train

    spec = describe(str(train(tmp_path, model_type="bpe", vocab_size=420, byte_fallback=True)))
    table = vocabulary_table(spec)
    check_examples(spec, table)
    kinds = pl.from_arrow(table)["kind"].value_counts()  # type: ignore[union-attr]
    assert dict(kinds.iter_rows())["byte"] == 256
    assert row(table, b"e", "base")["round_trip"]
    assert row(table, b"e", "byte")["reachability"] == "byte_never", "the piece e stands for it"
    assert row(table, b"\xe1", "byte")["reachability"] == "contextual"


def test_holes_in_the_ids_are_unused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    from coverage_job.tokenizer.load import describe

    Tokenizer(models.BPE({"a": 0, "b": 3}, [])).save(str(tmp_path / "tokenizer.json"))
    table = vocabulary_table(describe(str(tmp_path)))
    assert table["kind"].to_pylist() == ["base", "unused", "unused", "base"]
    assert table["token"].to_pylist() == ["a", "", "", "b"]


def test_the_table_is_kept_and_a_torn_file_is_made_again(tmp_path: Path) -> None:
    spec = byte_level(tmp_path / "t", [(b"a", b"b")])
    first = vocabulary_table(spec)
    (file,) = (tmp_path / "cache").iterdir()
    written = file.read_bytes()
    assert vocabulary_table(spec).equals(first)
    file.write_bytes(written[: len(written) // 2])
    assert vocabulary_table(spec).equals(first)
    assert file.read_bytes() == written
    other = byte_level(tmp_path / "u", [(b"a", b"c")])
    vocabulary_table(other)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_corpus_raises_what_no_text_was_known_for(tmp_path: Path) -> None:
    spec = byte_level(tmp_path, [(b"1", b"2")])
    table = vocabulary_table(spec)
    raised = raise_contextual(table, {256: "x12", 65: "A seen"})
    assert raised.schema.equals(VOCABULARY)
    assert raised.slice(256, 1).to_pylist()[0]["reachability"] == "contextual"
    assert raised["example"][256].as_py() == "x12"
    assert raised.slice(0, 256).equals(table.slice(0, 256)), "an id that was reachable stays as it was"


@given(st.binary(max_size=12))
@settings(deadline=None)
def test_printable_is_one_visible_line(data: bytes) -> None:
    shown = printable(data)
    assert shown == "" or shown.isprintable()
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs", "Cn") for c in shown)


@given(st.text(max_size=12))
@settings(deadline=None)
def test_printable_shows_every_hidden_character(text: str) -> None:
    shown = printable(
        text.encode("utf-8", "surrogatepass") if text.isascii() else text.encode("utf-8", "replace")
    )
    assert all(c.isprintable() for c in shown)
    assert all(c in shown for c in text if c.isalnum() and c not in "\u115f\u1160\u3164\uffa0")


def test_pieces_of_bpe_that_are_marked_inside_words(tmp_path: Path) -> None:
    vocab = {"a": 0, "b": 1, "##b": 2, "##c": 3, "ab": 4, "##bc": 5}
    merges = [("a", "##b"), ("##b", "##c")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, continuing_subword_prefix="##"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    spec = describe(str(tmp_path))
    table = vocabulary_table(spec)
    check_examples(spec, table)
    assert set(table["reachability"].to_pylist()) == {"direct"}
    assert table["token"].to_pylist() == list(vocab)
    assert table["token_bytes"][5].as_py() == b"bc"


def test_a_mark_alone_is_shown(tmp_path: Path) -> None:
    assert vocabulary_table(wordpiece(tmp_path, ["a", "##"]))["token"][2].as_py() == "##"


def test_variation_selectors_are_shown_by_number() -> None:
    assert printable("葛\U000e0100\u180b".encode()) == "葛<U+E0100><U+180B>"
