from __future__ import annotations

import json
from pathlib import Path

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
from coverage_job.remedies.cover import Documents, cover, offer, tally
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


def test_cover_finishes_some_tokens_rather_than_all_by_half():
    # Ten documents each hold half of what ten tokens need; ten others all that one of them needs.
    held = [dict.fromkeys(range(10), 1) for _ in range(10)] + [{t: 10} for t in range(10)]
    taken, brought = cover(_documents(held, [20] * 10 + [10] * 10), np.full(10, 10), 50)
    assert len(taken) == 5
    assert min(taken) >= 10
    assert brought.sum() == 50


HELD = st.lists(st.dictionaries(st.integers(0, 9), st.integers(1, 6), max_size=5), min_size=1, max_size=12)


def _sum(dicts):
    got = np.zeros(10, np.int64)
    for held in dicts:
        for token, n in held.items():
            got[token] += n
    return got


@settings(max_examples=200, deadline=None)
@given(HELD, st.lists(st.integers(0, 12), min_size=10, max_size=10), st.integers(0, 60))
def test_cover_keeps_the_budget_and_counts_what_it_brings(held, need, budget):
    cost = [1 + sum(d.values()) for d in held]
    documents = _documents(held, cost)
    taken, brought = cover(documents, np.array(need), budget)
    assert len(set(taken.tolist())) == len(taken)
    assert sum(cost[i] for i in taken) <= budget
    useful = np.zeros(10, np.int64)
    np.add.at(useful, documents.ids, brought)
    assert useful.tolist() == np.minimum(_sum(held[i] for i in taken), need).tolist()
    # Each document that is taken contributes; none that is not.
    for i in range(len(held)):
        assert brought[documents.borders[i] : documents.borders[i + 1]].any() == (i in taken)
    # With room for all, nothing that any document could still bring is left lying.
    if budget >= sum(cost):
        assert useful.tolist() == np.minimum(_sum(held), need).tolist()
    offered = offer(documents, np.array(need), budget)
    assert len(set(offered.tolist())) == len(offered)
    assert sum(cost[i] for i in offered) <= budget


