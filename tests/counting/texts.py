"""Texts that try to tell a fast path from the reference, for hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from coverage_job.corpus.documents import TextBatch

_ALPHABETS = [
    "abcdeSTRVMLDreveslld",
    " \t\n\r\u00a0\u3000\u2028\u0085\x0b\x0c",
    "'\u2019\"/.,;:-_()[]{}<>|!?#$%&*+=@^`~\\",
    "0123456789\u0663\u0967\u2155\u00b2\uff11",
    "àéîõüßæøÀÉſK\u01c5\u0130ı",
    "\u0301\u0300\u0338\u3099\u309a\u094d\u0e33\u0e34\u20dd\u05b0\u064b",
    "абвгдежзийАБВЁёіїєґ",
    "αβγδεςσΑΒΓ",
    "אבגדהאבגד",
    "ابتثجحخد\u0640\u200c\u200d",
    "कखगघङचछ\u093e\u0940",
    "กขคงจฉ\u0e31\u0e48",
    "漢字仮名交文的是不了人我在有他这中大来上国",
    "あいうえおかがきぎアイウエオカガー・「」、。",
    "가각간갈감한국어\u1100\u1161\u11a8",
    "👍🏽👩\u200d👩\u200d👧🇯🇵\ufe0f😀",
    "\x00\x01\x07\x1f\x7f\u0080\u200b\ufeff\ufffd\ue000\U000f0000\U0010ffff\u0378",
    "ｱｲｳﾞﾟＡＢ＜｜㎏ﬁ①ⅣÅΩ豈",
    "ᚠᛇᚻ𐌰𐌱𝒜𝔅𠮷𡈽",
]
_PHRASES = [
    *[
        " the",
        "don't",
        "I'LL",
        "'Version",
        "\r\n",
        "\n\n\n",
        "    ",
        "www.example.com/a?b=c",
        "しない",
        "##ing",
    ],
    *["<|endoftext|>", "<|im_start|>", "<|im_end|>\n", "<s>", "</s>", "<unk>", "[INST]", "[MASK]", "<think>"],
    *["|||EMAIL_ADDRESS|||", "<｜User｜>", "▁", "▁▁the", "<0x0A>", "＜s＞"],
    *["a" * 40, "ab" * 70, "的" * 50, "-" * 90, " " * 60],
]

characters = st.sampled_from(_ALPHABETS).flatmap(
    lambda a: st.text(st.sampled_from(a), min_size=1, max_size=9)
)
anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
texts = st.lists(characters | st.sampled_from(_PHRASES) | anything, max_size=14).map("".join)


def make_batch(documents: list[list[str]], spans: list[tuple[int, int]] | None = None) -> TextBatch:
    """Documents as lists of pieces. spans: in characters of all text."""
    pieces = [p.encode() for d in documents for p in d]
    text = "".join(p for d in documents for p in d)
    at = np.cumsum([0] + [len(c.encode()) for c in text])
    return TextBatch(
        text=np.frombuffer(b"".join(pieces), np.uint8),
        pieces=np.cumsum([0] + [len(p) for p in pieces]).astype(np.int64),
        documents=np.cumsum([0] + [len(d) for d in documents]).astype(np.int64),
        spans=None if spans is None else at[np.array(spans, np.int64).reshape(-1, 2)].astype(np.int64),
        keys=np.arange(len(documents), dtype=np.int32),
    )


@st.composite
def batches(draw: st.DrawFn, with_spans: bool) -> TextBatch:
    documents = draw(st.lists(st.lists(texts, max_size=3), min_size=1, max_size=3))
    if not with_spans:
        return make_batch(documents)
    n = sum(len(p) for d in documents for p in d)
    borders = sorted(draw(st.sets(st.integers(0, n), max_size=8)))
    return make_batch(documents, list(zip(borders[0::2], borders[1::2], strict=False)))
