"""Lines end at the newline byte alone, are bounded, and belong to the range they begin in."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coverage_job.corpus.lines import BOM, Oversized, line_blocks, owned

BYTES = st.lists(
    st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"\n\n", "\u2028\u0085é".encode(), b"xyz", b"\xef\xbb\xbf"])
).map(b"".join)


def chunked(data: bytes, size: int) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


def reference(data: bytes, limit: int) -> list[bytes | Oversized]:
    lines = data.removeprefix(BOM).split(b"\n")
    if data.endswith(b"\n") or not data:
        lines.pop()
    return [Oversized(b"") if len(line) > limit else line for line in lines]


def forget(lines: list[bytes | Oversized]) -> list[bytes | Oversized]:
    return [Oversized(b"") if isinstance(line, Oversized) else line for line in lines]


@given(BYTES, st.integers(1, 9), st.integers(0, 12))
def test_lines_are_what_split_gives_whatever_the_chunks(data: bytes, size: int, limit: int) -> None:
    found = [line for block in line_blocks(chunked(data, size), limit) for line in block]
    expected = reference(data, limit)
    if data == BOM:
        expected = [b""]  # a blank line, which is no record
    assert forget(found) == expected


@given(BYTES, st.lists(st.integers(0, 40), max_size=6), st.integers(1, 9), st.integers(1, 12))
def test_ranges_that_meet_share_and_lose_no_line(data: bytes, cuts: list[int], size: int, limit: int) -> None:
    borders = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    found: list[bytes | Oversized] = []
    for start, end in pairwise(borders):
        chunks = chunked(data[max(start - 1, 0) :], size)
        for block in line_blocks(owned(chunks, start, end, limit), limit, first=start == 0):
            found += block
    expected = [line for block in line_blocks(chunked(data, 1 << 20), limit) for line in block]
    assert forget(found) == forget(expected)


def test_a_long_line_is_skipped_and_the_next_is_read() -> None:
    source = (b"x" * 1000 for _ in range(1000))

    def chunks() -> Iterator[bytes]:
        yield b"first\n"
        yield from source
        yield b"\nlast\n"

    lines = [line for block in line_blocks(chunks(), 5000) for line in block]
    assert lines == [b"first", Oversized(b"x" * 80), b"last"]
