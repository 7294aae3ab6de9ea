from __future__ import annotations

import pytest

from coverage_job.errors import ProbeError
from coverage_job.probes.journal import Journal, fingerprint, parse_responses

HEADER = {"model": "m", "prompts": "p"}


def test_answers_are_there_again(tmp_path):
    path = tmp_path / "deep" / "responses.jsonl"
    with Journal(path, HEADER) as journal:
        journal.append({"prompt_id": "a", "response": "line\nbreak \u2028 \x85"})
    with Journal(path, HEADER) as journal:
        assert journal.answers["a"]["response"] == "line\nbreak \u2028 \x85"
        with pytest.raises(ValueError, match="answered already"):
            journal.append({"prompt_id": "a", "response": "other"})
        journal.append({"prompt_id": "b", "response": ""})
    assert parse_responses(path.read_bytes()) == {"a": "line\nbreak \u2028 \x85", "b": ""}


@pytest.mark.parametrize("cut", range(1, 30, 4))
def test_a_torn_last_line_is_asked_again(tmp_path, cut):
    path = tmp_path / "responses.jsonl"
    with Journal(path, HEADER) as journal:
        journal.append({"prompt_id": "a", "response": "one"})
        whole = path.read_bytes()
        journal.append({"prompt_id": "b", "response": "two"})
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(path, HEADER) as journal:
        assert set(journal.answers) == {"a"}
        assert path.read_bytes() == whole
        journal.append({"prompt_id": "b", "response": "two"})
    assert set(parse_responses(path.read_bytes())) == {"a", "b"}


def test_a_torn_header_begins_anew(tmp_path):
    path = tmp_path / "responses.jsonl"
    path.write_bytes(b'{"journal": 1, "mod')
    with Journal(path, HEADER) as journal:
        journal.append({"prompt_id": "a", "response": "x"})
    with Journal(path, HEADER) as journal:
        assert set(journal.answers) == {"a"}


def test_another_run_and_another_file_are_refused(tmp_path):
    path = tmp_path / "responses.jsonl"
    Journal(path, HEADER).close()
    with pytest.raises(ProbeError, match="another run"):
        Journal(path, {"model": "n", "prompts": "p"})
    path.write_bytes(b"some text\n")
    with pytest.raises(ProbeError, match="no journal"):
        Journal(path, HEADER)


def test_fingerprints_tell_texts_apart():
    assert fingerprint(["ab", "c"]) != fingerprint(["a", "bc"])
    assert fingerprint(["a"]) == fingerprint(["a"])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"prompt_id": "a"}\n{"prompt_id": "a"}', "line 2: prompt a is answered twice"),
        (b'{"response": "a"}', "line 1: write an object"),
        (b'{"prompt_id": "a", "response": 1}', "line 1: `response` is no text"),
        (b"\n\n{", "line 3: no valid JSON"),
    ],
)
def test_bad_answers_are_named(data, said):
    with pytest.raises(ProbeError, match=said):
        parse_responses(data, "mine.jsonl")
