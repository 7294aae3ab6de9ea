"""Lines of a byte stream, bounded: a line past the limit is skipped while streaming.

Lines end at the newline byte and nowhere else. A line belongs to the byte range in which it begins,
so that ranges which meet share no line and lose none, wherever they are cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

FIRST_BYTES = 80
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Oversized:
    """Stands for a line longer than the limit."""

    first_bytes: bytes

    def __len__(self) -> int:
        return 0


def owned(chunks: Iterator[bytes], start: int, end: int, limit: int) -> Iterator[bytes]:
    """The bytes of the lines that begin in [start, end).

    chunks: the file from byte start - 1 on (from 0 where start is 0). Past `end`, at most `limit`
    bytes more are read to find the last line's end.
    """
    position = max(start - 1, 0)
    inside = start == 0
    for chunk in chunks:
        if not inside:
            newline = chunk.find(b"\n")
            if newline < 0 or position + newline + 1 >= end:
                position += len(chunk)
                if newline >= 0 or position >= end:
                    return
                continue
            inside = True
            position += newline + 1
            chunk = chunk[newline + 1 :]
        last = end - 1 - position
        if last < len(chunk):
            newline = chunk.find(b"\n", max(last, 0))
            if newline >= 0:
                yield chunk[: newline + 1]
                return
            if -last > limit + len(BOM):
                yield chunk
                return
        position += len(chunk)
        if chunk:
            yield chunk


def line_blocks(
    chunks: Iterator[bytes], limit: int, *, first: bool = True
) -> Iterator[list[bytes | Oversized]]:
    """Lists of whole lines, without their newline byte.

    limit: bytes a line may have. first: whether the stream begins at the start of its file, where a
    UTF-8 BOM is dropped.
    """
    parts: list[bytes] = []
    size = 0
    skipping: Oversized | None = None
    for chunk in chunks:
        newline = chunk.find(b"\n")
        if newline < 0:
            if skipping is None:
                parts.append(chunk)
                size += len(chunk)
                if size > limit + len(BOM):
                    skipping = Oversized(b"".join(parts)[:FIRST_BYTES])
                    parts, size = [], 0
            continue
        lines: list[bytes | Oversized]
        if skipping is not None:
            lines = [skipping]
            chunk = chunk[newline + 1 :]
            skipping = None
        else:
            lines = []
            if parts:
                parts.append(chunk)
                chunk = b"".join(parts)
        cut = chunk.rfind(b"\n")
        if cut >= 0:
            lines.extend(chunk[:cut].split(b"\n"))
            chunk = chunk[cut + 1 :]
        parts, size = ([chunk], len(chunk)) if chunk else ([], 0)
        yield _bounded(lines, limit, first)
        first = False
    if skipping is not None:
        yield [skipping]
    elif parts:
        yield _bounded([b"".join(parts)], limit, first)


def _bounded(lines: list[bytes | Oversized], limit: int, first: bool) -> list[bytes | Oversized]:
    if first and isinstance(lines[0], bytes) and lines[0].startswith(BOM):
        lines[0] = lines[0][len(BOM) :]
    if sum(map(len, lines)) > limit and max(map(len, lines)) > limit:
        return [
            Oversized(line[:FIRST_BYTES]) if isinstance(line, bytes) and len(line) > limit else line
            for line in lines
        ]
    return lines
