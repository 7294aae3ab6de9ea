"""Tokenizers small enough to know by heart, made where they are needed."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from coverage_job.tokenizer.byte_alphabet import to_alphabet
from coverage_job.tokenizer.load import TokenizerSpec, describe


def byte_level(
    folder: Path,
    merges: list[tuple[bytes, bytes]],
    *,
    alone: tuple[bytes, ...] = (),
    pattern: str = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+",
    normalizer: normalizers.Normalizer | None = None,
    special: tuple[str, ...] = ("<|end|>",),
    added: tuple[str, ...] = (),
    ignore_merges: bool = False,
) -> TokenizerSpec:
    """256 bytes, then one id per merge, then entries without a merge, then added tokens."""
    tokens = [bytes([b]) for b in range(256)] + [a + b for a, b in merges] + list(alone)
    vocab = {to_alphabet(t): i for i, t in enumerate(tokens)}
    pairs = [(to_alphabet(a), to_alphabet(b)) for a, b in merges]
    tokenizer = Tokenizer(models.BPE(vocab, pairs, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in added])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return describe(str(folder))


def wordpiece(folder: Path, pieces: list[str]) -> TokenizerSpec:
    vocab = {p: i for i, p in enumerate(["[UNK]", *pieces])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([AddedToken("[UNK]", special=True)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return describe(str(folder))
