"""Content keys: what tells two states of a file apart without reading all of it."""

from __future__ import annotations

import hashlib
from typing import Literal

from coverage_job.corpus.plan import FileInfo
from coverage_job.storage import is_local, read_range

_MiB = 1 << 20


def content_key(info: FileInfo, verify: Literal["quick", "full"]) -> str:
    """32 hex digits that change with the file's content.

    Of the object's etag or version and its size, where the store has one; else of size, time of the
    last change in nanoseconds, and the sha256 of the first, middle and last MiB. `full` hashes all of
    a local file, and of one without a version. The path is part of the key.
    """
    digest = hashlib.sha256(f"{info.path}\n{info.size}\n".encode())
    versioned = bool(info.version) and not is_local(info.path)
    if versioned:
        digest.update(f"version {info.version}".encode())
    elif verify == "full":
        for start in range(0, info.size, _MiB):
            digest.update(read_range(info.path, start, min(start + _MiB, info.size)))
    else:
        digest.update(f"changed {info.version}".encode())
        middle = max(info.size // 2 - _MiB // 2, 0)
        for start in sorted({0, middle, max(info.size - _MiB, 0)}):
            digest.update(read_range(info.path, start, min(start + _MiB, info.size)))
    return digest.hexdigest()[:32]
