from __future__ import annotations

import json
import random
import struct
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from coverage_job.config import RankFile
from coverage_job.corpus.documents import TextBatch, TokenBatch
from coverage_job.counting import added, bpe, histogram, kernel, scan, table
from coverage_job.counting import unigram as unigram_kernel
from coverage_job.counting.bpe_model import byte_model
from coverage_job.counting.cuts import Cuts, derive
from coverage_job.counting.kernel import FastKernel
from coverage_job.counting.reference import ReferenceKernel
from coverage_job.tokenizer.byte_alphabet import BYTES
from coverage_job.tokenizer.load import describe, load
from tests.conftest import SHARED, needs_shared
from tests.counting.texts import batches, make_batch

# Sentences of our own, in several scripts, from which tiny tokenizers learn merges.
LESSON = [
    "The quick brown fox doesn't jump over the lazy dogs; they've seen it before, and they'll see it again.",
    "def count(tokens):\n    return sum(1 for token in tokens if token != '')\n\n\nprint(count([1, 22]))\r\n",
    "Быстрая коричневая лиса прыгает через ленивую собаку, и собака это видит.",
    "猫が窓のそばで静かに眠っている。犬は庭で遊んでいる。今日は天気がとてもいい。",
    "今天天气很好，我们去公园散步。孩子们在草地上跑来跑去，老人们在树下下棋。",
    "오늘은 날씨가 좋아서 공원에 갔습니다. 아이들이 뛰어놀고 있었습니다.",
] * 3
SPLIT = (
    r"[^\r\n\p{L}\p{N}]?\p{L}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(
    ignore_merges: bool, normalizer: object = None, splits: tuple[str, ...] = (SPLIT,)
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *[pre_tokenizers.Split(Regex(s), "isolated") for s in splits],
            pre_tokenizers.ByteLevel(False, use_regex=False),
        ]
    )
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(LESSON, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("www.", normalized=True), AddedToken("[MASK]", lstrip=True)])
    return tokenizer


def by_characters(prefix: bool) -> Tokenizer:
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator(LESSON, trainers.BpeTrainer(vocab_size=500, show_progress=False))
    config = json.loads(trained.to_str())
    vocab = {f"<0x{b:02X}>": b for b in range(256)}
    for token in config["model"]["vocab"]:
        vocab.setdefault(token, len(vocab))
    vocab.setdefault("▁", len(vocab))
    merges = [tuple(m) for m in config["model"]["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<0x00>", fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *steps] if prefix else steps)
    tokenizer.decoder = decoders.ByteFallback()
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=False), AddedToken("</s>", normalized=True)])
    return tokenizer


def words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[MASK]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(LESSON, trainer)
    return tokenizer


def unigram(
    normalizer: object = None,
    pre_tokenizer: object = None,
    byte_fallback: bool = False,
    prefix: str = "",
    ties: bool = False,
) -> Tokenizer:
    """Entries of LESSON; with ties, scores that are equal or equal in sum."""
    pick = random.Random(5)
    text = prefix + " ".join(LESSON[:6]).replace(" ", "▁") + "▁▁\t\n0123456789"
    entries = {"<unk>": -9.0}
    for c in text:
        # Some characters are left out, to be unknown alone or at all.
        if pick.random() < 0.8:
            entries.setdefault(c, -6.0 if ties else -5 - 3 * pick.random())
    for _ in range(400):
        at, size = pick.randrange(len(text)), pick.randint(2, 7)
        score = -2.0 * pick.randint(1, size) if ties else -(4 + 9 * pick.random())
        entries.setdefault(text[at : at + size], score)
    if byte_fallback:
        entries |= {f"<0x{b:02X}>": -9.0 for b in range(256)}
    tokenizer = Tokenizer(models.Unigram(list(entries.items()), 0, byte_fallback))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_special_tokens(["<s>", "<unk>", "[INST]"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=True), AddedToken("[MASK]", lstrip=True)])
    return tokenizer


