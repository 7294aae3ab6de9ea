"""The elements of a JSON array, or JSON values one after another, streamed without holding the file.

Only the structure is followed here (strings, brackets, commas); whether an element is valid JSON is
for the parser of that element, so that a bad one costs one record and not the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from coverage_job.corpus.lines import BOM, FIRST_BYTES, Oversized
from coverage_job.errors import BadFileError

_STRUCTURE = re.compile(rb'["\[\]{},]')
_BACKSLASH = 0x5C


class _Element:
    """The bytes of the element being read, bounded."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.parts: list[bytes] = []
        self.size = 0
        self.over: Oversized | None = None

    def add(self, data: bytes) -> None:
        if self.over is not None:
            return
        if not self.size:
            data = data.lstrip()
        self.size += len(data)
        self.parts.append(data)
        # A little more than the limit, for the white space that is dropped at the end.
        if self.size > self.limit + 4096:
            self.over = Oversized(b"".join(self.parts)[:FIRST_BYTES])
            self.parts = []

    def take(self) -> bytes | Oversized:
        data = b"".join(self.parts).rstrip() if self.over is None else self.over
        if isinstance(data, bytes) and len(data) > self.limit:
            data = Oversized(data[:FIRST_BYTES])
        self.parts, self.size, self.over = [], 0, None
        return data


def json_values(chunks: Iterator[bytes], path: str, limit: int) -> Iterator[bytes | Oversized]:
    """Each element of a file's array; without an array, each of the objects that follow one another.

    limit: bytes an element may have. Raises BadFileError where the file ends before its array or
    last object does, or is neither.
    """
    chunks = _after_start(chunks, path)
    opening = next(chunks)
    array = opening == b"["
    element = _Element(limit)
    depth = 0
    in_string = False
    odd = 0  # parity of the backslashes that end the part of a string read so far
    closed = False
    some = False
    for chunk in chunks:
        at = begin = 0
        while not closed:
            if in_string:
                quote = chunk.find(b'"', at)
                end = quote if quote >= 0 else len(chunk)
                back = end - 1
                while back >= 0 and chunk[back] == _BACKSLASH:
                    back -= 1
                run = end - 1 - back + (odd if back < 0 else 0)
                if quote < 0:
                    odd = run % 2
                    break
                at = quote + 1
                in_string = run % 2 == 1
                odd = 0
                continue
            match = _STRUCTURE.search(chunk, at)
            if match is None:
                break
            place, sign = match.start(), match[0]
            at = place + 1
            if sign == b'"':
                in_string, odd = True, 0
            elif sign in b"[{":
                depth += 1
            elif sign == b",":
                if depth == 0 and array:
                    element.add(chunk[begin:place])
                    begin, some = at, True
                    yield element.take()
            elif depth == 0:
                if sign != b"]" or not array:
                    raise BadFileError(f"{path}: not a JSON array: a bracket closes that none opened")
                element.add(chunk[begin:place])
                last = element.take()
                if some or last:
                    yield last
                begin, closed = at, True
            else:
                depth -= 1
                if depth == 0 and not array:
                    element.add(chunk[begin:at])
                    begin = at
                    yield element.take()
        element.add(chunk[begin:])
        if closed and element.size:
            raise BadFileError(f"{path}: more follows the end of its JSON array; is this JSONL?")
    if array and not closed:
        raise BadFileError(f"{path}: ends before its JSON array does, the file was cut; write it again")
    if element.size:
        raise BadFileError(f"{path}: ends inside a JSON value, the file was cut; write it again")


def _after_start(chunks: Iterator[bytes], path: str) -> Iterator[bytes]:
    """First the byte that tells what the file is, ``[`` or ``{``; then what follows ``[``, or all."""
    head = b""
    for chunk in chunks:
        head += chunk
        text = head.removeprefix(BOM).lstrip()
        if BOM.startswith(head) or not text:
            continue
        if text[:1] not in (b"[", b"{"):
            raise BadFileError(f"{path}: begins with {text[:20]!r}: neither a JSON array nor JSON objects")
        yield text[:1]
        yield text[1:] if text.startswith(b"[") else text
        break
    else:
        if head.removeprefix(BOM).strip():
            raise BadFileError(f"{path}: neither a JSON array nor JSON objects")
        yield b"{"  # nothing but white space: no record
        return
    yield from chunks
