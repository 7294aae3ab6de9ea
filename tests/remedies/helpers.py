"""Tiny tokenizers of each family, trained on our own instructions, and a coverage table made from one."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import polars as pl
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from coverage_job.corpus.shapes import Dialogue, PlainRenderer, Rendered
from coverage_job.counting.reference import ReferenceKernel
from coverage_job.remedies import repeat
from coverage_job.remedies.proof import DialogueCounter
from coverage_job.remedies.repeat import RepeatOptions, RepeatSet, instructions

SPECIALS = ["<|start|>", "<|end|>"]


def corpus() -> list[str]:
    texts = [line for lines in instructions().values() for line in lines]
    return [
        *texts,
        "the cat sat on the mats, cats sitting    there\n\n\t\tx = 12;\n",
        "aa aaaa bb bbbb abab 嘉祺嘉祺",
    ] * 3


@lru_cache(maxsize=4)
def tiny(family: str) -> str:
    """A tokenizer.json of about a thousand entries: bytes | sentencepiece | wordpiece | unigram."""
    if family == "bytes":
        tokenizer = Tokenizer(models.BPE(byte_fallback=False))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=1200,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=SPECIALS,
            show_progress=False,
        )
    elif family == "sentencepiece":
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        trainer = trainers.BpeTrainer(
            vocab_size=1200,
            special_tokens=["<unk>", *SPECIALS, *(f"<0x{b:02X}>" for b in range(256))],
            show_progress=False,
        )
    elif family == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(
            vocab_size=1200, special_tokens=["[UNK]", *SPECIALS], show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=700, special_tokens=["<unk>", *SPECIALS], unk_token="<unk>", show_progress=False
        )
    tokenizer.train_from_iterator(corpus(), trainer)
    data = json.loads(tokenizer.to_str())
    # The trainer made the byte tokens special; in real files they are plain entries.
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return tokenizer.to_str()


def tiny_tokenizer(family: str) -> Tokenizer:
    return Tokenizer.from_str(tiny(family))


class ChatML:
    """A template that trims what it is given, as many do."""

    def render(self, dialogue: Dialogue) -> Rendered:
        data, spans = b"", []
        for message in dialogue.messages:
            data += f"<|start|>{message['role']}\n".encode()
            start = len(data)
            data += message["content"].strip().encode() + b"<|end|>"
            if message["role"] == "assistant":
                spans.append((start, len(data)))
            data += b"\n"
        return Rendered([data], spans)


def counter(tokenizer: Tokenizer, renderer: Any = None) -> DialogueCounter:
    rows = max(tokenizer.get_vocab().values()) + 1
    renderer = renderer or PlainRenderer("all_assistant")
    return DialogueCounter(renderer, ReferenceKernel(tokenizer), rows, 4096)


def build(
    coverage: pl.DataFrame, asked: dict[int, int], tokenizer: Tokenizer, renderer: Any = None, **options: Any
) -> RepeatSet:
    return repeat.build(coverage, asked, tokenizer, counter(tokenizer, renderer), RepeatOptions(**options))


def _bytes(tokenizer: Tokenizer, token: str, family: str) -> bytes:
    if family == "bytes":
        back = dict(zip(_alphabet(), range(256), strict=True))
        if all(c in back for c in token):
            return bytes(back[c] for c in token)
    if token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").removeprefix("##").encode()


@lru_cache(maxsize=1)
def _alphabet() -> list[str]:
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {}, 0
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return [table[b] for b in range(256)]


def fabricate(tokenizer: Tokenizer, family: str) -> pl.DataFrame:
    """A table of a run's columns in which post-training gave nothing; reachability as `corpus` shows it."""
    added = tokenizer.get_added_tokens_decoder()
    seen: dict[int, str] = {}
    for text in corpus():
        words = text.split()
        # Words that training did not see, so that suffixes are needed.
        for word in [text, *words, *(w[k:] for w in words for k in range(1, 4)), *(f"a{w}" for w in words)]:
            for token_id in tokenizer.encode(word, add_special_tokens=False).ids:
                seen.setdefault(token_id, word)
    rows = []
    for token_id in range(max(tokenizer.get_vocab().values()) + 1):
        token = tokenizer.id_to_token(token_id) or ""
        special = token_id in added and added[token_id].special
        data = token.encode() if token_id in added else _bytes(tokenizer, token, family)
        one = len(data) == 1 and (family == "bytes" or token.startswith("<0x"))
        kind = "special" if special else "added" if token_id in added else "byte" if one else "base"
        try:
            own = bool(data) and tokenizer.encode(data.decode(), add_special_tokens=False).ids == [token_id]
        except UnicodeDecodeError:
            own = False
        reach = (
            "special" if special else "direct" if own else "contextual" if token_id in seen else "unreachable"
        )
        text = data.decode("utf-8", "replace")
        language = "zh" if any("\u4e00" <= c <= "\u9fff" for c in text) else "en"
        flagged = reach in ("direct", "contextual")
        rows.append(
            (
                token_id,
                token,
                data,
                kind,
                reach,
                seen.get(token_id),
                language,
                "absent" if flagged else "exempt",
                5 if flagged else 0,
                "repeat" if flagged else "exempt",
                0,
            )
        )
    names = [
        "token_id",
        "token",
        "token_bytes",
        "kind",
        "reachability",
        "example",
        "language",
        "status",
        "deficit",
        "action",
        "posttraining_occurrences",
    ]
    return pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)
