"""Token files read by position: Megatron's .bin/.idx pairs, flat .bin and .npy.

A piece of a file is a byte range; which documents it owns does not depend on how the file is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from coverage_job.corpus.plan import Piece
from coverage_job.errors import BadFileError
from coverage_job.storage import open_input

_NPY: dict[str, Any] = vars(np.lib.format)  # its functions carry no types

READ_BYTES = 4 << 20
_DOCUMENTS = 1 << 16  # of which the index is held at once

# Layout of an index file, little endian: magic, version u64, dtype code u8, sequences u64, documents
# u64, then sizes i32[sequences], byte offsets i64[sequences], and i64[documents] of the first
# sequence of each document, closed by the number of sequences.
_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = 34
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


@dataclass(frozen=True, slots=True)
class Tokens:
    """Documents back to back in `ids` (any integer type).

    positions: of each document, its number (Megatron) or that of its first token (flat files).
    """

    ids: npt.NDArray[Any]
    lengths: list[int]
    positions: list[int]


@dataclass(frozen=True, slots=True)
class TooLong:
    """A document of more than max_record_bytes."""

    position: int


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    try:
        with open_input(path) as file:
            yield file
    except OSError as error:
        raise BadFileError(f"{path}: cannot be read ({error})") from None


def _array(file: Any, path: str, at: int, dtype: Any, count: int) -> npt.NDArray[Any]:
    """`count` numbers from byte `at` on. Raises BadFileError where the file ends before."""
    dtype = np.dtype(dtype)
    file.seek(at)
    size = count * dtype.itemsize
    data = bytearray()
    while len(data) < size:
        more = file.read(size - len(data))
        if not more:
            raise BadFileError(f"{path}: ends early, {size - len(data)} bytes are missing; write it again")
        data += more
    return np.frombuffer(data, dtype)


def _size(file: Any) -> int:
    return int(file.seek(0, 2))


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def megatron(piece: Piece, limit: int) -> Iterator[Tokens | TooLong]:
    """The documents of a piece of a Megatron .bin file, by the .idx file beside it.

    Documents are shared out by number: a piece of a tenth of the bytes owns a tenth of them.
    limit: bytes of a document. Raises BadFileError where the pair is cut or does not fit.
    """
    index = piece.path.removesuffix(".bin") + ".idx"
    with _opened(index) as idx, _opened(piece.path) as data:
        head = idx.read(_HEADER)
        if len(head) < _HEADER or head[:9] != _MAGIC:
            raise BadFileError(f"{index}: not a Megatron index file")
        version = int.from_bytes(head[9:17], "little")
        code = head[17]
        sequences = int.from_bytes(head[18:26], "little")
        borders = int.from_bytes(head[26:34], "little")
        if version != 1 or code not in _DTYPES:
            raise BadFileError(f"{index}: version {version} with number type {code} is not known")
        size_at, place_at = _HEADER, _HEADER + 4 * sequences
        border_at = place_at + 8 * sequences
        if _size(idx) < border_at + 8 * borders:
            raise BadFileError(f"{index}: ends early, the file was cut; write it again")
        dtype = np.dtype(_DTYPES[code])
        total = _size(data)
        documents = max(borders - 1, 0)
        begin = end = 0
        if borders:
            begin, end = (int(_array(idx, index, border_at + 8 * i, "<i8", 1)[0]) for i in (0, documents))
        if (begin, end) != (0, sequences):
            raise BadFileError(
                f"{index}: its documents are sequences {begin:,} to {end:,} of {sequences:,}: "
                "what lies outside would be counted nowhere; write the pair again"
            )
        first, last = 0, documents
        if not piece.whole:
            first = _ceil(piece.start * documents, piece.size)
            last = _ceil(piece.end * documents, piece.size)
        while first < last:
            until = min(first + _DOCUMENTS, last)
            border = _array(idx, index, border_at + 8 * first, "<i8", until - first + 1)
            a, b = int(border[0]), int(border[-1])
            if a < 0 or b > sequences or (np.diff(border) < 0).any():
                raise BadFileError(f"{index}: its document borders are out of order")
            sizes = _array(idx, index, size_at + 4 * a, "<i4", b - a).astype(np.int64)
            places = _array(idx, index, place_at + 8 * a, "<i8", b - a)
            if b > a and (
                sizes.min() < 0 or places.min() < 0 or int((places + sizes * dtype.itemsize).max()) > total
            ):
                raise BadFileError(f"{piece.path}: ends before what {index} says; write the pair again")
            yield from _documents(piece.path, data, dtype, border - a, sizes, places, first, limit)
            first = until


def _documents(
    path: str,
    data: Any,
    dtype: np.dtype[Any],
    border: npt.NDArray[Any],
    sizes: npt.NDArray[Any],
    places: npt.NDArray[Any],
    first: int,
    limit: int,
) -> Iterator[Tokens | TooLong]:
    """Documents whose sequences are border[i]:border[i + 1] of `sizes` and `places`."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    lengths = ends[border[1:]] - ends[border[:-1]]
    count = len(lengths)
    start = 0
    while start < count:
        if lengths[start] * dtype.itemsize > limit:
            yield TooLong(first + start)
            start += 1
            continue
        stop, size = start, 0
        while stop < count and lengths[stop] * dtype.itemsize <= limit:
            size += int(lengths[stop]) * dtype.itemsize
            if stop > start and size > READ_BYTES:
                break
            stop += 1
        a, b = int(border[start]), int(border[stop])
        runs = []
        while a < b:
            # Sequences that follow one another in the file are one read.
            c = a + 1
            while c < b and places[c] == places[c - 1] + sizes[c - 1] * dtype.itemsize:
                c += 1
            runs.append(_array(data, path, int(places[a]), dtype, int(sizes[a:c].sum())))
            a = c
        ids = np.concatenate(runs) if runs else np.empty(0, dtype)
        yield Tokens(ids, lengths[start:stop].tolist(), list(range(first + start, first + stop)))
        start = stop


