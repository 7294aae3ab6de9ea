"""How loops over bytes are compiled, and where the compiled code is kept.

numba compiles a function when it is first called and keeps the machine code in a folder beside the
source. Where that folder is read-only (a packed environment, a container) it goes to NUMBA_CACHE_DIR, or to
the user's cache folder, or to a temporary one, in this order. Import this module before decorating.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def cache_folder(purpose: str) -> Path:
    """A writable folder for files that can be made again.

    ``COVERAGE_JOB_CACHE`` where it is set, else the user's cache folder, else a temporary one.
    """
    named = os.environ.get("COVERAGE_JOB_CACHE")
    base = (
        Path(named)
        if named
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coverage_job"
    )
    folder = base / purpose
    if _writable(folder):
        return folder
    folder = Path(tempfile.gettempdir()) / f"coverage_job-{os.getuid()}" / purpose
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if not numba.config.CACHE_DIR and not _writable(Path(__file__).parent / "__pycache__"):
    numba.config.CACHE_DIR = str(cache_folder("numba"))


def compiled(function: Function) -> Function:
    """`function` as machine code, kept between processes; it releases the GIL."""
    made: Function = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return made


def inlined(function: Function) -> Function:
    """A part of compiled functions that a call would slow down: an array travels as seven arguments."""
    made: Function = numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function)
    return made
