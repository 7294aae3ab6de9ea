"""Whatever the format, shape, split or engine: counts are those of a plain loop over the tokenizer."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zstandard
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from coverage_job.config import parse_job
from coverage_job.pipeline.run import count_only
from coverage_job.progress import Steps
from coverage_job.schemas import COUNTS
from coverage_job.storage import Run
from tests.conftest import SHARED, needs_shared

Pieces = list[tuple[str, bool]]  # what is encoded alone, and whether it is supervised

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "明日の天気は晴れでしょう。\u2028改行ではない\u0085行",
    "",
    "안녕하세요, 세계! 🇯🇵👩‍👩‍👧",
    "Съешь ещё этих мягких французских булок\r\nда выпей чаю",
    'quotes " and, commas\tand tabs',
    "  leading and trailing  ",
    "naïve café — “quoted” x² ﬁ",
    "def f(x):\n    return x  # comment\n\n",
    "a" * 300,
] * 5


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def plain_loop(tokenizer: Path, documents: Iterable[Pieces]) -> dict[int, list[int]]:
    """Per token the four counts, by the tokenizer alone."""
    reference = Tokenizer.from_file(str(tokenizer))
    reference.no_padding()
    reference.no_truncation()
    counts: dict[int, Counter[str]] = {}
    for pieces in documents:
        seen, targets = set(), set()
        for text, supervised in pieces:
            for token in reference.encode(text, add_special_tokens=False).ids:
                cell = counts.setdefault(token, Counter())
                cell["occurrences"] += 1
                seen.add(token)
                if supervised:
                    cell["supervised_occurrences"] += 1
                    targets.add(token)
        for token in seen:
            counts[token]["documents"] += 1
        for token in targets:
            counts[token]["supervised_documents"] += 1
    return {token: [c[name] for name in COUNTS] for token, c in counts.items()}


def counted(
    tokenizer: Path, path: Path | str, folder: Path, *overrides: str, **corpus: Any
) -> dict[int, list[int]]:
    corpus = {"name": "c", "stage": "pretraining", "path": str(path), **corpus}
    tree = {
        "tokenizer": str(tokenizer),
        "chat_template": "none",
        "corpora": [corpus],
        "engine": {"workers": 1},
    }
    job = parse_job(tree, base=folder, overrides=overrides)
    number = len(list(folder.glob("run*")))
    run = Run(count_only(job, "local", str(folder / f"run{number}"), Steps(quiet=True)).path)
    frame = pl.DataFrame(run.table("histogram.parquet")).group_by("token_id").agg(pl.col(COUNTS).sum())
    return {row[0]: list(row[1:]) for row in frame.iter_rows()}


def lines(records: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(r, ensure_ascii=False).encode() + b"\n" for r in records)


RECORDS = [{"id": i, "text": t} for i, t in enumerate(TEXTS)]


def as_csv(path: Path, delimiter: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["id", "text"], delimiter=delimiter, lineterminator="\n")
        writer.writeheader()
        writer.writerows(RECORDS)


FORMATS: dict[str, Callable[[Path], Any]] = {
    "x.jsonl": lambda p: p.write_bytes(lines(RECORDS)),
    "x.jsonl.gz": lambda p: p.write_bytes(gzip.compress(lines(RECORDS))),
    "x.jsonl.bz2": lambda p: p.write_bytes(bz2.compress(lines(RECORDS))),
    "x.jsonl.xz": lambda p: p.write_bytes(lzma.compress(lines(RECORDS))),
    "x.jsonl.zst": lambda p: p.write_bytes(zstandard.compress(lines(RECORDS))),
    "x.json": lambda p: p.write_bytes(json.dumps(RECORDS, indent=1).encode()),
    "x.json.gz": lambda p: p.write_bytes(gzip.compress(json.dumps(RECORDS).encode())),
    "x.parquet": lambda p: pq.write_table(pa.Table.from_pylist(RECORDS), p, row_group_size=7),
    "x.arrow": lambda p: pyarrow.feather.write_feather(pa.Table.from_pylist(RECORDS), str(p)),
    "x.csv": lambda p: as_csv(p, ","),
    "x.tsv": lambda p: as_csv(p, "\t"),
}


@pytest.mark.parametrize("name", list(FORMATS))
def test_every_format(tokenizer: Path, tmp_path: Path, name: str) -> None:
    FORMATS[name](tmp_path / name)
    expected = plain_loop(tokenizer, [[(t, True)] for t in TEXTS])
    assert counted(tokenizer, tmp_path / name, tmp_path) == expected


def test_plain_text_is_a_document_a_line(tokenizer: Path, tmp_path: Path) -> None:
    whole = [line for t in TEXTS for line in t.replace("\r\n", "\n").split("\n") if line.strip()]
    (tmp_path / "x.txt").write_bytes("\n".join(whole).encode() + b"\n")
    assert counted(tokenizer, tmp_path / "x.txt", tmp_path) == plain_loop(
        tokenizer, [[(t, True)] for t in whole]
    )


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
@pytest.mark.parametrize("splits", [1, 7, 64])
def test_every_split_size(tokenizer: Path, tmp_path: Path, name: str, splits: int) -> None:
    FORMATS[name](tmp_path / name)
    size = (tmp_path / name).stat().st_size
    expected = plain_loop(tokenizer, [[(t, True)] for t in TEXTS])
    assert (
        counted(tokenizer, tmp_path / name, tmp_path, f"engine.split_bytes={max(1, size // splits)}")
        == expected
    )


PAIRS = [(TEXTS[i], TEXTS[i + 1]) for i in range(0, 8, 2)]
PLAIN: list[Pieces] = [[(q, False), (a, True)] for q, a in PAIRS]
SHAPES: dict[str, list[dict[str, Any]]] = {
    "messages": [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in PAIRS
    ],
    "sharegpt": [
        {"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]} for q, a in PAIRS
    ],
    "alpaca": [{"instruction": q, "input": "", "output": a} for q, a in PAIRS],
    "prompt_completion": [{"prompt": q, "completion": a} for q, a in PAIRS],
    "preference": [{"prompt": q, "chosen": a, "rejected": "no " + a} for q, a in PAIRS],
}


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("format_", ["jsonl", "json", "parquet"])
def test_every_shape(tokenizer: Path, tmp_path: Path, shape: str, format_: str) -> None:
    path = tmp_path / f"x.{format_}"
    if format_ == "parquet":
        pq.write_table(pa.Table.from_pylist(SHAPES[shape]), path)
    else:
        path.write_bytes(lines(SHAPES[shape]) if format_ == "jsonl" else json.dumps(SHAPES[shape]).encode())
    assert counted(tokenizer, path, tmp_path, stage="posttraining") == plain_loop(tokenizer, PLAIN)


def test_tokens_with_labels(tokenizer: Path, tmp_path: Path) -> None:
    rows = [([5, 6, 5], [-100, 6, 5]), ([7], [7]), ([], []), ([8, 8], [-100, -100])]
    (tmp_path / "x.jsonl").write_bytes(lines({"input_ids": i, "labels": b} for i, b in rows))
    got = counted(tokenizer, tmp_path / "x.jsonl", tmp_path, stage="posttraining")
    assert got == {5: [2, 1, 1, 1], 6: [1, 1, 1, 1], 7: [1, 1, 1, 1], 8: [2, 1, 0, 0]}


def real_sft() -> dict[str, tuple[str, Callable[[dict[str, Any]], Pieces]]]:
    trained = {"gpt", "assistant", "function_call"}

    def turns(messages: list[dict[str, Any]], role: str, text: str) -> Pieces:
        return [(m[text], m[role] in trained) for m in messages]

    def alpaca(r: dict[str, Any]) -> Pieces:
        return [(r["instruction"] + ("\n" + r["input"] if r["input"] else ""), False), (r["output"], True)]

    return {
        "llamafactory/alpaca_en_demo.json": ("alpaca", alpaca),
        "fastchat/dummy_conversation.json": (
            "sharegpt",
            lambda r: turns(r["conversations"], "from", "value"),
        ),
        "llamafactory/glaive_toolcall_zh_demo.json": (
            "sharegpt",
            lambda r: turns(r["conversations"], "from", "value"),
        ),
        "chatterbot/chatterbot.jsonl": ("messages", lambda r: turns(r["messages"], "role", "content")),
        "llamafactory/dpo_en_demo.json": (
            "preference",
            lambda r: turns([*r["conversations"], r["chosen"]], "from", "value"),
        ),
        "lawyer_llama/fakao_gpt4.json": ("auto", lambda r: [(r["input"], False), (r["output"], True)]),
    }


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("name", list(real_sft()))
def test_real_post_training_sets(tmp_path: Path, name: str) -> None:
    shape, pieces = real_sft()[name]
    path = SHARED / "sft" / name
    text = path.read_text(encoding="utf-8")
    records = [json.loads(x) for x in text.splitlines()] if name.endswith("jsonl") else json.loads(text)
    tokenizer = SHARED / "tokenizers" / "o200k_base" / "tokenizer.json"
    got = counted(tokenizer, path, tmp_path, stage="posttraining", shape=shape)
    assert got == plain_loop(tokenizer, map(pieces, records))


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("language", ["ja", "multi", "code"])
def test_real_pre_training_text(tmp_path: Path, language: str) -> None:
    tokenizer = SHARED / "tokenizers" / "o200k_base" / "tokenizer.json"
    data = (
        zstandard.ZstdDecompressor()
        .stream_reader((SHARED / "corpora" / language / f"{language}-0.jsonl.zst").open("rb"))
        .read(3_000_000)
    )
    whole = data[: data.rindex(b"\n") + 1]
    texts = [json.loads(line)["text"] for line in whole.split(b"\n") if line]
    expected = plain_loop(tokenizer, [[(t, True)] for t in texts])
    (tmp_path / "x.jsonl").write_bytes(whole)
    pq.write_table(pa.table({"text": texts}), tmp_path / "x.parquet", row_group_size=max(1, len(texts) // 80))
    for name in ("x.jsonl", "x.parquet"):
        size = (tmp_path / name).stat().st_size
        for splits in (1, 7, 64):
            overrides = f"engine.split_bytes={size // splits}"
            assert counted(tokenizer, tmp_path / name, tmp_path, overrides) == expected, (name, splits)
