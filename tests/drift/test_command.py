from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from coverage_job.drift.command import analyse, run_drift, score_checkpoints
from coverage_job.drift.compare import compare, render
from coverage_job.errors import CheckpointError, JobError, StorageError
from coverage_job.schemas import COVERAGE, DRIFT
from coverage_job.storage import RunWriter
from tests.benchmarks.planted_pair import planted_cosines, vocabulary, write_pair
from tests.checkpoint.make import matrix, pair, save_single
from tests.drift.planted import PLANTED, planted, reference, save_planted
from tests.drift.test_neighbours import brute_force


def labelled(rows: int, unused: int = 0) -> pa.Table:
    languages = ["en", "ja", "ru"] * (rows // 3 + 1)
    table = vocabulary(languages[:rows])
    kind = ["special"] * 2 + ["base"] * (rows - unused - 2) + ["unused"] * unused
    return table.set_column(table.schema.get_field_index("kind"), "kind", [kind])


def coverage(rows: int, counts: np.ndarray) -> pa.Table:
    """A whole coverage table with the given supervised counts."""
    base = labelled(rows)
    fixed: dict[pa.DataType, Any] = {
        pa.string(): "",
        pa.binary(): b"",
        pa.bool_(): True,
        pa.int64(): 0,
        pa.float64(): 0.0,
    }
    columns = {}
    for field in COVERAGE:
        if field.name in base.column_names:
            columns[field.name] = base[field.name]
        elif field.name.startswith(("lm_head", "embedding")):
            columns[field.name] = pa.nulls(rows, pa.float64())
        else:
            columns[field.name] = pa.array([fixed[field.type]] * rows, field.type)
    columns["posttraining_supervised_occurrences"] = pa.array(counts, pa.int64())
    columns["status"] = pa.array(["covered" if c >= 20 else "absent" for c in counts])
    return pa.table(columns, schema=COVERAGE)


def write_run(folder: Path, table: pa.Table) -> str:
    writer = RunWriter.create("", str(folder))
    writer.write_table("coverage.parquet", table)
    writer.finish({})
    return str(folder)


def test_two_checkpoints_give_a_drift_directory(tmp_path: Path) -> None:
    before, after = save_planted(tmp_path, 300, 64, torch.bfloat16)
    result = run_drift(str(before), str(after), str(tmp_path / "out"), vocabulary=labelled(300), k=5)
    table = pq.read_table(tmp_path / "out" / "drift.parquet")
    assert table.schema.equals(DRIFT)
    assert table["token_id"].to_pylist() == list(range(300))
    head = planted(300, 64, torch.bfloat16, 0)
    for name, expected in reference(*head).items():
        got = table[f"lm_head_{name}"].to_pylist()
        assert [value is None for value in got] == np.isnan(expected).tolist()
        np.testing.assert_allclose(np.array(got, dtype=float), expected, atol=1e-5, rtol=1e-5)
    assert table["lm_head_rank"].to_pylist()[4] == 1
    drifted = np.array(
        [i for i, c in enumerate(table["lm_head_cosine"].to_pylist()) if c is not None and c < 0.95]
    )
    for side, tensor in zip(("before", "after"), head, strict=True):
        expected = brute_force(tensor, drifted, 5)
        got = table[f"lm_head_neighbours_{side}"].to_pylist()
        assert [got[i] for i in drifted] == expected.tolist()
        assert sum(value is not None for value in got) == len(drifted)
    report = json.loads((tmp_path / "out" / "drift.json").read_text())
    assert report["lm_head"]["overall"]["tokens"] == 296
    assert report["lm_head"]["overall"]["min"] == pytest.approx(PLANTED[4], abs=1e-4)
    assert report["lm_head"]["not_scored"]["nan_before"] == {"count": 1, "first": [12]}
    assert report["lm_head"]["overall"]["under_0.95"]["count"] == len(drifted)
    assert set(report["lm_head"]["by"]) == {"language", "category", "kind"}
    assert set(report["diagnosis"]["groups"]) == {"drifted", "others"}
    assert report["neighbours"]["lm_head"]["gained"] > 0
    assert report["tied"] is None
    assert report["cosine_note"] in render(result.report)
    assert "not averaged: 12" in render(result.report)
    with pytest.raises(StorageError, match="exists already"):
        run_drift(str(before), str(after), str(tmp_path / "out"), vocabulary=labelled(300))


def test_with_a_run_drift_is_joined_and_explained(tmp_path: Path) -> None:
    rows = 400
    counts = np.random.default_rng(0).integers(0, 60, rows)
    before = matrix(rows, 48, 1)
    push = 0.5 * matrix(1, 48, 2)
    after = before + torch.where(torch.from_numpy(counts == 0)[:, None], push, 0.02 * matrix(rows, 48, 3))
    base = save_single(tmp_path / "b", pair(before, before.clone()))
    tuned = save_single(tmp_path / "a", pair(after, before.clone()))
    state = {"log_history": [{"step": 100, "learning_rate": 1e-3}]}
    (tuned / "trainer_state.json").write_text(json.dumps(state))
    original = coverage(rows, counts)
    run = write_run(tmp_path / "run", original)
    files = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    result = run_drift(str(base), str(tuned), str(tmp_path / "out"), run_directory=run)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == files
    filled = pq.read_table(tmp_path / "out" / "coverage.parquet")
    assert filled.schema.equals(COVERAGE)
    scores = result.table
    for name in ("lm_head_cosine", "lm_head_l2", "embedding_cosine", "embedding_l2"):
        assert filled[name].to_pylist() == scores[name].to_pylist()
        assert filled[name].null_count == 0
    others = [c for c in COVERAGE.names if not c.startswith(("lm_head", "embedding"))]
    assert filled.select(others).equals(original.select(others))
    explanation = result.report["explain"]
    assert explanation["buckets"][0]["tokens"] == int((counts == 0).sum())
    assert explanation["buckets"][0]["under"] > 0.9
    assert explanation["buckets"][3]["under"] == 0
    assert explanation["calibrated_minimum"]["minimum"] == 1
    diagnosis = result.report["diagnosis"]
    assert diagnosis["uncovered"]["pairwise_cosine"] > 0.99
    assert diagnosis["covered"]["pairwise_cosine"] < 0.1
    assert diagnosis["sum_of_learning_rates"] == pytest.approx(0.1)
    assert diagnosis["uncovered"]["steps_over_rms"] == pytest.approx(0.1, rel=0.1)
    assert set(result.report["lm_head"]["by"]["status"]) == {"covered", "absent"}
    assert (scores["embedding_cosine"].to_numpy() == 1).all()
    text = render(result.report)
    assert "uncovered (no supervised occurrence)" in text
    assert "smallest count with under 1.0 % of rows < 0.95: 1" in text


def test_tied_matrices_are_scored_once_and_carry_both(tmp_path: Path) -> None:
    before, after = planted(120, 32)
    for name, tensor in (("b", before), ("a", after)):
        save_single(tmp_path / name, {"model.embed_tokens.weight": tensor}, tie_word_embeddings=True)
    result = run_drift(
        str(tmp_path / "b"), str(tmp_path / "a"), str(tmp_path / "o"), vocabulary=labelled(120, 20)
    )
    assert result.report["tied"] == "tie_word_embeddings in config.json"
    for name in ("cosine", "l2", "rank", "neighbours_after", "neighbour_overlap"):
        assert result.table[f"lm_head_{name}"].equals(result.table[f"embedding_{name}"])
        assert result.table[f"lm_head_{name}"].null_count < 120
    size = 120 * 32 * 4
    scored = score_checkpoints(str(tmp_path / "b"), str(tmp_path / "a"))
    assert scored.after.bytes_read < 1.2 * size
    assert any("scored once" in note for note in scored.notes)


def test_one_checkpoint_alone(tmp_path: Path) -> None:
    rows = 500
    embedding = matrix(rows, 32, 1)
    embedding[[40, 41]] *= 0.01
    after = save_single(tmp_path / "a", pair(matrix(rows, 32, 2), embedding))
    result = run_drift(None, str(after), str(tmp_path / "o"), vocabulary=labelled(rows, 10), k=3)
    assert result.table["lm_head_cosine"].null_count == rows
    assert result.table["lm_head_norm_after"].null_count == 0
    assert result.table["unused_cosine_without_first"].null_count == 0
    chosen = np.flatnonzero(result.table["under_trained"].to_numpy())
    assert len(chosen) == 10
    assert {40, 41} <= set(chosen)
    found = result.table["lm_head_neighbours_after"].to_pylist()
    assert [i for i, value in enumerate(found) if value is not None] == chosen.tolist()
    assert result.report["lm_head"]["overall"]["mean"] is None
    render(result.report)


def test_a_vocabulary_that_is_shorter_or_longer_than_the_matrix(tmp_path: Path) -> None:
    before, after = save_planted(tmp_path, 120, 32, torch.float32)
    result = run_drift(
        str(before), str(after), str(tmp_path / "o"), vocabulary=labelled(100), neighbours="all"
    )
    assert result.table.num_rows == 120
    assert any("ends at 100" in note for note in result.report["notes"])
    assert result.report["lm_head"]["by"]["kind"]["unused"]["tokens"] == 20
    assert result.table["lm_head_neighbours_after"].null_count == 0
    with pytest.raises(CheckpointError, match=r"has 120 rows, but the vocabulary has a token 120 \('t120'\)"):
        run_drift(str(before), str(after), str(tmp_path / "p"), vocabulary=labelled(200))
    padded = run_drift(
        str(before), str(after), str(tmp_path / "q"), vocabulary=labelled(128, 8), neighbours="none"
    )
    assert padded.table.num_rows == 120
    assert padded.table["lm_head_neighbours_after"].null_count == 120
    with pytest.raises(JobError, match="--tokenizer or --run"):
        run_drift(str(before), str(after), str(tmp_path / "r"))
    with pytest.raises(JobError, match="--neighbours some"):
        run_drift(str(before), str(after), str(tmp_path / "s"), vocabulary=labelled(120), neighbours="some")


def test_a_resized_vocabulary_and_rows_matched_by_token(tmp_path: Path) -> None:
    before, after = planted(120, 32)
    old = save_single(tmp_path / "b", {"lm_head.weight": before})
    new = save_single(tmp_path / "a", {"lm_head.weight": after[:100].clone()})
    result = run_drift(str(old), str(new), str(tmp_path / "o"), vocabulary=labelled(100))
    assert any("120 rows before and 100 after; the first 100" in note for note in result.report["notes"])
    assert result.table["embedding_cosine"].null_count == 100
    same = save_single(tmp_path / "t", {"lm_head.weight": after})
    row_map = np.random.default_rng(3).permutation(120)
    inverse = np.argsort(row_map)
    shuffled = save_single(tmp_path / "u", {"lm_head.weight": before[inverse].clone()})
    straight = run_drift(str(old), str(same), str(tmp_path / "p"), vocabulary=labelled(120))
    mapped = run_drift(
        str(shuffled), str(same), str(tmp_path / "q"), vocabulary=labelled(120), row_map=row_map
    )
    for name in ("lm_head_cosine", "lm_head_l2", "lm_head_neighbours_after", "lm_head_neighbours_before"):
        left, right = mapped.table[name].to_pylist(), straight.table[name].to_pylist()
        if name == "lm_head_neighbours_before":
            # Equal rows stand in the order of the base's ids.
            left, right = ([v and sorted(v) for v in side] for side in (left, right))
        assert left == right


def test_the_published_table(tmp_path: Path) -> None:
    rows = 20_006
    before, after = write_pair(tmp_path, rows, 128)
    cosine, languages = planted_cosines(rows)
    scored = score_checkpoints(str(before), str(after))
    result = analyse(scored, vocabulary(languages), neighbours="none")
    result.write(str(tmp_path / "experiment"))
    overall = result.report["lm_head"]["overall"]
    assert round(overall["mean"], 4) == 0.9837
    assert overall["min"] == pytest.approx(0.329, abs=1e-3)
    assert overall["under_0.95"]["count"] == (cosine < 0.95).sum()
    assert round(100 * overall["under_0.95"]["share"], 1) == 4.9
    assert round(100 * overall["under_0.90"]["share"], 1) == 2.1
    shares = {
        k: round(100 * v["under_0.95"]["share"], 1)
        for k, v in result.report["lm_head"]["by"]["language"].items()
    }
    assert {k: shares[k] for k in ("ja", "ar", "zh", "ru", "en")} == {
        "ja": 29.7,
        "ar": 4.4,
        "zh": 3.9,
        "ru": 3.7,
        "en": 3.5,
    }
    text = render(result.report)
    assert [line.split()[:2] for line in text.splitlines()[2:4]] == [["overall", "20,006"], ["en", "10,006"]]

    baseline = analyse(score_checkpoints(str(before), str(before)), vocabulary(languages), neighbours="none")
    baseline.write(str(tmp_path / "baseline"))
    both = compare(str(tmp_path / "experiment"), str(tmp_path / "baseline"))
    frame = pl.DataFrame(both.table)
    first = frame.row(0, named=True)
    assert (first["matrix"], first["by"]) == ("lm_head", "overall")
    assert first["under_0.95_experiment"] == (cosine < 0.95).sum()
    assert first["under_0.95_baseline"] == 0
    assert first["mean_baseline"] == 1.0
    ja = frame.filter((pl.col("matrix") == "lm_head") & (pl.col("value") == "ja")).row(0, named=True)
    assert round(ja["share_0.95_experiment"], 3) == 0.297
    assert "29.7 %" in both.text
    with pytest.raises(StorageError, match="no such file"):
        compare(str(tmp_path / "experiment"), str(tmp_path))
