"""Imported by the local engine's fork server: what every worker would begin with is done once, before them.

A fork server takes names of modules alone, so the tokenizer comes by an environment variable. Loading a
large one takes a second of CPU; workers that are forked afterwards share it, and its memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import coverage_job.counting.task  # noqa: F401
from coverage_job.tokenizer.load import TokenizerSpec, load

_VARIABLE = "COVERAGE_JOB_PRELOAD_TOKENIZER"


@contextmanager
def announced(tokenizer: TokenizerSpec | None) -> Iterator[None]:
    """A process that is started meanwhile loads the tokenizer when it imports this module."""
    if tokenizer is None:
        yield
        return
    os.environ[_VARIABLE] = tokenizer.to_json()
    try:
        yield
    finally:
        del os.environ[_VARIABLE]


if _VARIABLE in os.environ:
    # Whatever is wrong, the worker that needs the tokenizer meets it too, and says so.
    with suppress(Exception):
        load(TokenizerSpec.from_json(os.environ.pop(_VARIABLE)))
