"""The real tokenizer files and texts beside the checkout, against the packages that own the formats."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest

from coverage_job.config import RankFile
from coverage_job.tokenizer.load import describe, load
from coverage_job.tokenizer.ranks import read_tiktoken
from tests.conftest import SHARED, needs_shared

pytestmark = needs_shared
TOKENIZERS = SHARED / "tokenizers"

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    zstandard = pytest.importorskip("zstandard")
    found = []
    for path in sorted((SHARED / "corpora").glob("*/*.jsonl.zst")):
        with open(path, "rb") as raw:
            lines = io.TextIOWrapper(
                zstandard.ZstdDecompressor().stream_reader(raw), encoding="utf-8", newline="\n"
            )
            for _, line in zip(range(8), lines, strict=False):
                found.append(json.loads(line)["text"][:1500])
    return found


def test_qwen_ranks(texts: list[str]) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    path = TOKENIZERS / "qwen1" / "qwen.tiktoken"
    tokenizer = load(describe(RankFile(path=str(path), pattern=QWEN_PATTERN, normalizer="NFC")))
    reference = tiktoken.Encoding(
        "q", pat_str=QWEN_PATTERN, mergeable_ranks=read_tiktoken("q", path.read_bytes()), special_tokens={}
    )
    for text in texts:
        assert tokenizer.encode(text).ids == reference.encode_ordinary(unicodedata.normalize("NFC", text))


def test_o200k_ranks(texts: list[str]) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    folder = TOKENIZERS / "o200k_base"
    with open(folder / "tokenizer.json", "rb") as file:
        pattern = json.load(file)["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    path = folder / "o200k_base.tiktoken"
    tokenizer = load(describe(RankFile(path=str(path), pattern=pattern)))
    reference = tiktoken.Encoding(
        "o", pat_str=pattern, mergeable_ranks=read_tiktoken("o", path.read_bytes()), special_tokens={}
    )
    for text in texts:
        assert tokenizer.encode(text).ids == reference.encode_ordinary(text)


@pytest.mark.parametrize("name", ["mistral_v1", "j2_unigram", "ja_unigram"])
def test_sentencepiece_models(texts: list[str], name: str) -> None:
    spm = pytest.importorskip("sentencepiece")
    path = TOKENIZERS / name / "tokenizer.model"
    reference = spm.SentencePieceProcessor(model_file=str(path))
    tokenizer = load(describe(str(path)))
    for text in texts:
        ids, expected = tokenizer.encode(text, add_special_tokens=False).ids, reference.encode(text)
        if name == "j2_unigram":
            # Its pieces of one, two and four spaces have scores in the ratio 1:2:4: any way to cut a run of
            # spaces is as good, and 32-bit rounding decides for the package.
            ids, expected = spaces_alone(reference, ids), spaces_alone(reference, expected)
        assert ids == expected


def spaces_alone(processor: object, ids: list[int]) -> list[object]:
    """Ids, with each run of pieces that hold only spaces replaced by its length in spaces."""
    out: list[object] = []
    for i in ids:
        piece = processor.id_to_piece(i)  # type: ignore[attr-defined]
        spaces = len(piece) if set(piece) == {"▁"} else 0
        if spaces and out and isinstance(out[-1], str):
            out[-1] = out[-1] + "▁" * spaces
        else:
            out.append("▁" * spaces if spaces else i)
    return out


def test_a_folder_with_both_files_gives_the_same_ids(texts: list[str]) -> None:
    folder = TOKENIZERS / "mistral_v1"
    one, other = load(describe(str(folder))), load(describe(str(folder / "tokenizer.model")))
    for text in texts:
        assert one.encode(text, add_special_tokens=False).ids == other.encode(text).ids
