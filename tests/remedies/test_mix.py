from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coverage_job.config import parse_job
from coverage_job.corpus.plan import list_files, make_splits
from coverage_job.corpus.source import resolve
from coverage_job.counting.reference import ReferenceKernel
from coverage_job.counting.task import CorpusSpec, CountSpec
from coverage_job.engines.local import LocalEngine
from coverage_job.errors import RemedyError
from coverage_job.remedies import mix, mix_files
from coverage_job.remedies.cover import Documents, cover, tally
from coverage_job.tokenizer.load import describe, load
from tests.remedies.helpers import corpus, fabricate, tiny

WORDS = sorted({w for text in corpus() for w in text.split()})


def _documents(held, cost):
    ids = [np.array(sorted(d), np.int32) for d in held]
    counts = [np.array([d[i] for i in sorted(d)], np.int32) for d in held]
    return Documents.of(cost, ids, counts)


def test_cover_takes_what_finishes_a_token():
    held = [{0: 5}, {0: 1, 1: 1}, {2: 1}, {1: 2}]
    taken, brought = cover(_documents(held, [10, 10, 10, 10]), np.array([5, 2, 0]), 20)
    # Document 2 holds nothing that is short.
    assert sorted(taken.tolist()) == [0, 3]
    assert brought.tolist() == [5, 0, 0, 0, 2]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.dictionaries(st.integers(0, 9), st.integers(1, 6), max_size=5), min_size=1, max_size=12),
    st.lists(st.integers(0, 12), min_size=10, max_size=10),
    st.integers(0, 60),
)
def test_cover_keeps_the_budget_and_counts_what_it_brings(held, need, budget):
    cost = [1 + sum(d.values()) for d in held]
    documents = _documents(held, cost)
    taken, brought = cover(documents, np.array(need), budget)
    assert len(set(taken.tolist())) == len(taken)
    assert sum(cost[i] for i in taken) <= budget
    got = np.zeros(10, np.int64)
    for i in taken:
        for token, n in held[i].items():
            got[token] += n
    useful = np.zeros(10, np.int64)
    np.add.at(useful, documents.ids, brought)
    assert useful.tolist() == np.minimum(got, need).tolist()
    # With room for all, nothing that any document could still bring is left lying.
    if budget >= sum(cost):
        everything = np.zeros(10, np.int64)
        for d in held:
            for token, n in d.items():
                everything[token] += n
        assert useful.tolist() == np.minimum(everything, need).tolist()


@given(st.lists(st.lists(st.integers(0, 7), max_size=9), max_size=6))
def test_tally_counts_as_a_plain_loop(documents):
    ids = np.array([i for d in documents for i in d], np.int32)
    borders = np.concatenate([[0], np.cumsum([len(d) for d in documents], dtype=np.int64)]).astype(np.int64)
    wanted = np.arange(8) % 2 == 0
    expected = [(n, i, d.count(i)) for n, d in enumerate(documents) for i in sorted(set(d)) if i % 2 == 0]
    assert list(zip(*(a.tolist() for a in tally(ids, borders, wanted)), strict=True)) == expected


@pytest.fixture
def made(tmp_path):
    """A corpus of three files, each in pieces, and all that the passes need."""
    (tmp_path / "tokenizer.json").write_text(tiny("bytes"), encoding="utf-8")
    rng = np.random.default_rng(0)
    lines = []
    for n in range(300):
        words = rng.choice(WORDS, 12)
        record = {"text": " ".join(words), "lang": "en" if n % 3 else "deu", "score": n % 5}
        lines.append(json.dumps(record, ensure_ascii=False))
        if n % 50 == 7:
            lines += ["", "{ not json", lines[-1]]  # a blank line, a bad record, the same text again
    for number in range(3):
        part = lines[number::3]
        (tmp_path / f"part-{number}.jsonl").write_text("\n".join(part) + "\n", encoding="utf-8")
    tree = {
        "tokenizer": "tokenizer.json",
        "corpora": [
            {
                "name": "web",
                "stage": "pretraining",
                "path": "part-*.jsonl",
                "text": "text",
                "language_field": "lang",
                "max_bad_fraction": 0.5,
            }
        ],
    }
    job = parse_job(tree, base=tmp_path)
    files = list_files(job.corpora[0])
    source = resolve(job.corpora[0], job, files)
    splits = make_splits("web", files, source, 4000)
    assert len(splits) > 3
    spec = describe(str(tmp_path / "tokenizer.json"))
    tokenizer = load(spec)
    coverage = fabricate(tokenizer, "bytes")
    supply = np.zeros(spec.rows, np.int64)
    # A text that stands twice is offered once.
    for text in {json.loads(line)["text"] for line in lines if line.startswith('{"')}:
        np.add.at(supply, tokenizer.encode(text).ids, 1)
    coverage = coverage.with_columns(
        pl.when(pl.col("action") == "repeat")
        .then(pl.lit("repeat_and_mix"))
        .otherwise("action")
        .alias("action"),
        pl.Series("pretraining_occurrences", supply),
    )
    count = CountSpec(spec, spec.rows, b"", 16, 8, {"web": CorpusSpec(source)})
    return tmp_path, splits, coverage, count, tokenizer


def _mix(made, **options):
    _, splits, coverage, count, _ = made
    spec = mix.MixSpec(count, mix.needs(coverage, count.rows), mix.MixOptions(**options), 0)
    return mix_files.collect(LocalEngine(1), spec, splits, lambda *_: lambda: None)