def charsmap() -> normalizers.Normalizer:
    """A map of characters and clusters, as SentencePiece writes one: a double array, and what it leads to."""
    becomes = {
        **{chr(c): " " for c in (9, 10, 13, 0xA0, 0x3000)},
        **{chr(c): "" for c in (1, 7, 0x200B, 0xFEFF)},
        **{chr(0xFF01 + k): chr(0x21 + k) for k in range(94)},
        **dict(zip("①㎏ﬁⅣ²⅕ア", ("1", "kg", "fi", "IV", "2", "1/5", "ｱｱ"), strict=True)),
        **dict(pair.split("=") for pair in ("か\u3099=が", "ｶﾞ=ガ", "a\u0301=á", "👍🏽=+", "\u0301='")),
        "\u1100\u1161": "가",
    }
    spelled, keys = b"", {}
    for key, value in becomes.items():
        keys[key.encode()] = len(spelled)
        spelled += value.encode() + b"\0"
    units: dict[int, int] = {}
    nodes = [(b"", 0)]
    block = 1
    for node, place in nodes:
        # A block of 256 units for each node, and as far a way to it as an XOR makes.
        base, block = block * 256, block + 1
        units[place] = units.get(place, 0) | (base ^ place) << 10
        for byte in sorted({k[len(node)] for k in keys if k.startswith(node) and len(k) > len(node)}):
            child = node + bytes([byte])
            units[base ^ byte] = byte | (child in keys) << 8
            nodes.append((child, base ^ byte))
        if node in keys:
            units[base] = keys[node]
    array = np.zeros(block * 256, np.uint32)
    array[list(units)] = list(units.values())
    return normalizers.Precompiled(struct.pack("<I", array.nbytes) + array.tobytes() + spelled)


def cleaned(*steps: normalizers.Normalizer) -> normalizers.Normalizer:
    """As the loader of SentencePiece's models makes it, with these steps first."""
    strip, runs = (Regex(r"\A +| +\z"), ""), (Regex(" {2,}"), " ")
    return normalizers.Sequence(
        [
            *steps,
            normalizers.Replace(*strip),
            normalizers.Replace(*runs),
            normalizers.Prepend("▁"),
            normalizers.Replace(" ", "▁"),
        ]
    )


def t5() -> Tokenizer:
    splits = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    return unigram(charsmap(), pre_tokenizers.Sequence(splits), prefix="▁")


