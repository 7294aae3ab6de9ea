"""Real corpora and SFT sets read as a plain loop reads them."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import pytest
import zstandard

from coverage_job.corpus.languages import normalise_language
from coverage_job.errors import CorpusError
from tests.conftest import SHARED, needs_shared
from tests.corpus.reading import make_job, read_all

pytestmark = [needs_shared, pytest.mark.shared]

SFT = SHARED / "sft"
# file: (shape, records); None where shape auto must refuse.
FILES: dict[str, tuple[str, int] | None] = {
    "chatterbot/chatterbot.jsonl": ("messages", 7634),
    "fastchat/dummy_conversation.json": ("sharegpt", 500),
    "language_confusion/command-r.csv": None,
    "lawyer_llama/fakao_gpt4.json": ("alpaca", 1000),
    "lawyer_llama/legal_counsel_multi_turn_with_article_v2.json": None,
    "lawyer_llama/legal_counsel_with_article_v2.json": ("prompt_completion", 1000),
    "llamafactory/alpaca_en_demo.json": ("alpaca", 999),
    "llamafactory/c4_demo.jsonl": ("text", 300),
    "llamafactory/dpo_zh_demo.json": ("preference", 300),
    "llamafactory/glaive_toolcall_en_demo.json": ("sharegpt", 300),
    "llamafactory/identity.json": ("alpaca", 91),
    "llamafactory/kto_en_demo.json": ("messages", 300),
    "llamafactory/mllm_demo.json": ("messages", 6),
    "llamafactory/reason_tool_use_demo_50.jsonl": ("messages", 50),
    "llamafactory/v1_dpo_demo.jsonl": ("preference", 10),
    "llamafactory/v1_sft_demo.jsonl": ("messages", 500),
}


def load(name: str) -> list[dict[str, Any]]:
    text = (SFT / name).read_text(encoding="utf-8")
    if name.endswith(".json"):
        return list(json.loads(text))
    return [json.loads(line) for line in text.split("\n") if line.strip()]


@pytest.mark.parametrize("name", FILES)
def test_every_sft_file_is_read_or_refused(name: str) -> None:
    job = make_job(path=str(SFT / name), stage="posttraining")
    expected = FILES[name]
    if expected is None:
        with pytest.raises(CorpusError, match="set `text: FIELD`, `messages: FIELD`"):
            read_all(job)
        return
    read = read_all(job)
    assert (read.source.shape, read.total("documents"), read.total("bad_records")) == (*expected, 0)
    assert read.total("without_target") == 0 or expected[0] == "text"


def test_chatterbot_by_a_plain_loop() -> None:
    read = read_all(
        make_job(path=str(SFT / "chatterbot/chatterbot.jsonl"), stage="posttraining", language_field="lang")
    )
    records = load("chatterbot/chatterbot.jsonl")
    assert [[p.decode() for p in pieces] for _, pieces, _ in read.documents] == [
        [m["content"] for m in r["messages"] if m["content"]] for r in records
    ]
    assert [targets for _, _, targets in read.documents] == [
        [m["content"] for m in r["messages"] if m["content"] and m["role"] == "assistant"] for r in records
    ]
    languages = Counter(key.language for key, _, _ in read.documents)
    assert len(languages) == 28
    assert (languages["zh-Hant"], languages["hi-Latn"], languages[""]) == (456, 31, 0)


def test_tool_calls_by_a_plain_loop() -> None:
    read = read_all(
        make_job(path=str(SFT / "llamafactory/glaive_toolcall_zh_demo.json"), stage="posttraining")
    )
    for record, (_, pieces, targets) in zip(
        load("llamafactory/glaive_toolcall_zh_demo.json"), read.documents, strict=True
    ):
        turns = record["conversations"]
        assert [p.decode() for p in pieces] == [t["value"] for t in turns]
        assert targets == [t["value"] for t in turns if t["from"] in ("gpt", "function_call")]


def test_csv_by_the_job_s_key() -> None:
    import csv

    path = SFT / "language_confusion/command-r.csv"
    read = read_all(
        make_job(path=str(path), text="completion", language_field="language", stage="posttraining")
    )
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert read.texts == [r["completion"] for r in rows]
    assert [k.language for k, _, _ in read.documents] == [r["language"] for r in rows]


@pytest.mark.parametrize("name", ["multi", "html"])
def test_corpora_by_a_plain_loop(name: str) -> None:
    read = read_all(make_job(path=str(SHARED / f"corpora/{name}/*.zst"), language_field="lang"))
    expected = []
    for path in sorted((SHARED / "corpora" / name).iterdir()):
        with zstandard.open(path, "rb") as file:
            data = io.BytesIO(file.read())
        expected += [json.loads(line) for line in data]
    assert read.texts == [r["text"] for r in expected]
    assert read.total("bad_records") == 0
    for (key, _, _), record in zip(read.documents, expected, strict=True):
        assert key.language == normalise_language(record["lang"])
        assert key.group == (record["lang"] if name == "html" or not key.language else "")
