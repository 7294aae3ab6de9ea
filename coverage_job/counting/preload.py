"""What every worker process begins with, loaded before its first task: a tokenizer and its kernel.

For a large one that is two seconds of CPU. The local engine's fork server imports this module and does it
once; the workers it forks share what was loaded, and its memory. It takes names of modules alone, so what
is to be loaded comes by an environment variable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from coverage_job.config import RankFile
from coverage_job.counting.kept_cuts import kept
from coverage_job.counting.task import kernel_of
from coverage_job.tokenizer.load import describe

_VARIABLE = "COVERAGE_JOB_PRELOAD"
# Linux starts no process with a variable of 128 KiB; a rank file's special tokens may be that many.
_LONGEST = 100_000


@contextmanager
def announced(tokenizer: str | RankFile, cache_mib: int | None) -> Iterator[None]:
    """A process that is started meanwhile loads these when it imports this module.

    tokenizer: as a job names it. cache_mib: of its fast kernel; None where the reference counts.
    """
    rank_file = tokenizer.model_dump() if isinstance(tokenizer, RankFile) else None
    text = json.dumps([rank_file or tokenizer, cache_mib])
    if len(text) <= _LONGEST:
        os.environ[_VARIABLE] = text
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)


def preload(tokenizer: str | RankFile, cache_mib: int | None) -> None:
    """Load what tasks of this process will ask for, where that can be loaded; arguments as of `announced`."""
    # Whatever is wrong, the task that needs the tokenizer meets it too, and says so. BaseException: a panic
    # inside tokenizers is none of Exception, and would end the process.
    with suppress(BaseException):
        spec = describe(tokenizer)
        # Before the first run of a tokenizer there are no cuts; workers then make kernels of the task's.
        cuts = None if cache_mib is None else kept(spec)
        kernel_of(spec, cuts or b"", cache_mib or 0)


if _VARIABLE in os.environ:
    _source, _cache_mib = json.loads(os.environ.pop(_VARIABLE))
    preload(_source if isinstance(_source, str) else RankFile(**_source), _cache_mib)
