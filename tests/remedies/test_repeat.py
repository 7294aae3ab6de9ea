from __future__ import annotations

import json
import random

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from coverage_job.errors import RemedyError, StorageError
from coverage_job.remedies import repeat, repeat_files
from coverage_job.remedies.chains import link
from coverage_job.remedies.units import Unit, find_units
from coverage_job.tokenizer.load import describe, load
from tests.conftest import SHARED, needs_shared
from tests.remedies.helpers import ChatML, build, counter, fabricate, tiny_tokenizer

FAMILIES = ["bytes", "sentencepiece", "wordpiece", "unigram"]


@pytest.mark.parametrize("render", [None, ChatML()], ids=["none", "template"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_reachable_token_gets_its_number(family, render, tmp_path):
    tokenizer = tiny_tokenizer(family)
    coverage = fabricate(tokenizer, family)
    asked = repeat.needs(coverage, "flagged", 20)
    assert len(asked) > 300
    result = build(coverage, asked, tokenizer, render)
    repeat_files.write(str(tmp_path), result.dialogues)
    summary = repeat_files.prove(
        str(tmp_path),
        coverage,
        result,
        measure="supervised_occurrences",
        counter=counter(tokenizer, render),
    )
    assert summary.impossible == {}
    assert summary.reached == len(asked)
    table = pl.read_parquet(tmp_path / "repeat_proof.parquet")
    assert table["token_id"].to_list() == sorted(asked)
    assert (table["counted"] >= table["promised"]).all()
    assert summary.supervised <= 1.25 * summary.promised
    assert summary.longest <= 4096


def test_the_proof_counts_what_a_plain_loop_counts(tmp_path):
    tokenizer = tiny_tokenizer("bytes")
    coverage = fabricate(tokenizer, "bytes")
    result = build(coverage, repeat.needs(coverage, "flagged", 20), tokenizer)
    repeat_files.write(str(tmp_path), result.dialogues)
    repeat_files.prove(
        str(tmp_path),
        coverage,
        result,
        measure="supervised_occurrences",
        counter=counter(tokenizer),
    )
    expected = np.zeros(len(coverage), np.int64)
    for line in (tmp_path / "repeat.jsonl").read_text("utf-8").split("\n")[:-1]:
        for message in json.loads(line)["messages"]:
            if message["role"] == "assistant":
                for token_id in tokenizer.encode(message["content"], add_special_tokens=False).ids:
                    expected[token_id] += 1
    table = pl.read_parquet(tmp_path / "repeat_proof.parquet")
    assert table["counted"].to_list() == expected[table["token_id"].to_numpy()].tolist()


def test_user_and_assistant_hold_the_same_text_and_rounds_differ():
    tokenizer = tiny_tokenizer("bytes")
    coverage = fabricate(tokenizer, "bytes")
    result = build(coverage, repeat.needs(coverage, "flagged", 20), tokenizer, tokens_per_dialogue=32)
    answers = [d[1]["content"] for d in result.dialogues if "<tool>" not in d[1]["content"]]
    assert len(set(answers)) == len(answers)
    assert all(d[1]["content"] in d[0]["content"] for d in result.dialogues)
    assert {tuple(m["role"] for m in d) for d in result.dialogues} == {("user", "assistant")}
    # Chinese tokens are asked for in Chinese.
    texts = {
        t for lines in (repeat.instructions()["zh"],) for line in lines for t in line.split("{text}") if t
    }
    assert any(d[0]["content"].startswith(tuple(texts)) for d in result.dialogues)


def test_same_seed_same_bytes_other_seed_others(tmp_path):
    tokenizer = tiny_tokenizer("bytes")
    coverage = fabricate(tokenizer, "bytes")
    asked = repeat.needs(coverage, "flagged", 20)
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        made = build(coverage, asked, tokenizer, seed=seed)
        repeat_files.write(str(tmp_path / name), made.dialogues)
    for file in ("repeat.jsonl", "repeat.parquet"):
        a, b, c = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert a == b
        assert a != c


def test_no_dialogue_is_longer_than_the_limit():
    tokenizer = tiny_tokenizer("bytes")
    coverage = fabricate(tokenizer, "bytes")
    asked = repeat.needs(coverage, "flagged", 20)
    result = build(coverage, asked, tokenizer, ChatML(), max_length=256)
    assert result.missing == []
    assert result.counts.tokens.max() <= 256
    with pytest.raises(RemedyError, match="max_length 40"):
        build(coverage, asked, tokenizer, ChatML(), max_length=40)


def test_documents_are_promised_where_the_job_measures_documents():
    tokenizer = tiny_tokenizer("bytes")
    coverage = fabricate(tokenizer, "bytes")
    asked = repeat.needs(coverage, "flagged", 20)
    result = build(coverage, asked, tokenizer, ChatML(), measure="supervised_documents")
    assert result.missing == []
    assert min(result.counts.documents[list(asked)]) >= 5


def test_text_of_special_tokens_is_never_spelled():
    tokenizer = tiny_tokenizer("bytes")
    pieces = ["<|", "start", "|>", "end", "<tool", ">"]
    tokenizer = _with_tokens(tokenizer, pieces)
    coverage = fabricate(tokenizer, "bytes")
    direct = coverage.filter(pl.col("reachability") == "direct")["token_id"].to_list()
    wanted = {v: 40 for v in map(tokenizer.token_to_id, pieces) if v in direct}
    assert len(wanted) >= 4
    result = build(coverage, wanted, tokenizer, ChatML(), tokens_per_dialogue=6)
    assert result.missing == []
    for dialogue in result.dialogues:
        for message in dialogue:
            assert "<|start|>" not in message["content"]
            assert "<|end|>" not in message["content"]
            assert "<tool>" not in message["content"]


def _with_tokens(tokenizer: Tokenizer, tokens: list[str]) -> Tokenizer:
    """The tokenizer with entries (and the merges to them) that the training text did not give."""
    data = json.loads(tokenizer.to_str())
    vocab, merges = data["model"]["vocab"], data["model"]["merges"]
    fresh = max(vocab.values()) + 1
    for token in tokens:
        for end in range(2, len(token) + 1):
            if token[:end] not in vocab:
                vocab[token[:end]] = fresh
                fresh += 1
                merges.append([token[: end - 1], token[end - 1]])
    data["added_tokens"][-1]["id"] = fresh
    return Tokenizer.from_str(json.dumps(data))


def test_added_tokens_that_a_template_parses_harm_no_others():
    tokenizer = tiny_tokenizer("bytes")
    coverage = fabricate(tokenizer, "bytes")
    asked = repeat.needs(coverage, "flagged", 20)
    tool = tokenizer.token_to_id("<tool>")

    class Parses(ChatML):
        # Cuts what stands before the tool's mark, and the mark.
        def render(self, dialogue):
            for message in dialogue.messages:
                message["content"] = message["content"].split("<tool>")[-1]
            return super().render(dialogue)

    result = build(coverage, asked, tokenizer, Parses())
    assert [m.token_id for m in result.missing] == [tool]
    assert result.missing[0].reason == "lost in every context tried"


def test_special_tokens_are_listed_with_their_reason_or_given_by_the_template():
    tokenizer = tiny_tokenizer("bytes")
    coverage = fabricate(tokenizer, "bytes")
    end, start = (tokenizer.token_to_id(t) for t in ("<|end|>", "<|start|>"))
    others = dict.fromkeys(
        coverage.filter(pl.col("reachability") == "direct")["token_id"].head(30).to_list(), 3
    )
    wanted = {**others, end: 3, start: 3}
    result = build(coverage, wanted, tokenizer, ChatML(), tokens_per_dialogue=4)
    # Each dialogue ends in a supervised <|end|>; nothing supervises <|start|>.
    assert [(m.token_id, m.reason) for m in result.missing] == [
        (start, "special: only the chat template writes it")
    ]


def test_units_hold_behind_their_left():
    tokenizer = tiny_tokenizer("wordpiece")
    coverage = fabricate(tokenizer, "wordpiece").filter(
        pl.col("reachability").is_in(["direct", "contextual"])
    )
    units, missing = find_units(coverage, tokenizer)
    assert missing == []
    assert any(unit.left for unit in units)
    for unit in units:
        ids = tokenizer.encode(unit.left + unit.text, add_special_tokens=False).ids
        assert tuple(ids[len(ids) - len(unit.ids) :]) == unit.ids
        assert unit.token_id in unit.ids


def test_link_keeps_every_unit_once_and_its_ids():
    tokenizer = tiny_tokenizer("bytes")
    coverage = fabricate(tokenizer, "bytes").filter(pl.col("reachability") == "direct")
    units, _ = find_units(coverage, tokenizer)
    chains = link(units, tokenizer, random.Random(0))
    assert sorted(u.token_id for c in chains for u in c.units) == [u.token_id for u in units]
    kept = lost = 0
    for chain in chains:
        ids = tokenizer.encode(chain.text(), add_special_tokens=False).ids
        if all(not separator for separator in chain.separators):
            assert ids == [i for unit in chain.units for i in unit.ids]
        kept += sum(unit.token_id in ids for unit in chain.units)
        lost += sum(unit.token_id not in ids for unit in chain.units)
    assert lost <= 0.01 * kept


def test_needs_follow_the_manifest():
    coverage = pl.DataFrame(
        {
            "token_id": [0, 1, 2, 3, 4],
            "action": ["none", "repeat_and_mix", "mix", "protect", "exempt"],
            "deficit": [0, 4, 5, 6, 0],
            "reachability": ["direct", "contextual", "direct", "direct", "unreachable"],
        }
    )
    assert repeat.needs(coverage, "flagged", 20) == {1: 4}
    assert repeat.needs(coverage, "vocabulary", 20) == {0: 20, 1: 20, 2: 20}
    with pytest.raises(RemedyError, match="--scope all"):
        repeat.needs(coverage, "all", 20)


def test_rows_by_ids_reach_what_no_text_reaches(tmp_path):
    tokenizer = tiny_tokenizer("bytes")
    coverage = fabricate(tokenizer, "bytes")
    start = tokenizer.token_to_id("<|start|>")
    asked = {300: 2, start: 3}
    result = build(coverage, asked, tokenizer, ChatML())
    rows = repeat_files.id_rows({start: 3}, tokenizer, counter(tokenizer, ChatML()))
    repeat_files.write(str(tmp_path), result.dialogues, rows)
    summary = repeat_files.prove(
        str(tmp_path),
        coverage,
        result,
        measure="supervised_occurrences",
        counter=counter(tokenizer, ChatML()),
        by_ids=True,
    )
    assert (summary.reached, summary.by_ids, summary.impossible) == (1, 1, {})
    table = pq.read_table(tmp_path / "repeat_ids.parquet").to_pylist()
    assert len(table) == 3
    for row in table:
        assert len(row["input_ids"]) == len(row["labels"])
        targets = [
            (i, label) for i, label in zip(row["input_ids"], row["labels"], strict=True) if label != -100
        ]
        assert targets == [(start, start)]
    proved = pl.read_parquet(tmp_path / "repeat_proof.parquet").rows_by_key("token_id", named=True)
    assert proved[start][0]["how"] == "ids"
    assert proved[300][0]["how"] == "text"


def test_a_set_that_was_changed_is_not_proved(tmp_path):
    tokenizer = tiny_tokenizer("bytes")
    coverage = fabricate(tokenizer, "bytes")
    result = build(coverage, {300: 2, 301: 2}, tokenizer)
    repeat_files.write(str(tmp_path), result.dialogues)
    lines = (tmp_path / "repeat.jsonl").read_bytes().split(b"\n")
    (tmp_path / "repeat.jsonl").write_bytes(b"\n".join(lines[1:]))
    arguments = {"measure": "supervised_occurrences", "counter": counter(tokenizer)}
    with pytest.raises(StorageError, match="differ"):
        repeat_files.prove(str(tmp_path), coverage, result, **arguments)
    (tmp_path / "repeat.jsonl").write_bytes(b"{\n")
    with pytest.raises(StorageError, match=r"repeat\.jsonl:1"):
        repeat_files.prove(str(tmp_path), coverage, result, **arguments)


@needs_shared
def test_a_real_vocabulary_keeps_the_promise():
    tokenizer = load(describe(str(SHARED / "tokenizers" / "gpt2")))
    names = [tokenizer.id_to_token(i) for i in range(0, tokenizer.get_vocab_size(), 40)]
    texts = tokenizer.decode_batch([[tokenizer.token_to_id(n)] for n in names])
    rows = [
        (tokenizer.token_to_id(n), n, t.encode(), "base", "direct", None, "en")
        for n, t in zip(names, texts, strict=True)
        if tokenizer.encode(t, add_special_tokens=False).ids == [tokenizer.token_to_id(n)]
    ]
    columns = ["token_id", "token", "token_bytes", "kind", "reachability", "example", "language"]
    coverage = pl.DataFrame(rows, schema=columns, orient="row", infer_schema_length=None)
    asked = dict.fromkeys(coverage["token_id"].to_list(), 3)
    result = build(coverage, asked, tokenizer)
    assert len(asked) > 1000
    assert result.missing == []
    assert result.counts.supervised <= 1.05 * sum(asked.values())


def test_units_are_hashable_values():
    assert Unit(1, "a", (1,), "") == Unit(1, "a", (1,), "")


def test_building_tells_how_many_targets_are_there():
    tokenizer = tiny_tokenizer("bytes")
    told: list[int] = []
    coverage = fabricate(tokenizer, "bytes")
    asked = dict.fromkeys([300, 301, 302], 4)
    made = repeat.build(coverage, asked, tokenizer, counter(tokenizer), reached=told.append)
    assert len(told) >= 4
    assert told == sorted(told)
    assert told[-1] == sum(min(4, int(made.counts.occurrences[i])) for i in asked) > 0