def npy_header(file: Any, path: str) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """(number type, shape, byte of the first number) of a .npy file. Raises BadFileError."""
    try:
        version = _NPY["read_magic"](file)
        read = _NPY["read_array_header_1_0" if version == (1, 0) else "read_array_header_2_0"]
        shape, fortran, dtype = read(file)
    except (ValueError, EOFError) as error:
        raise BadFileError(f"{path}: not a .npy file ({error})") from None
    if dtype.kind not in "iu" or len(shape) not in (1, 2) or (fortran and len(shape) == 2):
        raise BadFileError(f"{path}: holds no list or rows of whole numbers ({dtype}, shape {shape})")
    return dtype, shape, int(file.tell())


def npy_row_length(path: str) -> int | None:
    """The length of a row of a two-dimensional .npy file; None for a list."""
    with _opened(path) as file:
        shape = npy_header(file, path)[1]
        return shape[1] if len(shape) == 2 else None


def flat(
    piece: Piece, limit: int, kind: str, dtype: str | None, document_end: int | None, length: int | None
) -> Iterator[Tokens | TooLong]:
    """The documents that begin in a piece of a flat file of ids.

    kind: ``bin`` (then `dtype` is its number type, little endian) or ``npy``. A document ends with
    `document_end`, which belongs to it, or has `length` ids; what remains at the end is one too. A
    .npy file of two dimensions has a document in each row where neither is given.
    """
    with _opened(piece.path) as file:
        if kind == "npy":
            number, shape, body = npy_header(file, piece.path)
            count = int(np.prod(shape))
            if len(shape) == 2 and document_end is None:
                length = length or shape[1]
        else:
            number, body = np.dtype(dtype or "uint16").newbyteorder("<"), 0
            count, rest = divmod(_size(file), number.itemsize)
            if rest:
                raise BadFileError(
                    f"{piece.path}: its size is no multiple of {number.itemsize} bytes; "
                    "the file was cut, or `dtype:` is wrong"
                )
        if _size(file) < body + count * number.itemsize:
            raise BadFileError(f"{piece.path}: ends early, the file was cut; write it again")
        first, last = 0, count
        if not piece.whole:
            first = max(_ceil(piece.start - body, number.itemsize), 0)
            last = min(max(_ceil(piece.end - body, number.itemsize), 0), count)
        if document_end is None and not length:
            raise BadFileError(f"{piece.path}: where documents end is not said; set `sequence_length:`")
        ids = _Ids(file, piece.path, body, number, count)
        if document_end is not None:
            yield from _until(ids, document_end, first, last, limit)
        else:
            yield from _of_length(ids, length or 1, first, last, limit)


