"""Bytes of a file, decompressed while streaming; a file that ends early is an error, never a short file."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Iterator
from typing import Any, Protocol

import zstandard

from coverage_job.errors import BadFileError
from coverage_job.storage import open_input

CHUNK = 1 << 20
_OUT = 1 << 20
# A zstd block of 4 bytes can stand for 128 KiB, and its decompressor gives out all it can: small
# inputs keep a hostile file from filling memory in one step (256 MiB at worst).
_ZSTD_IN = 1 << 13
_XZ_MEMORY = 1 << 28

CODECS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".xz": "xz"}

_MAGIC = {
    b"\x1f\x8b": "gzip (.gz)",
    b"\x28\xb5\x2f\xfd": "zstd (.zst)",
    b"BZh": "bzip2 (.bz2)",
    b"\xfd7zXZ\x00": "xz (.xz)",
    b"PAR1": "Parquet (.parquet)",
    b"ARROW1": "Arrow (.arrow)",
}


def codec_of(path: str) -> str | None:
    """The compression that a file's name tells, or None.

    >>> codec_of("a/b.jsonl.zst"), codec_of("a/b.jsonl")
    ('zstd', None)
    """
    return next((codec for suffix, codec in CODECS.items() if path.lower().endswith(suffix)), None)


class _Member(Protocol):
    """One compressed stream within a file: gzip and zstd files may hold several."""

    eof: bool
    rest: bytes

    def feed(self, data: bytes) -> Iterator[bytes]: ...


class _Gzip:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self.eof = False
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        while True:
            out = self._inner.decompress(data, _OUT)
            if out:
                yield out
            if self._inner.eof:
                self.eof, self.rest = True, self._inner.unused_data
                return
            data = self._inner.unconsumed_tail
            if not data and not out:
                return


class _Buffered:
    """bz2 and lzma, which keep input that did not fit the output."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.eof = False
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        while True:
            out = self._inner.decompress(data, _OUT)
            if out:
                yield out
            if self._inner.eof:
                self.eof, self.rest = True, self._inner.unused_data
                return
            if self._inner.needs_input:
                return
            data = b""


class _Zstd:
    def __init__(self) -> None:
        self._inner = zstandard.ZstdDecompressor().decompressobj()
        self.eof = False
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        view = memoryview(data)
        for at in range(0, len(data), _ZSTD_IN):
            out = self._inner.decompress(view[at : at + _ZSTD_IN])
            if out:
                yield out
            if self._inner.eof:
                self.eof, self.rest = True, self._inner.unused_data + data[at + _ZSTD_IN :]
                return


def _member(codec: str) -> _Member:
    if codec == "gzip":
        return _Gzip()
    if codec == "bz2":
        return _Buffered(bz2.BZ2Decompressor())
    if codec == "xz":
        return _Buffered(lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY))
    return _Zstd()


def decompress(source: Iterator[bytes], codec: str, path: str) -> Iterator[bytes]:
    """The content of a compressed file, all its members one after another.

    Raises BadFileError naming `path` where the last member is cut, a checksum fails, or bytes follow
    that are no member (gzip and xz files may be padded with zeros).
    """
    member: _Member | None = None
    whole = False
    try:
        for data in source:
            while data:
                if member is None:
                    if whole and codec in ("gzip", "xz"):
                        data = data.lstrip(b"\0")
                        if not data:
                            break
                    member = _member(codec)
                yield from member.feed(data)
                data = member.rest if member.eof else b""
                if member.eof:
                    member, whole = None, True
    except (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError, ValueError) as error:
        raise BadFileError(
            f"{path}: not a valid {codec} file past this point ({error}); write the file again"
        ) from None
    if member is not None or not whole:
        raise BadFileError(f"{path}: the {codec} data ends early, the file was cut; write the file again")


def raw_chunks(path: str, start: int = 0) -> Iterator[bytes]:
    """A file's own bytes from `start` on, in chunks. Raises BadFileError where it cannot be read."""
    try:
        with open_input(path) as file:
            if start:
                file.seek(start)
            while chunk := file.read(CHUNK):
                yield chunk
    except (OSError, ValueError, ImportError) as error:
        raise BadFileError(f"{path}: cannot be read ({error})") from None


def chunks(path: str, start: int = 0) -> Iterator[bytes]:
    """A file's content from `start` on (0 for a compressed one), decompressed by its name.

    Raises BadFileError where a plain file is another kind by its first bytes.
    """
    codec = codec_of(path)
    source = raw_chunks(path, start)
    if codec is not None:
        yield from decompress(source, codec, path)
        return
    first = start == 0
    for chunk in source:
        if first:
            first = False
            for magic, kind in _MAGIC.items():
                if chunk.startswith(magic):
                    raise BadFileError(f"{path}: by its first bytes this is {kind}; rename it so")
        yield chunk
