"""Exit codes and the one line that a person gets."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from coverage_job.cli import app, main
from coverage_job.pipeline import asking, plan
from coverage_job.storage import Run
from tests.planted import write_corpora, write_lines


@pytest.fixture
def job(tmp_path: Path) -> Path:
    tree = write_corpora(tmp_path)
    return save(tmp_path, tree | {"output": str(tmp_path / "runs")})


def save(folder: Path, tree: dict[str, Any]) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


def change(job: Path, **changes: Any) -> Path:
    return save(job.parent, {**yaml.safe_load(job.read_text()), **changes})


def run(job: Path, *arguments: str) -> int:
    return main(["run", str(job), "--engine", "local", "--quiet", *arguments])


def test_run_prints_the_run_directory_last(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(job) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert Path(last).parent == job.parent / "runs"
    Run(last).verify()


def test_what_is_printed_says_what_a_person_asks(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(job) == 0
    text = capsys.readouterr().out
    for part in ("web", "chat", "tasks", "alpha", "coverage-job repeat", "By kind", "by language"):
        assert part in text


def test_dry_run_reads_nothing(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(job, "--dry-run") == 0
    assert "web" in capsys.readouterr().out
    assert not (job.parent / "runs").exists()


@pytest.mark.parametrize(("limit", "plain", "gated"), [(0, 0, 1), (99, 0, 0)])
def test_a_failed_check_fails_only_where_gated(job: Path, limit: int, plain: int, gated: int) -> None:
    change(job, checks=[{"metric": "flagged", "max": limit}])
    assert run(job) == plain
    assert run(job, "--gate") == gated
    newest = sorted((job.parent / "runs").iterdir())[-1]
    assert main(["check", str(newest)]) == gated
    (verdict,) = Run(str(newest)).json("checks.json")
    assert verdict["verdict"] == ("fail" if limit == 0 else "pass")


def test_compare_tells_the_change_from_the_first_run_to_the_second(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = (str(job.parent / name) for name in ("before", "after"))
    assert run(job, "--output", before) == 0
    assert run(job, "--output", after, "--set", "coverage.minimum=1", "--set", "coverage.critical=1") == 0
    flagged = [Run(r).info["totals"]["flagged"] for r in (before, after)]
    assert flagged[0] > flagged[1]
    capsys.readouterr()
    assert main(["compare", before, after]) == 0
    (line,) = [row for row in capsys.readouterr().out.splitlines() if row.startswith("flagged")]
    assert line.split()[1:] == [f"{flagged[0]:,}", f"{flagged[1]:,}", f"{flagged[1] - flagged[0]:+,}"]


def test_check_with_nothing_to_check_is_no_pass(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(job, "--output", str(job.parent / "r")) == 0
    assert main(["check", str(job.parent / "r")]) == 2
    assert "no `checks:`" in capsys.readouterr().err


def test_check_against_the_previous_run(job: Path) -> None:
    change(job, checks=[{"metric": "flagged", "change": "absolute", "max": 0}])
    assert run(job, "--gate") == 1  # there is no previous run yet
    assert run(job, "--gate") == 0
    with (job.parent / "chat.jsonl").open("w") as file:
        file.write(json.dumps({"messages": [{"role": "assistant", "content": "delta"}]}) + "\n")
    assert run(job, "--gate") == 1


def test_prometheus_file(job: Path) -> None:
    change(job, checks=[{"name": 'a "name"', "metric": "flagged", "max": 99}])
    assert run(job, "--output", str(job.parent / "r")) == 0
    assert main(["check", str(job.parent / "r"), "--prometheus", str(job.parent / "out.prom")]) == 0
    text = (job.parent / "out.prom").read_text()
    assert 'coverage_job_check{name="a \\"name\\""} 0' in text
    assert 'coverage_job_tokens{status="flagged"} 6' in text


def _error(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert "Traceback" not in lines[0]
    return lines[0]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"nonsense": 1}, "nonsense: unknown key"),
        ({"tokenizer": "nowhere"}, "nowhere"),
        ({"chat_template": "nowhere.jinja"}, "nowhere.jinja"),
        ({"model_vocab_size": -1}, "model_vocab_size"),
        ({"model_vocab_size": 8}, "model_vocab_size: 8 is under the tokenizer's 9 rows"),
        ({"max_bad_fraction": 0.1}, "1 of 3 records are bad"),
        ({"on_bad_record": "fail"}, "chat.jsonl, line 2"),
    ],
)
def test_a_wrong_job_exits_2_and_names_the_key(
    job: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], named: str
) -> None:
    change(job, **changes)
    assert run(job) == 2
    assert named in _error(capsys)
    assert not (job.parent / "runs").exists()


@pytest.mark.parametrize(
    ("change_of_web", "named"),
    [
        ({"path": "nothing-*.jsonl"}, "nothing-*.jsonl matches no file"),
        ({"text": "body"}, "body"),
        ({"group_by": "sorce"}, "did you mean source?"),
        ({"language_field": "tongue"}, "tongue"),
        ({"group_by": "shelf"}, "shelf"),
        ({"shape": "messages"}, "messages"),
        ({"add_bos": True}, "add_bos"),
    ],
)
def test_a_wrong_corpus_exits_2_and_names_it(
    job: Path, capsys: pytest.CaptureFixture[str], change_of_web: dict[str, Any], named: str
) -> None:
    tree = yaml.safe_load(job.read_text())
    tree["corpora"][0].update(change_of_web)
    save(job.parent, tree)
    assert run(job) == 2
    line = _error(capsys)
    assert named in line
    assert "web" in line


def test_an_empty_corpus_is_no_success(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (job.parent / "web.jsonl").write_text("\n\n")
    assert run(job) == 2
    assert "web" in _error(capsys)


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_file_that_ends_early(job: Path, capsys: pytest.CaptureFixture[str], policy: str) -> None:
    folder = job.parent / "more"
    lines = [{"text": "alpha beta", "lang": "en", "source": "news"}] * 500
    write_lines(folder / "whole.jsonl", lines)
    data = gzip.compress((folder / "whole.jsonl").read_bytes())
    (folder / "cut.jsonl.gz").write_bytes(data[: len(data) // 2])
    tree = yaml.safe_load(job.read_text())
    tree["corpora"][0].update(path="more/*", on_bad_file=policy)
    save(job.parent, tree)
    assert run(job, "--output", str(job.parent / "r")) == (2 if policy == "fail" else 0)
    if policy == "fail":
        assert "cut.jsonl.gz" in _error(capsys)
        return
    web = Run(str(job.parent / "r")).info["corpora"][0]
    assert web["files_missing"] == [str(folder / "cut.jsonl.gz")]
    assert (web["files"], web["files_counted"], web["documents"], web["tokens"]) == (2, 1, 500, 1000)


def test_a_templates_message_of_several_lines_is_one_line(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = job.parent / "chat.jinja"
    template.write_text("{{ raise_exception('first\\nsecond') }}")
    change(job, chat_template="chat.jinja", max_bad_fraction=0.0)
    assert run(job) == 2
    assert "chat template failed: " in _error(capsys)
    template.write_text("{% if\n\n x y %}")
    assert run(job) == 2
    assert "chat.jinja" in _error(capsys)


def test_an_existing_output_is_refused(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(job, "--output", str(job.parent)) == 2
    assert "exists already" in _error(capsys)


@pytest.mark.parametrize(
    "arguments", [["run"], ["nonsense"], ["run", "x", "--nonsense"], ["run", "x", "--engine", "y"]]
)
def test_wrong_arguments_exit_2(arguments: list[str]) -> None:
    assert main(arguments) == 2


def test_a_fault_of_ours_exits_3_with_its_traceback_in_a_file(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(plan, "describe", broken)
    assert run(job) == 3
    line = _error(capsys)
    assert "ZeroDivisionError: oops" in line
    log = Path(line.rsplit(" ", 1)[1])
    assert "Traceback" in log.read_text()
    log.unlink()


def every_command(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from every_command(command, (*path, name))


@pytest.mark.parametrize("path", list(every_command(typer.main.get_command(app))), ids=" ".join)
def test_every_command_has_help_with_an_example(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main([*path, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example" in text
    assert "coverage-job " + " ".join(path).removesuffix(" ask") in text
    # Notation of typer's own that says nothing to a reader.
    assert not re.search(r"<bool>|<int|<float>|<list|\{[A-Za-z]", text)


def test_probe_takes_its_source_without_a_command_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(asking, "probe", lambda source, output, **rest: asked.append((source, output)) or "")
    monkeypatch.setattr(asking, "compare", lambda a, b: asked.append((a, b)) or "")
    assert main(["probe", "runs/a", "--tokenizer", "t", "--output", "out"]) == 0
    assert main(["probe", "--tokenizer", "t", "--output", "out", "runs/b"]) == 0
    assert main(["probe", "compare", "before", "after"]) == 0
    assert asked == [("runs/a", "out"), ("runs/b", "out"), ("before", "after")]
    assert main(["probe", "runs/a"]) == 2
    assert "--output" in capsys.readouterr().err
