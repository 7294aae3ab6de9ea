from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from coverage_job.engines.preflight import DECIDING, OTHERS, Question, explain_start, gather, problems

QUESTION = Question((("tokenizer", "/t.json", True), ("corpus web", "/web.jsonl", False)), "/store/x", "x")
DRIVER: dict[str, Any] = {
    "host": "driver",
    "python": "3.11",
    "packages": {"coverage_job": "0.1.0", "tokenizers": "0.21.4", "numba": "0.60.0", "numpy": "2.1.0",
                 "polars": "1.30.0", "pyarrow": "17.0.0"},
    "build": "cc",
    "files": {"/t.json": [10, "aa"], "/web.jsonl": [20, "bb"]},
    "store": "",
}  # fmt: skip


def executor(host: str, **changes: Any) -> dict[str, Any]:
    facts = {**copy.deepcopy(DRIVER), "host": host}
    for key, value in changes.items():
        if isinstance(value, dict):
            facts[key] |= value
        else:
            facts[key] = value
    return facts


def test_executors_that_fit_give_no_line() -> None:
    # Another release of a package that decides no count is no difference.
    newer = executor("b", packages={"numpy": "2.3.5", "pyarrow": "17.1.0"})
    assert problems(QUESTION, DRIVER, [executor("a"), newer]) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"python": "3.10"}, "executors run Python 3.10, the driver 3.11"),
        ({"packages": {"tokenizers": "0.21.5"}}, "executors have tokenizers 0.21.5, the driver 0.21.4"),
        ({"packages": {"coverage_job": "0.1.1"}}, "executors have coverage_job 0.1.1, the driver 0.1.0"),
        ({"build": "dd"}, "executors have another build of coverage_job 0.1.0 than the driver"),
        ({"packages": {"numpy": "1.26.4"}}, "executors have numpy 1.26.4, the driver 2.1.0"),
        (
            {"packages": {"numba": "!ModuleNotFoundError: No module named 'numba'"}},
            "executors cannot import numba (ModuleNotFoundError: No module named 'numba')",
        ),
        (
            {"files": {"/web.jsonl": "!FileNotFoundError: /web.jsonl"}},
            "corpus web: executors cannot open /web.jsonl (FileNotFoundError: /web.jsonl)",
        ),
        ({"files": {"/t.json": [10, "ab"]}}, "tokenizer: /t.json is another file on executors"),
        ({"store": "!OSError: read-only"}, "store: executors cannot use /store/x as the driver does"),
    ],
)
def test_each_difference_is_one_line_that_names_the_hosts(changes: dict[str, Any], line: str) -> None:
    found = problems(QUESTION, DRIVER, [executor("a"), executor("b", **changes), executor("c", **changes)])
    assert len(found) == 1
    assert found[0].startswith(line)
    assert found[0].endswith("[2 of 3 hosts: b, c]")


def test_several_differences_are_several_lines() -> None:
    wrong = executor("a", python="3.10", store="!OSError: no", files={"/t.json": "!OSError: no"})
    assert len(problems(QUESTION, DRIVER, [wrong])) == 3


def test_the_facts_of_this_process(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    (tmp_path / "token").write_text("token")
    files = (("tokenizer", str(tmp_path / "t.json"), True), ("corpus", str(tmp_path / "none"), False))
    facts = gather(files, str(tmp_path), "token", (*DECIDING, *OTHERS, "no_such_package"))
    assert facts["files"][files[0][1]][0] == 2
    assert facts["files"][files[1][1]].startswith("!FileNotFoundError")
    assert facts["packages"]["no_such_package"].startswith("!ModuleNotFoundError")
    assert not any(facts["packages"][name].startswith("!") for name in (*DECIDING, *OTHERS))
    assert facts["store"] == ""
    assert len(facts["build"]) == 64
    assert len(list(tmp_path.glob("token-*"))) == 1


def test_a_place_to_write_that_is_another_folder_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("another run's")
    assert gather((), str(tmp_path), "token", ())["store"].startswith("!OSError")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: "
            "3.10 than that in driver: 3.11, PySpark cannot run with different minor versions.",
            "executors run Python 3.10, the driver",
        ),
        (
            'java.io.IOException: Cannot run program "./environment/bin/python": error=2, No such file',
            "executors have no program ./environment/bin/python",
        ),
        (
            "Error from python worker:\n  coverage_job: node7 has no Python 3.11; set X\nPYTHONPATH was:",
            "node7 has no Python 3.11; set X",
        ),
        ("ModuleNotFoundError: No module named 'pyarrow'", "executors cannot import pyarrow"),
    ],
)
def test_why_workers_did_not_start(text: str, line: str) -> None:
    why = explain_start(text)
    assert why is not None
    assert why.startswith(line)
    assert "\n" not in why


def test_other_failures_are_not_explained_away() -> None:
    assert explain_start("java.lang.OutOfMemoryError: Java heap space") is None
