"""Byte ranges of files, local or on any fsspec path, and how many bytes were read.

A checkpoint of terabytes costs only its two matrices, so nothing here reads a file to its end.
"""

from __future__ import annotations

import contextlib
import os
import threading

import numpy as np
import numpy.typing as npt

from coverage_job.errors import CheckpointError
from coverage_job.storage import is_local, split_url, with_retries

UInt8 = npt.NDArray[np.uint8]


class Files:
    """Ranges of files by path, counted. Safe to use from several threads.

    bytes_read: bytes fetched so far, headers and indexes included.
    """

    def __init__(self) -> None:
        self.bytes_read = 0
        self._lock = threading.Lock()
        self._open: dict[str, int] = {}

    def size(self, path: str) -> int:
        """Bytes of a file. Raises CheckpointError where it cannot be seen."""
        fs, plain = split_url(path)
        try:
            return int(fs.size(plain))
        except Exception as error:  # stores raise kinds of their own
            raise _unreadable(path, error) from None

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Bytes offset .. offset + length. Raises CheckpointError where there are fewer."""
        buffer = np.empty(length, dtype=np.uint8)
        self.read_into(path, offset, buffer)
        return buffer.tobytes()

    def read_into(self, path: str, offset: int, out: UInt8) -> None:
        """Fill `out` (contiguous uint8) from `offset` on."""
        got = 0
        try:
            if is_local(path):
                got = self._pread(path, offset, out)
            elif len(out):
                fs, plain = split_url(path)
                data: bytes = with_retries(
                    lambda: fs.cat_file(plain, start=offset, end=offset + len(out)), path
                )
                got = len(data)
                if got == len(out):
                    out[:] = np.frombuffer(data, dtype=np.uint8)
        except Exception as error:
            raise _unreadable(path, error) from None
        if got != len(out):
            raise CheckpointError(
                f"checkpoint {path}: {got} bytes came from offset {offset} where {len(out)} were asked for; "
                "the file is cut off, or its store does not serve ranges: copy it again"
            )
        with self._lock:
            self.bytes_read += got

    def _pread(self, path: str, offset: int, out: UInt8) -> int:
        # A plain pread: a memory map would count every page it touched as ours, however large the matrix.
        with self._lock:
            descriptor = self._open.get(path)
            if descriptor is None:
                _, plain = split_url(path)
                descriptor = self._open[path] = os.open(plain, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        view, got = memoryview(out.data), 0
        while got < len(view):
            # Linux moves at most 2 GiB a call.
            count = os.preadv(descriptor, [view[got : got + (1 << 30)]], offset + got)
            if count == 0:
                break
            got += count
        return got

    def close(self) -> None:
        for descriptor in self._open.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._open.clear()

    def __del__(self) -> None:
        self.close()


class RangeFile:
    """A seekable read-only file over `Files`, for readers that want one (zipfile)."""

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, path
        self._size, self._at = files.size(path), 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        if self._at < 0:
            raise OSError("seek before the start of the file")
        return self._at

    def read(self, count: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        count = left if count < 0 else min(count, left)
        data = self._files.read(self._path, self._at, count)
        self._at += count
        return data


def listing(folder: str) -> list[str]:
    """Names of a folder's files, subfolders included, sorted, relative to it."""
    fs, plain = split_url(folder)
    root = plain.rstrip("/") + "/"
    try:
        return sorted(str(p)[len(root) :] for p in fs.find(plain) if str(p).startswith(root))
    except Exception as error:
        raise _unreadable(folder, error) from None


def is_folder(path: str) -> bool:
    """Whether a path is a folder. Raises CheckpointError where nothing is there."""
    fs, plain = split_url(path)
    try:
        if fs.isdir(plain):
            return True
        if fs.exists(plain):
            return False
    except Exception as error:
        raise _unreadable(path, error) from None
    raise CheckpointError(f"checkpoint {path}: no such file or folder")


def _unreadable(path: str, error: Exception) -> CheckpointError:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return CheckpointError(f"checkpoint {path}: cannot be read ({reason})")
