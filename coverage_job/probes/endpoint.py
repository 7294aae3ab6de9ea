"""Answers from an OpenAI-compatible server, a few requests at a time, each kept as it comes.

The key is read from the environment and goes into one request header; it is in no file, log or error.
"""

from __future__ import annotations

import http.client
import os
import random
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import IO, Any

import orjson

from coverage_job.errors import ProbeError
from coverage_job.probes.journal import Journal

# Answers that may come out well when asked again: timeouts, conflicts, too many requests, server faults.
_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_LONGEST_PAUSE = 60.0
_ERROR_BYTES = 65536


@dataclass(frozen=True)
class Endpoint:
    """Where and how to ask.

    url: the base, such as ``http://localhost:8000/v1``. api: ``chat``, or ``completions`` for a
    model without a chat template. key_variable: the environment variable that holds the key; where it is
    unset, no key is sent.
    attempts: tries of one request; pause: seconds before the second, doubled each time.
    timeout: seconds to wait for an answer.
    """

    url: str
    model: str
    api: str = "chat"
    key_variable: str = "OPENAI_API_KEY"
    concurrency: int = 4
    attempts: int = 6
    pause: float = 1.0
    timeout: float = 300.0
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ProbeError(f"endpoint {self.url!r}: write a base address such as http://localhost:8000/v1")
        if parts.username or parts.password:
            raise ProbeError(f"endpoint: put the key into {self.key_variable}, not into the address")
        if self.api not in ("chat", "completions"):
            raise ProbeError(f"endpoint api {self.api!r}: write chat or completions")
        if self.concurrency < 1 or self.attempts < 1:
            raise ProbeError("endpoint: concurrency and attempts are at least 1")


@dataclass(frozen=True, slots=True)
class Question:
    """One request."""

    prompt_id: str
    content: str


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    # Following one would carry the key to wherever the answer points.
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


class _PassingError(Exception):
    """A fault that may pass; `pause` is the server's own wish in seconds, if it has one."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


class _StoppedError(Exception):
    """Another request failed for good."""


def ask(
    endpoint: Endpoint,
    questions: Sequence[Question],
    journal: Journal,
    max_new_tokens: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Ask what the journal has no answer to, at temperature 0, and keep each answer in it.

    progress: called with (answered, all) after each answer.
    Raises ProbeError where the server refuses a request or stays away; the answers so far are kept.
    """
    waiting = [question for question in questions if question.prompt_id not in journal.answers]
    done, total = len(questions) - len(waiting), len(questions)
    stop = threading.Event()
    key = os.environ.get(endpoint.key_variable, "").strip()
    running: set[Future[dict[str, Any]]] = set()
    queue = iter(waiting)
    failure: Exception | None = None
    with ThreadPoolExecutor(endpoint.concurrency, thread_name_prefix="probe") as pool:
        try:
            while True:
                while failure is None and len(running) < endpoint.concurrency:
                    question = next(queue, None)
                    if question is None:
                        break
                    running.add(pool.submit(_answer, endpoint, key, question, max_new_tokens, stop))
                if not running:
                    break
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    try:
                        journal.append(future.result())
                    except _StoppedError:
                        continue
                    except ProbeError as error:
                        failure = failure or error
                        stop.set()
                        continue
                    done += 1
                    if progress is not None:
                        progress(done, total)
        finally:
            stop.set()
    if failure is not None:
        raise ProbeError(
            f"{failure}; {done} of {total} answers are kept, the same command goes on from there"
        )


def _answer(
    endpoint: Endpoint, key: str, question: Question, max_new_tokens: int, stop: threading.Event
) -> dict[str, Any]:
    for attempt in range(endpoint.attempts):
        if stop.is_set():
            raise _StoppedError
        try:
            return {"prompt_id": question.prompt_id, **_request(endpoint, key, question, max_new_tokens)}
        except _PassingError as fault:
            if attempt + 1 == endpoint.attempts:
                reason = _without(key, str(fault))
                raise ProbeError(f"endpoint {endpoint.url}: {reason} ({endpoint.attempts} tries)") from None
            pause = fault.pause
            if pause is None:
                pause = endpoint.pause * 2**attempt * random.uniform(0.75, 1.25)
            stop.wait(min(pause, _LONGEST_PAUSE))
    raise AssertionError("unreachable")


def _request(endpoint: Endpoint, key: str, question: Question, max_new_tokens: int) -> dict[str, Any]:
    body: dict[str, Any] = {"model": endpoint.model, "max_tokens": max_new_tokens, "temperature": 0}
    if endpoint.api == "chat":
        body["messages"] = [{"role": "user", "content": question.content}]
        route = "chat/completions"
    else:
        body["prompt"] = question.content
        route = "completions"
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(
        f"{endpoint.url.rstrip('/')}/{route}",
        orjson.dumps({**body, **endpoint.extra}),
        headers,
        method="POST",
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=endpoint.timeout) as reply:
            data = reply.read()
    except urllib.error.HTTPError as error:
        raise _refusal(endpoint, key, error) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise _PassingError(f"no answer ({reason or type(error).__name__})") from None
    return _parse(data, endpoint.api)


def _refusal(endpoint: Endpoint, key: str, error: urllib.error.HTTPError) -> Exception:
    with error:
        try:
            said = error.read(_ERROR_BYTES).decode("utf-8", errors="replace")
        except (OSError, http.client.HTTPException):
            said = ""
    said = _without(key, " ".join(said.split()))[:200]
    reason = f"status {error.code}{f': {said}' if said else ''}"
    if error.code in _PASSING:
        wish = error.headers.get("Retry-After", "")
        return _PassingError(reason, float(wish) if wish.isascii() and wish.isdigit() else None)
    if error.code in (401, 403):
        reason += f"; the key is read from {endpoint.key_variable}"
    elif 300 <= error.code < 400:
        reason += "; give the address it points to"
    return ProbeError(f"endpoint {endpoint.url}: {reason}")


def _parse(data: bytes, api: str) -> dict[str, Any]:
    try:
        choice = orjson.loads(data)["choices"][0]
        text = choice["message"].get("content") if api == "chat" else choice["text"]
        finish = choice.get("finish_reason")
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError):
        raise _PassingError(f"no answer of this interface ({data[:80]!r})") from None
    if text is not None and not isinstance(text, str):
        raise _PassingError("an answer that is no text")
    return {"response": text or "", "finish": finish}


def _without(key: str, text: str) -> str:
    return text.replace(key, "***") if key else text
