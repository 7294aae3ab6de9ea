from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coverage_job.config import load_job, parse_job
from coverage_job.errors import JobError

CORPUS = {"name": "web", "stage": "pretraining", "path": "web/*.jsonl"}
BASE = {"tokenizer": "tok", "corpora": [CORPUS]}


def parse(**changes: Any) -> Any:
    return parse_job({**BASE, **changes}, base=Path("/jobs"))


def test_defaults_are_the_documented_ones() -> None:
    job = parse()
    assert job.chat_template == "auto"
    assert (job.coverage.critical, job.coverage.minimum) == (5, 20)
    assert job.coverage.measure == "supervised_occurrences"
    assert (job.on_bad_record, job.on_bad_file, job.max_bad_fraction) == ("skip", "fail", 0.01)
    assert job.max_record_bytes == 64 << 20
    assert job.engine.split_bytes == 128 << 20


def test_input_paths_are_relative_to_the_job_and_outputs_are_not() -> None:
    job = parse(store="s", output="o")
    assert job.tokenizer == "/jobs/tok"
    assert job.corpora[0].paths == ["/jobs/web/*.jsonl"]
    assert (job.output, job.store) == ("o", "s")


def test_remote_paths_are_left_alone() -> None:
    job = parse(corpora=[{**CORPUS, "path": ["s3://b/x.jsonl", "/abs.jsonl"]}])
    assert job.corpora[0].paths == ["s3://b/x.jsonl", "/abs.jsonl"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tokeniser": "x"}, "tokeniser: unknown key"),
        ({"corpora": [{**CORPUS, "stag": 1}]}, r"corpora\.0\.stag: unknown key"),
        ({"corpora": []}, "corpora"),
        ({"corpora": [CORPUS, CORPUS]}, "two corpora are named 'web'"),
        ({"corpora": [{"name": "x", "stage": "pretraining"}]}, "give either `path` or `table`"),
        ({"corpora": [{**CORPUS, "epochs": 2}]}, "epochs"),
        ({"corpora": [{**CORPUS, "stage": "posttraining", "mixed_in": 1}]}, "mixed_in"),
        ({"coverage": {"critical": 30}}, r"critical \(30\) is above minimum \(20\)"),
        ({"max_record_bytes": "64 apples"}, "64 apples"),
        ({"max_bad_fraction": 2}, "max_bad_fraction"),
        ({"tokenizer": {"path": "x.tiktoken"}}, "pattern"),
        ({"tokeniser": "x"}, r"did you mean tokenizer\?"),
        ({"corpora": [{**CORPUS, "language_feld": "x"}]}, r"did you mean language_field\?"),
        ({"tokenizer": {"path": "x", "patern": "y"}}, r"patern: unknown key \(did you mean pattern\?"),
        ({"coverage": {"exempt": {"categories": []}}}, r"did you mean category\?"),
        ({"coverage": {"exempt": {"kind": ["speical"]}}}, r"did you mean special\?"),
        ({"coverage": {"measure": "supervised_occurences"}}, r"did you mean supervised_occurrences\?"),
        ({"corpora": [{**CORPUS, "stage": "pretrainig"}]}, r"did you mean pretraining\?"),
        ({"checks": [{"metric": "flaged", "max": 1}]}, r"did you mean flagged\?"),
        ({"checks": [{"metric": "flagged", "where": {"langage": "ja"}, "max": 1}]}, r"mean language\?"),
        ({"checks": [{"metric": "tokens", "corpus": "wbe", "max": 1}]}, r"'wbe' \(did you mean web\?"),
    ],
)
def test_a_wrong_key_is_named_in_one_line(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(JobError, match=named) as caught:
        parse(**changes)
    assert "\n" not in str(caught.value)


def test_there_is_no_default_tokenizer() -> None:
    with pytest.raises(JobError, match="tokenizer: Field required"):
        parse_job({"corpora": [CORPUS]}, base=Path("/"))


def test_overrides_reach_keys_and_corpora_by_name() -> None:
    job = parse_job(
        BASE,
        base=Path("/"),
        overrides=("coverage.minimum=7", "corpora.web.mixed_in=0.5", "engine.split_bytes=1MiB"),
    )
    assert job.coverage.minimum == 7
    assert job.corpora[0].mixed_in == 0.5
    assert job.engine.split_bytes == 1 << 20


@pytest.mark.parametrize("text", ["minimum", "corpora.nothing.epochs=1", "tokenizer.path.x=1"])
def test_an_override_that_fits_nothing_is_an_error(text: str) -> None:
    with pytest.raises(JobError):
        parse_job(BASE, base=Path("/"), overrides=(text,))


def test_a_job_file_that_is_missing_or_no_yaml_says_so(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"job\.yaml: cannot be read"):
        load_job(tmp_path / "job.yaml")
    (tmp_path / "job.yaml").write_text("a: [")
    with pytest.raises(JobError, match="no valid YAML"):
        load_job(tmp_path / "job.yaml")


def test_chat_template_none_may_be_written_bare() -> None:
    assert parse(chat_template=None).chat_template == "none"


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("tokenizer: a\ncorpora: []\ntokenizer: b\n", "tokenizer", 3),
        ("coverage:\n  minimum: 3\n  critical: 1\n  minimum: 4\n", "minimum", 4),
        ("corpora:\n  - {name: a, path: x,\n     name: b}\n", "name", 3),
    ],
)
def test_a_key_that_stands_twice_is_named_with_its_line(
    tmp_path: Path, text: str, key: str, line: int
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(JobError, match=f"'{key}' stands a second time in line {line}") as caught:
        load_job(tmp_path / "job.yaml")
    assert "\n" not in str(caught.value)


def test_an_anchor_may_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "tokenizer: t\ncorpora:\n"
        "  - &web {name: web, stage: pretraining, path: a.jsonl}\n"
        "  - {<<: *web, name: more}\n"
    )
    assert [c.name for c in load_job(path).corpora] == ["web", "more"]
