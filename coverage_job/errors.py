"""What can go wrong, as types.

Every error that a user can mend derives from `CoverageJobError` and carries one line that names
the key, file or record and the way out. `cli.py` prints that line and exits 2; anything else is a
fault of ours and exits 3 with its traceback in a log file.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class CoverageJobError(Exception):
    """Base of all errors that a user can mend (exit code 2)."""


class JobError(CoverageJobError):
    """The job file or the arguments are wrong: an unknown key, a value out of range, a missing option."""


class TokenizerError(CoverageJobError):
    """The tokenizer cannot be loaded, or is not the kind that is needed."""


class CorpusError(CoverageJobError):
    """A corpus as a whole cannot be used: no file matches, a field is missing, too many bad records."""


class BadFileError(CorpusError):
    """A file ends early or is not what its name says; never counted as complete."""


class TokenIdError(CorpusError):
    """A token corpus holds an id outside the vocabulary's matrix."""


class StorageError(CoverageJobError):
    """A path cannot be read or written, or already exists."""


class RunDirectoryError(StorageError):
    """A run directory is not whole: no `run.json`, or a file that does not match it."""


class EngineError(CoverageJobError):
    """The engine asked for is not available, or the executors do not fit the driver."""


class CheckpointError(CoverageJobError):
    """A checkpoint's matrices cannot be found, read or matched."""


class RemedyError(CoverageJobError):
    """A remedy cannot keep its promise within the limits given."""


class ProbeError(CoverageJobError):
    """A probe's model, endpoint or responses cannot be used."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """What an unknown name may have been meant to be, as a message's end; '' where nothing is near.

    >>> did_you_mean("minimun", ["critical", "minimum"]), did_you_mean("x", ["critical"])
    (' (did you mean minimum?)', '')
    """
    by_lower = {k.lower(): k for k in known}
    near = get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.6)
    return f" (did you mean {by_lower[near[0]]}?)" if near else ""
