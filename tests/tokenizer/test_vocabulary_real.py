"""The real tokenizers: published counts, and a kept text for every id that can be reached."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from coverage_job.config import RankFile
from coverage_job.tokenizer.load import TokenizerSpec, describe, load
from coverage_job.tokenizer.vocabulary import vocabulary_table
from tests.conftest import SHARED, needs_shared
from tests.tokenizer.test_load_real import QWEN_PATTERN
from tests.tokenizer.test_vocabulary import check_examples

pytestmark = needs_shared
TOKENIZERS = SHARED / "tokenizers"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.getbasetemp() / "vocabularies"
    monkeypatch.setenv("COVERAGE_JOB_CACHE", str(folder))


def spec_of(name: str) -> TokenizerSpec:
    if name == "qwen1":
        return describe(
            RankFile(path=str(TOKENIZERS / name / "qwen.tiktoken"), pattern=QWEN_PATTERN, normalizer="NFC")
        )
    return describe(str(TOKENIZERS / name))


def frame_of(spec: TokenizerSpec) -> pl.DataFrame:
    frame = pl.from_arrow(vocabulary_table(spec))
    assert isinstance(frame, pl.DataFrame)
    return frame


def published(frame: pl.DataFrame) -> tuple[int, int, int]:
    """(unreachable, partial UTF-8, special), in the sense of the published counts."""
    kind, decodable = pl.col("kind"), pl.col("decodable")
    unreachable = frame.filter(
        (decodable == "utf8") & ~kind.is_in(["byte", "special", "unused"]) & ~pl.col("round_trip")
    )
    partial = frame.filter((decodable == "partial") & (kind != "byte"))
    return len(unreachable), len(partial), len(frame.filter(kind == "special"))


def test_gpt2_as_published() -> None:
    frame = frame_of(spec_of("gpt2"))
    assert len(frame.filter(pl.col("kind") == "byte")) == 256
    assert published(frame) == (0, 216, 1)


@pytest.mark.parametrize(("name", "bytes_and_twins"), [("llama2", 351), ("mistral_v1", 380)])
def test_llama2_and_mistral_as_published(name: str, bytes_and_twins: int) -> None:
    frame = frame_of(spec_of(name))
    assert len(frame.filter(pl.col("kind") == "byte")) == 256
    # Published as bytes: the pieces that are one ASCII character, as written (the mark for a space is not).
    twins = frame.filter((pl.col("kind") == "base") & (pl.col("token_bytes").bin.size() == 1))
    assert 256 + len(twins.filter(pl.col("token") != " ")) == bytes_and_twins
    assert published(frame) == (0, 0, 3)


@pytest.mark.slow
def test_qwen_as_published() -> None:
    spec = spec_of("qwen1")
    frame = frame_of(spec)
    unreachable, partial, _ = published(frame)
    assert len(frame.filter(pl.col("kind") == "byte")) == 256
    assert partial == 1320
    # The published count takes three base entries that look like special tokens for such. No text gives
    # them, and nothing makes them special in the rank file.
    looks_special = frame.filter(pl.col("token").is_in(["<s>", "</s>", "<unk>"]))
    assert looks_special["reachability"].to_list() == ["unreachable"] * 3
    assert unreachable - len(looks_special) == 1906
    plain = load(describe(RankFile(path=spec.path, pattern=QWEN_PATTERN)))
    lost = frame.filter((pl.col("decodable") == "utf8") & (pl.col("kind") == "base") & ~pl.col("round_trip"))
    by_normalizer = [
        i
        for i, data in lost.select("token_id", "token_bytes").iter_rows()
        if plain.encode(data.decode()).ids == [i]
    ]
    assert len(by_normalizer) == 236


SMALL = ["gpt2", "llama2", "mistral_v1", "ja_unigram", "minilm_wordpiece"]
LARGE = ["qwen1", "qwen3", "o200k_base", "deepseek_v3", "tekken", "j2_unigram", "mistral_v1/tokenizer.model"]


@pytest.mark.parametrize("name", [*SMALL, *[pytest.param(n, marks=pytest.mark.slow) for n in LARGE]])
def test_every_kept_text_has_its_id(name: str) -> None:
    spec = spec_of(name)
    table = vocabulary_table(spec)
    check_examples(spec, table)
    ids = load(spec).get_vocab(with_added_tokens=True).values()
    kinds = table["kind"].to_pylist()
    assert table.num_rows == max(ids) + 1
    assert {i for i, kind in enumerate(kinds) if kind == "unused"} == set(range(max(ids) + 1)) - set(ids)


def test_every_folder_is_tested() -> None:
    named = {Path(n).parts[0] for n in SMALL + LARGE}
    assert {p.name for p in TOKENIZERS.iterdir()} == named
