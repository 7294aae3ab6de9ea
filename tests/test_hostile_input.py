"""Wrong jobs, odd files and odd names from outside: one line and exit 2, or counts that are right."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from coverage_job.cli import main
from coverage_job.storage import Run
from tests.planted import assistant, user, write_lines, write_tokenizer


def run(folder: Path, corpus: dict[str, Any], *arguments: str, **keys: Any) -> int:
    """Runs a job of one corpus in a folder that holds its files; the run directory is `folder/out`."""
    write_tokenizer(folder / "tokenizer.json")
    tree = {
        "tokenizer": "tokenizer.json",
        "chat_template": "none",
        "max_bad_fraction": 1.0,
        "corpora": [{"name": "c", "stage": "posttraining", **corpus}],
        "engine": {"workers": 1},
        "output": str(folder / "runs"),
        **keys,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(tree))
    job, out = str(folder / "job.yaml"), str(folder / "out")
    return main(["run", job, "--engine", "local", "--quiet", "--output", out, *arguments])


def info(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = Run(str(folder / "out")).info["corpora"][0]
    return found


def texts(path: Path, *values: str) -> None:
    write_lines(path, [{"text": value} for value in values])


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("coverage.minimum=[", "coverage.minimum=["),
        ("corpora.c.path=[]", "path"),
        ("corpora.c.epochs=.inf", "epochs"),
        ("model_vocab_size=99999999999", "model_vocab_size"),
        ("chat_template=nowhere.jinja", "nowhere.jinja"),
        ("corpora.c.document_end=9", "document_end: 9"),
        ('corpora.c.name="a\\e[31m"', "control character"),
        ("corpora.c.text=te\x1b[31m", "te<1B>[31m"),
    ],
)
def test_a_wrong_setting_exits_2_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, named: str
) -> None:
    texts(tmp_path / "a.jsonl", "alpha")
    assert run(tmp_path, {"path": "a.jsonl"}, "--set", setting) == 2
    said = capsys.readouterr().err
    assert named in said
    assert said.count("\n") == 1


def test_files_beside_a_run_are_no_runs(tmp_path: Path) -> None:
    texts(tmp_path / "a.jsonl", "alpha")
    check = [{"metric": "tokens", "min": 1}]
    # The output folder is full of plain files: earlier runs are sought there.
    assert run(tmp_path, {"path": "a.jsonl"}, checks=check, output=str(tmp_path)) == 0
    assert main(["check", str(tmp_path / "out")]) == 0
    assert main(["report", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("command", ["check", "repeat", "report", "run", "demo", "tokenizer"])
def test_a_file_in_the_place_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    texts(tmp_path / "a.jsonl", "alpha")
    file = str(tmp_path / "a.jsonl")
    within = str(tmp_path / "a.jsonl" / "x")
    if command == "run":
        assert run(tmp_path, {"path": "a.jsonl"}, "--output", within) == 2
    elif command == "tokenizer":
        assert main(["tokenizer", "show", within]) == 2
    elif command == "demo":
        assert main(["demo", within]) == main(["demo", file]) == 2
    else:
        extra = ["--output", str(tmp_path / "r")] if command == "repeat" else []
        assert main([command, file, *extra]) == 2
    assert "a.jsonl" in capsys.readouterr().err


def test_an_output_that_exists_is_refused_before_counting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts(tmp_path / "a.jsonl", "alpha")
    (tmp_path / "out").mkdir()
    assert run(tmp_path, {"path": "nowhere.jsonl"}) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["missing", "changed"])
def test_compare_refuses_a_run_that_is_not_whole(tmp_path: Path, fault: str) -> None:
    texts(tmp_path / "a.jsonl", "alpha")
    assert run(tmp_path, {"path": "a.jsonl"}) == 0
    out = str(tmp_path / "out")
    assert main(["compare", out, out]) == 0
    coverage = tmp_path / "out" / "coverage.parquet"
    if fault == "missing":
        coverage.unlink()
    else:
        coverage.write_bytes(coverage.read_bytes()[:-1] + b"x")
    assert main(["compare", out, out]) == 2


def test_compare_of_what_count_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts(tmp_path / "a.jsonl", "alpha")
    assert run(tmp_path, {"path": "a.jsonl"}) == 0
    counted = str(tmp_path / "counted")
    assert main(["count", str(tmp_path / "job.yaml"), "--engine", "local", "--output", counted, "-q"]) == 0
    assert main(["compare", counted, str(tmp_path / "out")]) == 2
    assert "histograms alone" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[]", "[]\n", " [ ] ", "\ufeff[]"])
def test_an_empty_json_array_is_a_file_of_no_records(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    (tmp_path / "b.json").write_text('[{"text": "alpha"}]')
    assert run(tmp_path, {"path": "*.json"}) == 0
    assert info(tmp_path)["documents"] == 1


def test_empty_files_before_the_first_record(tmp_path: Path) -> None:
    for n in range(8):
        (tmp_path / f"part-{n}.jsonl").write_bytes(b"")
    texts(tmp_path / "part-8.jsonl", "alpha")
    assert run(tmp_path, {"path": "part-*.jsonl"}) == 0
    assert info(tmp_path)["files_counted"] == 9


def test_binary_fractions_do_not_starve_a_token(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"messages": [user("alpha"), assistant("beta")]}] * 100)
    limits = {"measure": "expected_updates", "minimum": 29, "critical": 29}
    assert 0.29 * 100 < 29
    assert run(tmp_path, {"path": "a.jsonl", "epochs": 0.29}, coverage=limits) == 0
    beta = pl.read_parquet(tmp_path / "out" / "coverage.parquet").row(1, named=True)
    assert (beta["status"], beta["deficit"]) == ("covered", 0)


def test_why_no_record_could_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(tmp_path / "a.jsonl", [{"messages": [user("alpha"), assistant("beta")]}])
    (tmp_path / "t.jinja").write_text("{{ raise_exception('never this') }}")
    assert run(tmp_path, {"path": "a.jsonl"}, chat_template="t.jinja") == 2
    assert "a.jsonl, line 1: chat template failed: never this" in capsys.readouterr().err


def test_a_megatron_index_that_leaves_sequences_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.bin").write_bytes(np.array([0, 1, 2], "<u2").tobytes())
    sizes, places = np.array([1, 1, 1], "<i4"), np.array([0, 2, 4], "<i8")
    for borders, code in (([0, 1, 3], 0), ([0, 1, 2], 2), ([1, 3], 2), ([0], 2)):
        index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 3, len(borders))
        index += sizes.tobytes() + places.tobytes() + np.array(borders, "<i8").tobytes()
        (tmp_path / "a.idx").write_bytes(index)
        assert run(tmp_path, {"path": "a.bin"}, "--output", str(tmp_path / f"out{borders}")) == code
        assert ("a.idx" in capsys.readouterr().err) == (code == 2)


def test_the_mask_audit_of_dialogues_without_a_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "alpha"}]}
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
    odd = {"role": "critic\x1b[1m", "content": "alpha <end>"}
    write_lines(tmp_path / "a.jsonl", [{"messages": [odd, image, call, assistant("beta")]}])
    assert run(tmp_path, {"path": "a.jsonl"}) == 0
    audit = info(tmp_path)["mask_audit"]
    names = ("with_unknown_role", "with_media", "with_lost_tool_calls", "with_special_text", "special_texts")
    assert [audit[name] for name in names] == [1] * 5
    said = capsys.readouterr().out
    assert "critic<1B>[1m" in said
    assert "\x1b" not in said


@pytest.mark.parametrize("split", [False, True])
def test_special_token_text_without_a_template(tmp_path: Path, split: bool) -> None:
    write_lines(tmp_path / "a.jsonl", [{"messages": [user("é alpha"), assistant("é <end> beta <end>")]}])
    assert run(tmp_path, {"path": "a.jsonl", "split_special_tokens": split}) == 0
    coverage = pl.read_parquet(tmp_path / "out" / "coverage.parquet")
    end, unknown = (coverage["posttraining_supervised_occurrences"][i] for i in (8, 7))
    assert (end, unknown) == ((0, 3) if split else (2, 1))
