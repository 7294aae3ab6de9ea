"""The client against a server in this process: faults, limits, resuming, and where the key goes."""

from __future__ import annotations

import logging
import socket

import pytest

from coverage_job.errors import ProbeError
from coverage_job.probes.endpoint import Endpoint, Question, _parse, _PassingError, ask
from coverage_job.probes.journal import Journal
from tests.probes.tiny import serving

KEY = "sk-very-secret-0123456789"


def questions(count: int) -> list[Question]:
    return [Question(f"q{i}", f"say {i}") for i in range(count)]


def echo(body, number):
    return 200, "answer to " + body["messages"][0]["content"], {}


def endpoint(url: str, **options) -> Endpoint:
    return Endpoint(url, "tiny", **{"pause": 0.01, **options})


def test_answers_are_kept_and_never_asked_twice(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    seen = []
    with serving(echo) as server, Journal(tmp_path / "j", {}) as journal:
        ask(endpoint(server.url), questions(20), journal, 8, lambda done, total: seen.append((done, total)))
        ask(endpoint(server.url), questions(23), journal, 8)
    assert {k: v["response"] for k, v in journal.answers.items()} == {
        f"q{i}": f"answer to say {i}" for i in range(23)
    }
    assert len(server.bodies) == 23
    assert seen == [(i, 20) for i in range(1, 21)]
    assert server.bodies[0]["temperature"] == 0
    assert server.bodies[0]["max_tokens"] == 8
    assert "Authorization" not in server.headers[0]


def test_no_more_at_once_than_allowed(tmp_path):
    with serving(echo) as server, Journal(tmp_path / "j", {}) as journal:
        ask(endpoint(server.url, concurrency=3), questions(30), journal, 8)
    assert len(journal.answers) == 30
    assert server.most_at_once <= 3


def test_passing_faults_are_asked_again(tmp_path):
    def moody(body, number):
        if number % 3 == 0:
            return 503, "busy", {}
        if number % 3 == 1:
            return 429, "slow down", {"Retry-After": "0"}
        return echo(body, number)

    with serving(moody) as server, Journal(tmp_path / "j", {}) as journal:
        ask(endpoint(server.url, concurrency=1, attempts=4), questions(5), journal, 8)
    assert len(journal.answers) == 5
    assert len(server.bodies) == 15


def test_a_refusal_ends_the_run_and_keeps_the_answers(tmp_path):
    def broken(body, number):
        return (400, "no such model", {}) if number >= 3 else echo(body, number)

    with serving(broken) as server, Journal(tmp_path / "j", {}) as journal:
        with pytest.raises(ProbeError, match=r"status 400: .*no such model.*3 of 10 answers are kept"):
            ask(endpoint(server.url, concurrency=1), questions(10), journal, 8)
        assert len(server.bodies) == 4
        assert len(journal.answers) == 3


def test_a_server_that_stays_away_is_named(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with (
        Journal(tmp_path / "j", {}) as journal,
        pytest.raises(ProbeError, match=r"no answer .* \(2 tries\); 0 of 3"),
    ):
        ask(endpoint(url, attempts=2), questions(3), journal, 8)


@pytest.mark.parametrize(
    "reply", ["", "not json", '{"choices": []}', '{"choices": [{"message": {"content": 5}}]}']
)
def test_what_is_no_answer_is_not_kept(reply):
    with pytest.raises(_PassingError):
        _parse(reply.encode(), "chat")


def test_the_key_goes_into_one_header_and_nowhere_else(tmp_path, monkeypatch, caplog, capfd):
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)

    def refuses(body, number):
        return (401, f"Incorrect API key provided: {KEY}", {}) if number else echo(body, number)

    with serving(refuses) as server, Journal(tmp_path / "j", {}) as journal:
        with pytest.raises(ProbeError) as caught:
            ask(endpoint(server.url, key_variable="MY_KEY", concurrency=1), questions(3), journal, 8)
        assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert "MY_KEY" in str(caught.value)
    printed = capfd.readouterr()
    for text in (str(caught.value), caplog.text, printed.out, printed.err, (tmp_path / "j").read_text()):
        assert KEY not in text


def test_a_redirect_does_not_carry_the_key_away(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(echo) as elsewhere:
        moved = lambda body, number: (302, "moved", {"Location": elsewhere.url})  # noqa: E731
        with (
            serving(moved) as server,
            Journal(tmp_path / "j", {}) as journal,
            pytest.raises(ProbeError, match="status 302"),
        ):
            ask(endpoint(server.url), questions(1), journal, 8)
        assert elsewhere.bodies == []


def test_the_completions_interface_is_given_the_bare_text(tmp_path):
    def repeat(body, number):
        return 200, body["prompt"], {}

    with serving(repeat) as server, Journal(tmp_path / "j", {}) as journal:
        ask(endpoint(server.url, api="completions"), questions(2), journal, 8)
    assert journal.answers["q1"]["response"] == "say 1"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "localhost:8000"}, "write a base address"),
        ({"url": "file:///etc/passwd"}, "write a base address"),
        ({"url": "http://user:key@host/v1"}, "put the key into"),
        ({"api": "tea"}, "chat or completions"),
        ({"concurrency": 0}, "at least 1"),
    ],
)
def test_bad_endpoints_are_refused(options, said):
    with pytest.raises(ProbeError, match=said):
        Endpoint(**{"url": "http://localhost/v1", "model": "m", **options})