def test_cover_brings_more_than_the_cheapest_half_measures():
    """Against a plain greedy by marginal need, on documents of many tokens with a long tail."""
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, 401)
    draws = [rng.choice(400, 30, p=share / share.sum()) for _ in range(3000)]
    documents = _documents(
        [dict(zip(*np.unique(d, return_counts=True), strict=True)) for d in draws], [30] * 3000
    )
    need = np.full(400, 10)

    def reached(taken):
        have = np.bincount(np.concatenate([draws[i] for i in taken]), minlength=400)
        return int((have >= need).sum())

    ours, plain = reached(cover(documents, need, 4000)[0]), reached(offer(documents, need, 4000))
    assert ours > 1.1 * plain
    assert plain > reached(rng.permutation(3000)[: 4000 // 30])


@given(
    st.lists(
        st.sampled_from(["a", "b c", ". ", "\n", "\u3002", "\u0628\u061f", "\U0001f600", "3.1"]), max_size=40
    ),
    st.integers(0, 20),
)
def test_passages_are_the_text_cut_at_its_ends(parts, size):
    text = "".join(parts).encode()
    found = list(mix.passages(text, size))
    assert b"".join(text[a:b] for a, b in found) == text
    ends = {0, len(text), *(m.end() for m in mix._ENDS.finditer(text))}
    for a, b in found:
        assert a < b
        assert {a, b} <= ends
        text[a:b].decode()
        # Longer only where nothing ends inside.
        assert b - a <= size or size == 0 or not any(a < e < b for e in ends)
    # No two neighbours would have fitted into one.
    assert all(found[i + 1][1] - found[i][0] > size for i in range(len(found) - 1))


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
    return tmp_path, splits, coverage, count, tokenizer, job.corpora[0]


def _mix(made, **options):
    _, splits, coverage, count, *_ = made
    spec = mix.MixSpec(
        count, mix.needs(coverage, count.rows), mix.MixOptions(**{"passage_bytes": 0, **options}), 0
    )
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
        text = json.loads(line)["text"].encode()
        assert text[row["passage_start"] : row["passage_end"]].decode() == row["text"]
        assert row["passage_end"] - row["passage_start"] == len(text)
        ids = tokenizer.encode(row["text"]).ids
        assert len(ids) == row["tokens"]
        assert row["contributes"]
        assert all(ids.count(c["token_id"]) >= c["count"] > 0 for c in row["contributes"])


def test_the_proof_is_counted_over_the_file(made, tmp_path):
    table = _mix(made, budget_tokens=3000, min_tokens=1)
    out = str(tmp_path / "out")
    mix_files.write(out, table)
    _, _, coverage, _, tokenizer, _ = made
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


def test_passages_of_long_documents_at_their_places(made):
    tokenizer = made[4]
    folder = made[0]
    names = sorted(folder.glob("part-*.jsonl"))
    for name in names:
        texts = [json.loads(x)["text"] for x in name.read_text("utf-8").split("\n") if x.startswith('{"')]
        long = [". ".join(texts[i : i + 5]) + ".\n" for i in range(0, len(texts), 5)]
        name.write_text("".join(json.dumps({"text": t, "lang": "en"}) + "\n" for t in long), "utf-8")
    files = list_files(made[5])
    splits = make_splits("web", files, made[3].corpora["web"].source, 4000)
    table = _mix((folder, splits, *made[2:]), budget_tokens=1500, min_tokens=1, passage_bytes=200)
    assert sum(table["tokens"].to_pylist()) <= 1500
    parts = 0
    places = set()
    for row in table.to_pylist():
        line = Path(row["file"]).read_bytes().split(b"\n")[row["position"] - 1]
        text = json.loads(line)["text"].encode()
        assert text[row["passage_start"] : row["passage_end"]].decode() == row["text"]
        ids = tokenizer.encode(row["text"]).ids
        assert len(ids) == row["tokens"]
        assert row["contributes"]
        assert all(ids.count(c["token_id"]) >= c["count"] > 0 for c in row["contributes"])
        parts += len(row["text"].encode()) < len(text)
        places.add((row["file"], row["position"], row["passage_start"]))
    assert parts > 5
    assert len(places) == len(table)
    whole = _mix((folder, splits, *made[2:]), budget_tokens=1500, min_tokens=1, passage_bytes=0)
    assert set(whole["passage_start"].to_pylist()) == {0}


def test_the_same_whatever_the_engine_and_the_order_of_splits(made):
    _, splits, coverage, count, *_ = made
    spec = mix.MixSpec(count, mix.needs(coverage, count.rows), mix.MixOptions(2000, min_tokens=1), 0)
    one = mix_files.collect(LocalEngine(1), spec, splits, lambda *_: lambda: None)
    two = mix_files.collect(LocalEngine(2), spec, splits[::-1], lambda *_: lambda: None)
    assert one.equals(two)


def test_a_task_keeps_no_more_than_it_may(made, monkeypatch):
    monkeypatch.setattr(mix, "_MOST_ENTRIES", 500)
    _, _, coverage, count, *_ = made
    need = mix.needs(coverage, count.rows)
    pool = mix._Pool(need.astype(np.int64), 100)
    rng = np.random.default_rng(0)
    for n in range(200):
        ids = np.unique(rng.choice(np.flatnonzero(need), 20)).astype(np.int32)
        pool.add(("f", 0, n, 20, n, 0, 80), ids, np.ones(len(ids), np.int32))
        assert pool._entries <= 520
    pool.reduce()
    assert sum(row[3] for row in pool.rows) <= 100


def test_what_a_cut_file_gave_is_forgotten_and_of_one_text_the_first_is_kept():
    pool = mix._Pool(np.array([5, 5]), 1000)
    ids, counts = np.array([0], np.int32), np.array([1], np.int32)
    for file, position, digest in [("a", 1, 7), ("b", 1, 8), ("a", 2, 9), ("b", 2, 7)]:
        pool.add((file, 0, position, 20, digest, 0, 80), ids, counts)
    pool.reduce()
    assert [(row[0], row[2]) for row in pool.rows] == [("a", 1), ("b", 1), ("a", 2)]
    pool.drop("a")
    assert [(row[0], row[2]) for row in pool.rows] == [("b", 1)]


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
