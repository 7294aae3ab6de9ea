"""What `repeat` and `mix` print is what goes into the job file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from coverage_job.cli import main
from coverage_job.storage import Run
from tests.planted import write_corpora


def run(tree: dict[str, Any], folder: Path, name: str) -> Run:
    (folder / "job.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    arguments = ["run", str(folder / "job.yaml"), "--engine", "local", "--quiet"]
    assert main([*arguments, "--output", str(folder / name)]) == 0
    return Run(str(folder / name))


def snippet(text: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = yaml.safe_load(text[text.index("corpora:") :])["corpora"]
    return entries


@pytest.mark.parametrize("command", ["repeat", "mix"])
def test_the_printed_entries_count_what_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    tree = write_corpora(tmp_path)
    # A name that is taken is not printed a second time.
    tree["corpora"][2]["name"] = command
    tree["coverage"]["measure"] = "expected_updates"
    first = run(tree, tmp_path, "first")
    monkeypatch.chdir(tmp_path)
    more = [] if command == "repeat" else ["--budget-tokens", "100", "--min-tokens", "1", "--engine", "local"]
    capsys.readouterr()
    assert main([command, "first", "--output", "set", *more]) == 0
    said = capsys.readouterr()
    assert "written in set" in said.out
    entries = snippet(said.out)
    assert [e["name"] for e in entries] == [f"{command}2"]
    tree["corpora"] += entries
    second = run(tree, tmp_path, "second")
    (added,) = [c for c in second.info["corpora"] if c["name"] == f"{command}2"]
    assert added["documents"] > 0
    flagged = [r.info["totals"]["flagged"] for r in (first, second)]
    assert flagged[1] < flagged[0]


def test_a_mix_says_where_it_lifts_no_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(write_corpora(tmp_path), tmp_path, "first")
    arguments = ["--output", str(tmp_path / "mix"), "--budget-tokens", "100", "--min-tokens", "1"]
    assert main(["mix", str(tmp_path / "first"), "--engine", "local", "--quiet", *arguments]) == 0
    said = capsys.readouterr().out
    assert "mixed_in lifts no status under coverage.measure: supervised_occurrences" in said
    assert snippet(said)[0]["mixed_in"] == 1