@dataclass(frozen=True, slots=True)
class _Ids:
    """Random access to a flat file's ids."""

    file: Any
    path: str
    body: int
    dtype: np.dtype[Any]
    count: int

    def read(self, first: int, last: int) -> npt.NDArray[Any]:
        last = min(last, self.count)
        at = self.body + first * self.dtype.itemsize
        return _array(self.file, self.path, at, self.dtype, max(last - first, 0))


def _of_length(ids: _Ids, length: int, first: int, last: int, limit: int) -> Iterator[Tokens | TooLong]:
    document, end = _ceil(first, length), _ceil(last, length)
    step = max(READ_BYTES // (length * ids.dtype.itemsize), 1)
    while document < end:
        if length * ids.dtype.itemsize > limit:
            yield TooLong(document * length)
            document += 1
            continue
        until = min(document + step, end)
        chunk = ids.read(document * length, until * length)
        starts = list(range(document * length, until * length, length))
        lengths = [min(length, ids.count - start) for start in starts]
        yield Tokens(chunk, lengths, starts)
        document = until


def _until(ids: _Ids, mark: int, first: int, last: int, limit: int) -> Iterator[Tokens | TooLong]:
    """Documents that begin in [first, last), each closed by `mark`."""
    step = READ_BYTES // ids.dtype.itemsize
    at = first  # the next id to read
    start = first  # where the current document begins
    if first > 0:
        # The piece's first document begins after the first mark at or after first - 1.
        at, found = first - 1, False
        while at < last - 1 and not found:
            chunk = ids.read(at, min(at + step, last - 1))
            places = np.flatnonzero(chunk == mark)
            found = bool(places.size)
            at += int(places[0]) + 1 if found else len(chunk)
        if not found:
            return
        start = at
    held: list[npt.NDArray[Any]] = []
    over = False
    while start < last and at < ids.count:
        chunk = ids.read(at, at + step)
        stops = at + np.flatnonzero(chunk == mark) + 1  # ends of documents
        # Documents that begin in the piece: all that end before, and the one that reaches across.
        stops = stops[: int(np.searchsorted(stops, last)) + 1]
        begin = at
        if stops.size:
            # The document in progress, then those that lie within the chunk.
            if over or (int(stops[0]) - start) * ids.dtype.itemsize > limit:
                yield TooLong(start)
            else:
                head = np.concatenate([*held, chunk[: int(stops[0]) - at]])
                yield Tokens(head, [len(head)], [start])
            held, over = [], False
            borders = stops.tolist()
            good_from = 0
            for i in range(1, len(borders)):
                if (borders[i] - borders[i - 1]) * ids.dtype.itemsize > limit:
                    yield from _run(chunk, at, borders[good_from:i])
                    yield TooLong(borders[i - 1])
                    good_from = i
            yield from _run(chunk, at, borders[good_from:])
            start = begin = borders[-1]
        if start < last:
            rest = chunk[begin - at :]
            if not over:
                held.append(rest)
                over = sum(map(len, held)) * ids.dtype.itemsize > limit
                if over:
                    held = []
        at += len(chunk)
    if start < last and start < ids.count:
        if over:
            yield TooLong(start)
        else:
            tail = np.concatenate(held)
            yield Tokens(tail, [len(tail)], [start])


def _run(chunk: npt.NDArray[Any], at: int, borders: list[int]) -> Iterator[Tokens]:
    """The documents between neighbouring `borders`, which lie in a chunk that begins at id `at`."""
    if len(borders) > 1:
        lengths = [b - a for a, b in pairwise(borders)]
        yield Tokens(chunk[borders[0] - at : borders[-1] - at], lengths, borders[:-1])