UNIGRAM = {
    "unigram": lambda: unigram(),
    "unigram, ties": lambda: unigram(normalizers.Replace(" ", "▁"), ties=True),
    "unigram, bytes": lambda: unigram(normalizers.Replace(" ", "▁"), byte_fallback=True, ties=True),
    "unigram, NFKC": lambda: unigram(cleaned(normalizers.NFKC()), byte_fallback=True),
    "unigram, NFD": lambda: unigram(cleaned(normalizers.NFD())),
    "unigram, a map": lambda: unigram(cleaned(charsmap()), ties=True),
    "unigram, a map and bytes": lambda: unigram(
        normalizers.Sequence([charsmap(), normalizers.Replace(" ", "▁")]), byte_fallback=True
    ),
    "unigram, Metaspace": lambda: unigram(None, pre_tokenizers.Metaspace(), True),
    "unigram, Metaspace first": lambda: unigram(
        normalizers.Replace(Regex(" {2,}"), "▁"),
        pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
    ),
    "unigram, words": t5,
}
TINY = {
    **UNIGRAM,
    "byte level": lambda: byte_level(False),
    "byte level, whole pre-tokens": lambda: byte_level(True),
    "byte level, NFC": lambda: byte_level(False, normalizers.NFC()),
    "byte level, NFKC": lambda: byte_level(True, normalizers.NFKC()),
    "byte level, several splits": lambda: byte_level(
        False, None, (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", SPLIT)
    ),
    "words": words,
    "by characters": lambda: by_characters(False),
    "by characters, with a prefix": lambda: by_characters(True),
}
QWEN = {
    "path": str(SHARED / "tokenizers" / "qwen1" / "qwen.tiktoken"),
    "pattern": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "normalizer": "NFC",
    "special_tokens": {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645},
}
REAL = [
    "gpt2",
    "o200k_base",
    "qwen3",
    "qwen1",
    "deepseek_v3",
    "tekken",
    "llama2",
    "mistral_v1",
    "minilm_wordpiece",
    "j2_unigram",
    "ja_unigram",
]


def real(name: str) -> Tokenizer:
    return load(describe(RankFile(**QWEN) if name == "qwen1" else str(SHARED / "tokenizers" / name)))


@lru_cache(maxsize=2)
def kernels(name: str) -> tuple[FastKernel, ReferenceKernel]:
    tokenizer = TINY[name]() if name in TINY else real(name)
    cuts = derive(tokenizer)
    assert cuts.reason == ""
    # A small table, so that it is dropped and begun anew in between.
    return FastKernel(tokenizer, Cuts.from_bytes(cuts.to_bytes()), 16), ReferenceKernel(tokenizer)


def assert_same(fast: TokenBatch, reference: TokenBatch) -> None:
    assert fast.ids.tolist() == reference.ids.tolist()
    assert fast.documents.tolist() == reference.documents.tolist()
    assert fast.keys.tolist() == reference.keys.tolist()
    for ours, theirs in ((fast.supervised, reference.supervised), (fast.seams, reference.seams)):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("name", TINY)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(batch=batches(False) | batches(True))
def test_tiny_tokenizers_count_as_the_reference(name: str, batch: TextBatch) -> None:
    fast, reference = kernels(name)
    assert_same(fast.encode(batch), reference.encode(batch))


@pytest.mark.parametrize("name", ["unigram, NFKC", "unigram, NFD", "unigram, a map", "unigram, words"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(batch=batches(False))
def test_characters_may_be_mapped_in_parts(name: str, batch: TextBatch) -> None:
    fast, reference = kernels(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_PART_BYTES", 1)
        assert_same(fast.encode(batch), reference.encode(batch))


def test_a_long_run_of_unknown_characters_is_one_token_or_its_bytes() -> None:
    for name in ("unigram, ties", "unigram, bytes"):
        fast, reference = kernels(name)
        batch = make_batch([["a" + "𠮷" * 70_000 + "b"]], [(3, 50), (60_000, 70_002)])
        assert_same(fast.encode(batch), reference.encode(batch))


@needs_shared
@pytest.mark.parametrize("name", REAL)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(batch=batches(False) | batches(True))
def test_real_tokenizers_count_as_the_reference(name: str, batch: TextBatch) -> None:
    fast, reference = kernels(name)
    assert_same(fast.encode(batch), reference.encode(batch))


@pytest.mark.parametrize("name", ["byte level", "by characters, with a prefix"])
def test_long_words_are_merged_as_the_reference_does(name: str) -> None:
    fast, reference = kernels(name)
    pick = np.random.default_rng(0)
    letters = np.array(list("thequickbrownfoxjumps"))
    for text in ("a" * 5000, "ab" * 3000, "".join(pick.choice(letters, 9000)), "天气很好" * 1500, "é" * 3000):
        for spans in (None, [(1, 2), (1500, 1501), (2000, len(text))]):
            batch = make_batch([[text], ["x" + text]], spans)
            assert_same(fast.encode(batch), reference.encode(batch))


def test_a_full_table_is_dropped_and_nothing_changes() -> None:
    fast, reference = kernels("byte level")
    pick = np.random.default_rng(1)
    words = [" " + "".join(map(chr, pick.integers(97, 123, 24))) for _ in range(60_000)]
    before = fast.counters.tables_dropped
    for half in (words[:30_000], words[30_000:]):
        batch = make_batch([["".join(half)]])
        expected = reference.encode(batch)
        for _ in range(6):
            assert_same(fast.encode(batch), expected)
    batch = make_batch(
        [["".join(" " + "".join(map(chr, pick.integers(97, 123, 9))) for _ in range(300_000))]]
    )
    assert_same(fast.encode(batch), reference.encode(batch))
    assert fast.counters.tables_dropped > before


def test_the_least_table_has_room_for_the_longest_chunks() -> None:
    # Of a letter that merges with itself, so that the words are not cut.
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab | {"aa": 256}, [("a", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = FastKernel(tokenizer, derive(tokenizer), 16)
    word = " " + "a" * (table.LONG - 1)
    ids = ReferenceKernel(tokenizer).encode(make_batch([[word]])).ids
    encoded = fast.encode(make_batch([[word * (2 * scan.GROUP + 1)]])).ids
    np.testing.assert_array_equal(encoded.reshape(-1, len(ids)), np.tile(ids, (2 * scan.GROUP + 1, 1)))


def test_chunks_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of chunks over 16 bytes the table keeps a hash; with equal hashes their bytes must decide.
    rows, kept = np.zeros((8, 4), np.uint64), np.zeros(64, np.uint8)
    store = table.Table(rows, kept, np.zeros(8, np.int32), np.zeros(3, np.int64))
    texts = np.frombuffer(b"a chunk of twenty byanother of twenty by", np.uint8)
    first, tag = np.uint64(7), np.uint64(21)
    for number, start in enumerate((0, 20)):
        row = table.look_up(rows, kept, first, np.uint64(0), tag, texts, start)
        assert rows[row, 2] == 0
        ids = np.array([number], np.int32)
        table.keep(rows, kept, store.ids, store.used, row, first, np.uint64(0), tag, texts, start, ids, 0, 1)
    found = [int(rows[table.look_up(rows, kept, first, np.uint64(0), tag, texts, s), 3]) for s in (0, 20)]
    assert found == [0, 1]


def test_what_took_the_reference_path_is_counted() -> None:
    fast, reference = kernels("byte level")
    before = fast.counters.reference_bytes.copy()
    batch = make_batch([["a [MASK] b"], ["plain"]])
    assert_same(fast.encode(batch), reference.encode(batch))
    assert sum((fast.counters.reference_bytes - before).values()) == len("a [MASK] b")


def test_a_tokenizer_without_cuts_takes_the_reference_path() -> None:
    tokenizer = byte_level(False)
    cuts = Cuts("its model is another")
    fast, reference = FastKernel(tokenizer, cuts, 16), ReferenceKernel(tokenizer)
    batch = make_batch([["The fox", " jumps"], []])
    assert_same(fast.encode(batch), reference.encode(batch))
    assert fast.counters.reference_bytes == {"its model is another": 13}


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=bpe.SHORT), max_size=bpe.LANES),
    st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_merging_side_by_side_and_by_a_tree_agree_with_the_definition(
    many: list[list[int]], pick: random.Random
) -> None:
    # Merges over a small alphabet, in an order that no training gives.
    texts = ["a", "b", "c", "d"]
    pairs: list[tuple[int, int, int]] = []
    for _ in range(40):
        left, right = pick.randrange(len(texts)), pick.randrange(len(texts))
        text = texts[left] + texts[right]
        if len(text) <= 12:
            if text not in texts:
                texts.append(text)
            pairs.append((left, right, texts.index(text)))
    pick.shuffle(pairs)
    merges = np.array(pairs, np.int32).reshape(-1, 3)
    # Of some symbols the pairs have no table of their own.
    first = np.array(pick.sample(range(4), pick.randrange(5)), np.int32)
    index = bpe.index_merges(merges, first, len(texts))
    widths = np.array([len(t) for t in texts], np.int32)
    ranks = {(a, b): r for r, (a, b, _) in enumerate(pairs)}
    slow = [merged(symbols, ranks, index.products.tolist())[0] for symbols in many]
    lanes, end = bpe.new_lanes(bpe.SHORT), 0
    for j, symbols in enumerate(many):
        lanes.begins[j], lanes.counts[j], lanes.active[j] = end, len(symbols), j
        lanes.symbols[end : end + len(symbols)] = symbols
        end += len(symbols) + bpe.BLOCK
    bpe.merge_together(lanes, len(many), index)
    for j, (symbols, expected) in enumerate(zip(many, slow, strict=True)):
        begin, count = lanes.begins[j], lanes.counts[j]
        assert lanes.symbols[begin : begin + count].tolist() == expected
        tree = np.array(symbols, np.int32)
        n = bpe.merge_long(tree, len(symbols), widths, index)
        assert tree[:n].tolist() == expected


def merged(
    symbols: list[int], ranks: dict[tuple[int, int], int], products: list[int]
) -> tuple[list[int], set[int]]:
    """Byte-pair merging as it is defined; and the ranks of the merges made."""
    symbols, made = list(symbols), set()
    while found := [(ranks[p], i) for i, p in enumerate(pairwise(symbols)) if p in ranks]:
        rank, at = min(found)
        made.add(rank)
        symbols[at : at + 2] = [products[rank]]
    return symbols, made


@lru_cache(maxsize=1)
def cuts_of_bytes() -> Cuts:
    return derive(byte_level(False))


@pytest.mark.parametrize("seed", [0, 2, 7, 13])
def test_any_merges_in_any_order_count_as_the_reference(seed: int) -> None:
    """Merges that tear characters, come before those they need, or are never made."""
    pick = random.Random(seed)
    characters = ["a", " ", "é", "ê", "я", "ж", "の", "は", "語", "가", "👍", "\u0301"]
    spell = {byte: character for character, byte in BYTES.items()}
    vocab = {character: i for i, character in enumerate(sorted(BYTES))}
    lessons = ["".join(pick.choices(characters, k=pick.randint(1, 4))) for _ in range(60)]
    merges: list[tuple[str, str]] = []
    for lesson in lessons:
        parts = [spell[b] for b in lesson.encode()]
        # Learn a lesson in part, in an order of its own.
        for _ in range(pick.randint(1, len(parts))):
            if len(parts) > 1:
                at = pick.randrange(len(parts) - 1)
                pair = (parts[at], parts[at + 1])
                parts[at : at + 2] = ["".join(pair)]
                vocab.setdefault("".join(pair), len(vocab))
                merges.append(pair)
    merges = list(dict.fromkeys(merges))
    if seed % 2:
        pick.shuffle(merges)
    tokenizer = byte_level(False)
    tokenizer.model = models.BPE(vocab, merges)
    base = cuts_of_bytes()
    arrays = byte_model(json.loads(tokenizer.to_str())["model"])
    assert len(arrays["merges"]) < len(merges)
    fast = FastKernel(tokenizer, Cuts("", base.facts, base.arrays | arrays), 16)
    reference = ReferenceKernel(tokenizer)
    for _ in range(40):
        documents = [["".join(pick.choices(characters, k=pick.randint(1, 30)))] for _ in range(40)]
        batch = make_batch(documents)
        assert_same(fast.encode(batch), reference.encode(batch))


@pytest.mark.parametrize("name", ["byte level", "words", "unigram"])
def test_nothing_is_compiled_after_the_kernel_is_made(name: str) -> None:
    """Whatever buffer a reader took the text from."""
    tokenizer = TINY[name]()
    fast = FastKernel(tokenizer, Cuts.from_bytes(derive(tokenizer).to_bytes()))
    compiled = [scan.run, unigram_kernel.run, added.find_added, added.find_unsettled, histogram._count]
    histogram.warm_up()
    before = [len(function.signatures) for function in compiled]
    batch = make_batch([["some text"], ["12 words", "<tool> é"]])
    texts = [np.frombuffer(buffer(batch.text.tobytes()), np.uint8) for buffer in (bytes, bytearray)]
    for text in (*texts, batch.text.copy()):
        tokens = fast.encode(replace(batch, text=text))
        counts = histogram.Histogram(1000)
        counts.add(tokens)
    assert [len(function.signatures) for function in compiled] == before
