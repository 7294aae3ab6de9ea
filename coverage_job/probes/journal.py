"""Answers kept as they come, so that a run that was stopped goes on where it was.

A JSONL file: the first line says what was asked of whom, each further line is one answer, keyed by
`prompt_id`. A line is written whole and flushed to the disk before the next is begun; a torn last line is
what a crash left of an answer, and is asked again.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from coverage_job.errors import ProbeError


def fingerprint(texts: Sequence[str]) -> str:
    """One hash of what is asked, so that answers to other prompts are not taken for these."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", errors="surrogatepass")
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


class Journal:
    """The answers of one run; `append` may be called from several threads."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        """Open a journal, or go on with one that has the same header.

        Raises ProbeError where the file is the journal of another run, or no journal.
        """
        self.path = path
        self._lock = threading.Lock()
        self.answers: dict[str, dict[str, Any]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._resume(header)
            self._file = open(path, "ab")  # noqa: SIM115 - held while the run lasts
            if self._file.tell() == 0:
                self._write({"journal": 1, **header})
        except OSError as error:
            raise ProbeError(f"{path}: cannot be used ({error.strerror}); name another folder") from None

    def _resume(self, header: dict[str, Any]) -> None:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        lines = data[:whole].split(b"\n")[:-1]
        try:
            records = [orjson.loads(line) for line in lines]
            if records and {"journal": 1, **header} != records[0]:
                raise ProbeError(
                    f"{self.path}: answers of another run (another model or other prompts); "
                    "name another folder, or remove the file"
                )
            self.answers = {record["prompt_id"]: record for record in records[1:]}
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise ProbeError(f"{self.path}: no journal of answers; name another folder") from None
        if whole < len(data):
            with open(self.path, "r+b") as file:
                file.truncate(whole)

    def append(self, record: dict[str, Any]) -> None:
        """Keep one answer. Raises ValueError where its prompt is answered already."""
        with self._lock:
            if record["prompt_id"] in self.answers:
                raise ValueError(f"{record['prompt_id']} is answered already")
            self._write(record)
            self.answers[record["prompt_id"]] = record

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(orjson.dumps(record) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def parse_responses(data: bytes, name: str = "responses") -> dict[str, str]:
    """prompt_id -> response of a JSONL file of answers, a journal or the user's own.

    Raises ProbeError naming the line, also where a prompt is answered twice.
    """
    responses: dict[str, str] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ProbeError(f"{where}: no valid JSON ({error})") from None
        if isinstance(record, dict) and "journal" in record:
            continue
        if not isinstance(record, dict) or not isinstance(record.get("prompt_id"), str):
            raise ProbeError(f"{where}: write an object with `prompt_id` and `response`")
        response = record.get("response", "")
        if response is not None and not isinstance(response, str):
            raise ProbeError(f"{where}: `response` is no text")
        if record["prompt_id"] in responses:
            raise ProbeError(f"{where}: prompt {record['prompt_id']} is answered twice")
        responses[record["prompt_id"]] = response or ""
    return responses
