"""How loops over bytes are compiled, and where the compiled code is kept.

numba compiles a function when it is first called and keeps the machine code in a folder beside the
source, or in NUMBA_CACHE_DIR where that is set. Where the folder is read-only (a packed environment, a
container) the machine code goes to `cache_folder()`, which ends at a temporary one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numba
import numpy as np

from coverage_job.cache import cache_folder

Function = TypeVar("Function", bound=Callable[..., object])


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


if not numba.config.CACHE_DIR and not _writable(Path(__file__).parent / "__pycache__"):
    numba.config.CACHE_DIR = str(cache_folder() / "numba")


def compiled(function: Function) -> Function:
    """`function` as machine code, kept between processes; it releases the GIL."""
    made: Function = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return made


def inlined(function: Function) -> Function:
    """A part of compiled functions that a call would slow down: an array travels as seven arguments."""
    made: Function = numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function)
    return made


@inlined
def get(array, at):  # type: ignore[no-untyped-def]
    """array[at], where `at` is known not to be negative: a signed index is else tested for it each time."""
    return array[np.uint64(at)]


@inlined
def get_from(array, row, column):  # type: ignore[no-untyped-def]
    """array[row, column], as `get`."""
    return array[np.uint64(row), np.uint64(column)]


@inlined
def put(array, at, value):  # type: ignore[no-untyped-def]
    """array[at] = value, where `at` is known not to be negative."""
    array[np.uint64(at)] = value


@inlined
def put_to(array, row, column, value):  # type: ignore[no-untyped-def]
    """array[row, column] = value, as `put`."""
    array[np.uint64(row), np.uint64(column)] = value
