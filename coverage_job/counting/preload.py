"""Imported by the local engine's fork server: what every worker would begin with is done once, before them.

A fork server takes names of modules alone, so what is to be loaded comes by an environment variable. A
large tokenizer and its kernel take two seconds of CPU; workers that are forked afterwards share them, and
their memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pydantic import TypeAdapter

from coverage_job.config import RankFile
from coverage_job.counting.kept_cuts import kept
from coverage_job.counting.task import kernel_of
from coverage_job.tokenizer.load import describe

_VARIABLE = "COVERAGE_JOB_PRELOAD"
_TOKENIZER: TypeAdapter[str | RankFile] = TypeAdapter(str | RankFile)


@contextmanager
def announced(tokenizer: str | RankFile, cache_mib: int) -> Iterator[None]:
    """A process that is started meanwhile loads the tokenizer and its kernel when it imports this module."""
    os.environ[_VARIABLE] = json.dumps([_TOKENIZER.dump_python(tokenizer, mode="json"), cache_mib])
    try:
        yield
    finally:
        del os.environ[_VARIABLE]


def _load(tokenizer: Any, cache_mib: int) -> None:
    spec = describe(_TOKENIZER.validate_python(tokenizer))
    # Before the first run of a tokenizer there are no cuts; workers then make their kernels of the task's.
    kernel_of(spec, kept(spec) or b"", cache_mib)


if _VARIABLE in os.environ:
    # Whatever is wrong, the worker that needs the tokenizer meets it too, and says so.
    with suppress(Exception):
        _load(*json.loads(os.environ.pop(_VARIABLE)))
