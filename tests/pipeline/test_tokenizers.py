"""Two checkpoints whose tokenizers give a token different ids: rows are matched by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from coverage_job.cli import main
from coverage_job.storage import read_parquet
from coverage_job.tokenizer.compare import row_map
from coverage_job.tokenizer.load import describe
from tests.checkpoint.make import matrix, pair, save_single
from tests.planted import WORDS, write_corpora

ROWS = 12  # of both matrices; the tokenizers have 9 tokens


@pytest.fixture
def trees(tmp_path: Path) -> dict[str, Any]:
    """The planted job, whose base had its words in another order and one of them under another name.

    Only the row of `gamma` moved between the checkpoints.
    """
    tree = write_corpora(tmp_path)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    order = [*WORDS[3:7], *WORDS[:3], WORDS[7]]
    data["model"]["vocab"] = {w if w != "omega" else "omicron": i for i, w in enumerate(order)}
    (tmp_path / "base.json").write_text(json.dumps(data))
    old = matrix(ROWS, 16, 1)
    new = matrix(ROWS, 16, 2)
    for i, word in enumerate(WORDS):
        new[i] = old[order.index(word)]
    new[8] = old[8]
    new[WORDS.index("gamma")] += 5
    save_single(tmp_path / "before", pair(old, old.clone()))
    save_single(tmp_path / "after", pair(new, new.clone()))
    return tree


def test_the_map_of_rows(trees: dict[str, Any], tmp_path: Path) -> None:
    before, after = describe(str(tmp_path / "base.json")), describe(str(tmp_path / "tokenizer.json"))
    found = row_map(before, after)
    assert found is not None
    #                       alpha beta gamma delta omega spam rare [UNK] <end>
    assert found.tolist() == [4, 5, 6, 0, -1, 2, 3, 7, 8]
    assert row_map(after, after) is None


def moved(cosines: list[float | None]) -> None:
    """Only gamma moved; omega and the rows without a token are not compared."""
    assert [i for i, c in enumerate(cosines) if c is None] == [4, 9, 10, 11]
    assert [i for i, c in enumerate(cosines) if c is not None and c < 0.999] == [WORDS.index("gamma")]


def test_drift_matches_rows_by_token(
    trees: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["--before", str(tmp_path / "before"), "--after", str(tmp_path / "after"), "--device", "cpu"]
    tokenizers = ["--tokenizer", str(tmp_path / "tokenizer.json")]
    before = ["--tokenizer-before", str(tmp_path / "base.json")]
    assert main(["drift", *both, *tokenizers, *before, "--output", str(tmp_path / "d"), "--quiet"]) == 0
    moved(read_parquet(str(tmp_path / "d" / "drift.parquet"))["lm_head_cosine"].to_pylist())
    report = json.loads((tmp_path / "d" / "drift.json").read_text())
    assert "rows matched by token: 8 of 12 have a counterpart" in report["notes"]
    # By id nearly all would seem to have moved.
    assert main(["drift", *both, *tokenizers, "--output", str(tmp_path / "e"), "--quiet"]) == 0
    by_id = np.array(read_parquet(str(tmp_path / "e" / "drift.parquet"))["lm_head_cosine"].to_pylist(), float)
    assert (by_id < 0.999).sum() >= 7
    capsys.readouterr()
    assert main(["drift", *both, *before, "--output", str(tmp_path / "f"), "--quiet"]) == 2
    assert "give --tokenizer" in capsys.readouterr().err


def test_a_run_and_restore_match_rows_by_token(trees: dict[str, Any], tmp_path: Path) -> None:
    drift = {"before": str(tmp_path / "before"), "after": str(tmp_path / "after"), "device": "cpu"}
    trees |= {"pretraining_tokenizer": "base.json", "drift": drift}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(trees))
    out = tmp_path / "run"
    assert main(["run", str(tmp_path / "job.yaml"), "--engine", "local", "-q", "--output", str(out)]) == 0
    moved(read_parquet(str(out / "coverage.parquet"))["lm_head_cosine"].to_pylist())
    both = ["--before", drift["before"], "--after", drift["after"], "--run", str(out)]
    more = ["--tokens", "lm_head_cosine < 0.999", "--output", str(tmp_path / "restored")]
    # The run knows its own tokenizer.
    assert main(["restore", *both, *more, "--tokenizer-before", str(tmp_path / "base.json")]) == 0
    old, got = (load_file(tmp_path / name / "model.safetensors") for name in ("before", "restored"))
    assert torch.equal(got["lm_head.weight"][2], old["lm_head.weight"][6])