def test_documents_are_the_corpus_own_at_their_places(made):
    table = _mix(made, budget_tokens=2000, min_tokens=1)
    assert 0 < sum(table["tokens"].to_pylist()) <= 2000
    tokenizer = made[4]
    texts = table["text"].to_pylist()
    assert len(set(texts)) == len(texts)
    for row in table.to_pylist():
        with open(row["file"], "rb") as file:
            line = file.read().split(b"\n")[row["position"] - 1]
        assert json.loads(line)["text"] == row["text"]
        ids = tokenizer.encode(row["text"]).ids
        assert len(ids) == row["tokens"]
        assert row["contributes"]
        assert all(ids.count(c["token_id"]) >= c["count"] > 0 for c in row["contributes"])


def test_the_proof_is_counted_over_the_file(made, tmp_path):
    table = _mix(made, budget_tokens=3000, min_tokens=1)
    out = str(tmp_path / "out")
    mix_files.write(out, table)
    _, _, coverage, _, tokenizer = made
    summary = mix_files.prove(out, coverage, ReferenceKernel(tokenizer), 3000)
    expected = np.zeros(len(coverage), np.int64)
    for text in table["text"].to_pylist():
        np.add.at(expected, tokenizer.encode(text).ids, 1)
    proof = pl.read_parquet(f"{out}/mix_proof.parquet")
    short = coverage.filter(pl.col("deficit") > 0, pl.col("status") != "exempt")
    assert proof["token_id"].to_list() == short["token_id"].to_list()
    assert proof["counted"].to_list() == expected[short["token_id"].to_numpy()].tolist()
    assert (proof["left"] == (proof["needed"] - proof["counted"]).clip(0)).all()
    assert summary.covered == (proof["left"] == 0).sum() > 50
    assert summary.left == {r[0]: r[4] for r in proof.iter_rows() if r[4]}
    assert summary.documents == len(table)
    written = pl.read_parquet(f"{out}/mix.parquet")
    assert written["text"].to_list() == table["text"].to_pylist()


def test_it_brings_more_to_their_number_than_random_documents(made):
    tokenizer, coverage = made[4], made[2]
    need = mix.needs(coverage, len(coverage)).astype(np.int64)

    def brought(texts):
        have = np.zeros(len(need), np.int64)
        for text in texts:
            np.add.at(have, tokenizer.encode(text).ids, 1)
        return int(((need > 0) & (have >= need)).sum())

    chosen = _mix(made, budget_tokens=1500, min_tokens=1)["text"].to_pylist()
    everything = _mix(made, budget_tokens=10**6, min_tokens=1)["text"].to_pylist()
    rng = np.random.default_rng(1)
    random_texts, tokens = [], 0
    for i in rng.permutation(len(everything)):
        tokens += len(tokenizer.encode(everything[i]).ids)
        if tokens > 1500:
            break
        random_texts.append(everything[i])
    assert brought(chosen) > 1.5 * brought(random_texts)
    # With room for all, every token that the corpus can supply arrives.
    assert brought(everything) == (need > 0).sum()


def test_filters(made):
    rows = [
        json.loads(line)
        for f in made[0].glob("*.jsonl")
        for line in f.read_text("utf-8").split("\n")
        if line.startswith('{"')
    ]
    by_text = {r["text"]: r for r in rows}
    german = _mix(made, budget_tokens=10**6, min_tokens=1, languages=("de",))["text"].to_pylist()
    assert {by_text[t]["lang"] for t in german} == {"deu"}
    good = _mix(made, budget_tokens=10**6, min_tokens=1, quality_field="score", min_quality=3)[
        "text"
    ].to_pylist()
    assert {by_text[t]["score"] for t in good} == {3, 4}
    clean = _mix(made, budget_tokens=10**6, min_tokens=1, deny=r"\bcats\b")["text"].to_pylist()
    assert clean
    assert not any("cats" in t.split() for t in clean)
    sized = _mix(made, budget_tokens=10**6, min_tokens=15, max_tokens=25)["tokens"].to_pylist()
    assert sized
    assert all(15 <= n <= 25 for n in sized)
    with pytest.raises(RemedyError, match="loosen the filters"):
        _mix(made, budget_tokens=10**6, languages=("fr",))


def test_the_same_whatever_the_engine_and_the_order_of_splits(made):
    _, splits, coverage, count, _ = made
    spec = mix.MixSpec(count, mix.needs(coverage, count.rows), mix.MixOptions(2000, min_tokens=1), 0)
    one = mix_files.collect(LocalEngine(1), spec, splits, lambda *_: lambda: None)
    two = mix_files.collect(LocalEngine(2), spec, splits[::-1], lambda *_: lambda: None)
    assert one.equals(two)


def test_a_task_keeps_no_more_than_it_may(made, monkeypatch):
    monkeypatch.setattr(mix, "_MOST_ENTRIES", 500)
    _, _, coverage, count, _ = made
    need = mix.needs(coverage, count.rows)
    pool = mix._Pool(need.astype(np.int64), 100)
    rng = np.random.default_rng(0)
    for n in range(200):
        ids = np.unique(rng.choice(np.flatnonzero(need), 20)).astype(np.int32)
        pool.add(("f", 0, n, 20, n), ids, np.ones(len(ids), np.int32))
        assert pool._entries <= 520
    pool.reduce()
    assert sum(row[3] for row in pool.rows) <= 100


def test_needs_leave_to_the_repeat_set_what_the_corpora_cannot_supply():
    coverage = pl.DataFrame(
        {
            "token_id": [0, 1, 2, 3],
            "action": ["mix", "repeat_and_mix", "repeat_and_mix", "repeat"],
            "deficit": [4, 5, 20, 20],
            "pretraining_occurrences": [10, 5, 19, 0],
        }
    )
    assert mix.needs(coverage, 5).tolist() == [4, 5, 0, 0, 0]
