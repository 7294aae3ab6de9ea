"""Where things that can be made again are kept between runs."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """A folder to write to, made where it is missing.

    It is `$COVERAGE_JOB_CACHE`, else the user's cache folder; where that cannot be written to (a container's
    read-only home), a folder of this user's own under the temporary one.
    """
    if own := os.environ.get("COVERAGE_JOB_CACHE"):
        wanted = Path(own)
    elif sys.platform == "win32":
        wanted = Path(os.environ.get("LOCALAPPDATA", tempfile.gettempdir())) / "coverage-job"
    else:
        wanted = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "coverage-job"
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted):
            return wanted
    except OSError:
        owner = os.getuid() if hasattr(os, "getuid") else "user"
        fallback = Path(tempfile.gettempdir()) / f"coverage-job-{owner}"
        fallback.mkdir(mode=0o700, exist_ok=True)
        return fallback
