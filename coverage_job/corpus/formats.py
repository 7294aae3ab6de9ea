"""Records of every record format, one file or byte range at a time.

Positions are what a person can look up: the line (from 1) in formats of lines, the row or element
(from 0) elsewhere.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from coverage_job.corpus import streams
from coverage_job.corpus.json_values import json_values
from coverage_job.corpus.lines import FIRST_BYTES, Oversized, line_blocks, owned
from coverage_job.corpus.plan import Piece
from coverage_job.corpus.shapes import RecordError
from coverage_job.errors import BadFileError
from coverage_job.storage import open_input

# Rows of one Arrow batch are decoded at once: few enough for a run of rows far above the average.
ROW_BATCH_BYTES = 1 << 20
ROW_BATCH_ROWS = 1024

TOO_LONG = "too long: more bytes than max_record_bytes"

csv.field_size_limit(sys.maxsize)  # records are bounded here, by bytes


@dataclass(frozen=True, slots=True)
class Row:
    """A record, or the fault that keeps it from being one.

    position: its place in the piece. value: its fields, or the fault. raw: its first bytes, where known.
    """

    position: int
    value: dict[str, Any] | RecordError
    raw: bytes | None


def piece_lines(piece: Piece, limit: int) -> Iterator[list[bytes | Oversized]]:
    """The lines that begin in a piece, in blocks, decompressed. Raises BadFileError."""
    if streams.codec_of(piece.path) is not None:
        return line_blocks(streams.chunks(piece.path), limit)
    start = max(piece.start - 1, 0)
    source = _no_shorter(streams.chunks(piece.path, start), piece, start)
    if piece.whole:
        return line_blocks(source, limit)
    return line_blocks(owned(source, piece.start, piece.end, limit), limit, first=piece.start == 0)


def _no_shorter(chunks: Iterator[bytes], piece: Piece, position: int) -> Iterator[bytes]:
    """The chunks of a plain file, which must reach the piece's end."""
    for chunk in chunks:
        position += len(chunk)
        yield chunk
    if position < piece.end:
        raise BadFileError(
            f"{piece.path}: has {position:,} bytes, {piece.size:,} when the run began; run again"
        )


def parse_line(line: bytes | Oversized) -> dict[str, Any] | RecordError | None:
    """A JSON line's fields, its fault, or None for a blank line."""
    if isinstance(line, Oversized):
        return RecordError(TOO_LONG)
    try:
        value = orjson.loads(line)
    except ValueError as error:
        return None if not line.strip() else json_fault(line, error)
    return value if isinstance(value, dict) else RecordError("wrong type: the record is no JSON object")


def json_fault(data: bytes, error: ValueError) -> RecordError:
    """Why orjson refused `data`."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as fault:
        return RecordError(f"not UTF-8: byte {fault.start} of the record")
    message = str(error)
    if "surrogate" in message:
        return RecordError("lone surrogate: a \\ud800-\\udfff escape without its other half")
    return RecordError(f"not JSON: {message}")


def jsonl_rows(blocks: Iterator[list[bytes | Oversized]]) -> Iterator[Row]:
    """Rows of JSON lines; blank lines take a position and are no record."""
    position = 0
    for lines in blocks:
        for line in lines:
            position += 1
            value = parse_line(line)
            if value is not None:
                raw = line.first_bytes if isinstance(line, Oversized) else line
                yield Row(position, value, raw)


def json_rows(path: str, limit: int) -> Iterator[Row]:
    """Rows of a JSON array, or of objects one after another."""
    for position, data in enumerate(json_values(streams.chunks(path), path, limit)):
        if isinstance(data, Oversized):
            yield Row(position, RecordError(TOO_LONG), data.first_bytes)
            continue
        value = parse_line(data)
        yield Row(position, RecordError("not JSON: empty element") if value is None else value, data)


class _TooLongError(Exception):
    pass


class _CsvLines:
    """Text lines for the csv module, which asks for as many as a record has."""

    def __init__(self, blocks: Iterator[list[bytes | Oversized]], limit: int) -> None:
        self._lines = (line for block in blocks for line in block)
        self._limit = limit
        self.begin()

    def begin(self) -> None:
        self.size = 0
        self.first = b""
        self.torn = False

    def __iter__(self) -> _CsvLines:
        return self

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            self.torn = self.size > 0  # the file ended inside a quoted field
            raise StopIteration
        if isinstance(line, Oversized):
            self.first = self.first or line.first_bytes
            raise _TooLongError
        self.first = self.first or line[:FIRST_BYTES]
        self.size += len(line) + 1
        self._odd = (line.count(b'"') + (self._odd if self.size > len(line) + 1 else 0)) % 2
        if self.size - 1 > self._limit:
            # Past the limit inside quotes: the record ends where they close.
            while self._odd:
                more = next(self._lines, None)
                if more is None or isinstance(more, Oversized):
                    break
                self._odd = (self._odd + more.count(b'"')) % 2
            raise _TooLongError
        # What is no UTF-8 comes through as surrogates, and is found in the cell it stands in.
        return line.decode("utf-8", "surrogateescape") + "\n"

    _odd = 0


def csv_rows(path: str, limit: int, delimiter: str) -> Iterator[Row]:
    """Rows of a CSV or TSV file with a header; quoted fields may hold newlines."""
    lines = _CsvLines(line_blocks(streams.chunks(path), limit), limit)
    reader = csv.reader(lines, delimiter=delimiter)
    header: list[str] | None = None
    position = -1
    while True:
        lines.begin()
        fault: RecordError | None = None
        cells: list[str] = []
        try:
            cells = next(reader)
        except StopIteration:
            return
        except _TooLongError:
            fault = RecordError(TOO_LONG)
        except csv.Error as error:
            fault = RecordError(f"not CSV: {error}")
        if fault is None and not cells:
            continue  # a blank line
        if header is None:
            if fault is not None:
                raise BadFileError(f"{path}: the header line cannot be read ({fault.reason})")
            twice = [name for name, times in Counter(cells).items() if times > 1]
            if twice:
                raise BadFileError(
                    f"{path}: line 1: the header names {twice[0]!r} twice; give each column a name of its own"
                )
            header = cells
            continue
        position += 1
        if fault is None and lines.torn:
            fault = RecordError("not CSV: the file ends inside a quoted field")
        if fault is None and len(cells) != len(header):
            fault = RecordError(f"not CSV: {len(cells)} fields, the header has {len(header)}")
        if fault is None:
            try:
                "".join(cells).encode()
            except UnicodeEncodeError:
                fault = RecordError("not UTF-8: a field")
        yield Row(position, fault or dict(zip(header, cells, strict=True)), lines.first)


def text_fault(line: bytes) -> RecordError | None:
    """Why a line of plain text cannot be used."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        return RecordError(f"not UTF-8: byte {error.start} of the record")
    return None


def _arrow_error(path: str, kind: str, error: Exception) -> BadFileError:
    why = (str(error).splitlines() or [type(error).__name__])[0]
    return BadFileError(f"{path}: not a whole {kind} file ({why}); write it again")


# Parquet's decoders raise these and others of the same root on bytes that are no Parquet.
_ARROW_ERRORS = (pa.ArrowException, OSError, EOFError, ValueError)


def open_parquet(path: str) -> pq.ParquetFile:
    """A Parquet file that is read page by page. Raises BadFileError where its footer cannot be read."""
    try:
        file = open_input(path)
        # A buffered stream reads pages as they are needed; without it a column of a row group, or all
        # of them with pre_buffer, is held at once.
        return pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
    except _ARROW_ERRORS as error:
        raise _arrow_error(path, "Parquet", error) from None


def _group_start(group: Any) -> int:
    column = group.column(0)
    places = [column.data_page_offset]
    if column.has_dictionary_page and column.dictionary_page_offset:
        places.append(column.dictionary_page_offset)
    return int(min(places))


def parquet_batches(
    piece: Piece, columns: Sequence[str], presence: Sequence[str] = ()
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of the row groups that begin in a piece, each with its first row's number in the file.

    columns: the fields wanted; nothing else is read. presence: fields that come as whether they hold
    anything.
    """
    file = open_parquet(piece.path)
    try:
        names = [*columns, *_smallest_leaves(file.metadata, presence)]
        first = 0
        for index in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(index)
            rows = group.num_rows
            if rows and (piece.whole or piece.start <= _group_start(group) < piece.end):
                position = first
                for batch in file.iter_batches(
                    _rows_at_once(group, names), row_groups=[index], columns=names, use_threads=False
                ):
                    yield position, _as_presence(batch, presence)
                    position += batch.num_rows
                if position - first != rows:
                    raise ValueError(f"row group {index} has {position - first} rows of {rows}")
            first += rows
    except _ARROW_ERRORS as error:
        raise _arrow_error(piece.path, "Parquet", error) from None
    finally:
        file.close(force=True)


def _smallest_leaves(metadata: Any, fields: Sequence[str]) -> list[str]:
    """Of each field that a file has, the path of its smallest part: any part tells whether it is there."""
    sizes: dict[str, list[tuple[int, str]]] = {}
    for index in range(metadata.num_columns):
        path = metadata.schema.column(index).path
        name = path.partition(".")[0]
        if name in fields:
            groups = (metadata.row_group(g) for g in range(metadata.num_row_groups))
            size = sum(group.column(index).total_compressed_size for group in groups)
            sizes.setdefault(name, []).append((size, path))
    return [min(parts)[1] for parts in sizes.values()]


def _as_presence(batch: pa.RecordBatch, fields: Sequence[str]) -> pa.RecordBatch:
    """A batch with fields replaced by whether they hold anything."""
    for index, name in enumerate(batch.schema.names):
        if name in fields:
            batch = batch.set_column(index, name, _holds_something(batch.column(index)))
    return batch


def _holds_something(column: pa.Array) -> pa.Array:
    t = pa.types
    kind = column.type
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        length = pc.list_value_length(column)
    elif t.is_string(kind) or t.is_large_string(kind) or t.is_binary(kind) or t.is_large_binary(kind):
        length = pc.binary_length(column)
    elif t.is_boolean(kind):
        return pc.fill_null(column, False)
    else:
        return column.is_valid()
    return pc.fill_null(pc.greater(length, 0), False)


def _rows_at_once(group: Any, columns: Sequence[str]) -> int:
    size = 0
    for i in range(group.num_columns):
        column = group.column(i)
        if any(column.path_in_schema == c or column.path_in_schema.startswith(c + ".") for c in columns):
            size += column.total_uncompressed_size
    return int(max(1, min(ROW_BATCH_ROWS, ROW_BATCH_BYTES * group.num_rows // max(size, 1))))


_EOS = (b"\xff\xff\xff\xff\x00\x00\x00\x00", b"\x00\x00\x00\x00")


def arrow_schema(path: str) -> pa.Schema:
    """The schema of an Arrow file or stream."""
    with open_input(path) as file:
        try:
            return _open_arrow(path, file, None).schema
        except _ARROW_ERRORS as error:
            raise _arrow_error(path, "Arrow", error) from None


def _open_arrow(path: str, file: Any, columns: list[str] | None) -> Any:
    head = file.read(6)
    file.seek(0)
    if head[:4] == b"FEA1":
        raise BadFileError(f"{path}: Feather version 1; write it again as Arrow IPC (Feather version 2)")
    opened = pa.ipc.open_file if head == b"ARROW1" else pa.ipc.open_stream
    reader = opened(file)
    if columns is None:
        return reader
    schema = reader.schema
    wanted = [i for i, name in enumerate(schema.names) if name in columns]
    file.seek(0)
    return opened(file, options=pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False))


def arrow_batches(
    path: str, columns: Sequence[str], presence: Sequence[str] = ()
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of an Arrow IPC file or stream, each with its first row's number; as `parquet_batches`."""
    position = 0
    try:
        with _arrow_input(path) as file:
            reader = _open_arrow(path, file, [*columns, *presence])
            if isinstance(reader, pa.RecordBatchFileReader):
                batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                _check_stream_end(path, file)
                batches = iter(reader)
            for whole in batches:
                batch = _as_presence(whole, presence)
                size = max(batch.nbytes, 1)
                step = max(1, min(ROW_BATCH_ROWS, ROW_BATCH_BYTES * batch.num_rows // size))
                for at in range(0, batch.num_rows, step):
                    part = batch.slice(at, step)
                    yield position, part
                    position += part.num_rows
    except _ARROW_ERRORS as error:
        raise _arrow_error(path, "Arrow", error) from None


def _arrow_input(path: str) -> Any:
    fs, plain = fsspec.url_to_fs(path)
    if isinstance(fs, fsspec.implementations.local.LocalFileSystem):
        # Mapped: a record batch of any size is paged in as its rows are read.
        return pa.memory_map(plain)
    return open_input(path)


def _check_stream_end(path: str, file: Any) -> None:
    # A stream may lawfully end without its mark; a file cut between two batches looks the same.
    here = file.tell()
    file.seek(0, 2)
    end = file.tell()
    file.seek(max(end - 8, 0))
    tail = file.read(8)
    file.seek(here)
    if not (tail == _EOS[0] or tail[-4:] == _EOS[1]):
        raise BadFileError(f"{path}: the Arrow stream has no end mark, the file was cut; write it again")


def batch_rows(first: int, batch: pa.RecordBatch) -> Iterator[Row]:
    """Rows of an Arrow batch as Python values; a value that is no UTF-8 costs its row alone."""
    try:
        rows = batch.to_pylist()
    except UnicodeDecodeError:
        for i in range(batch.num_rows):
            try:
                yield Row(first + i, batch.slice(i, 1).to_pylist()[0], None)
            except UnicodeDecodeError as error:
                yield Row(first + i, RecordError("not UTF-8: a field"), bytes(error.object[:FIRST_BYTES]))
        return
    for i, row in enumerate(rows):
        yield Row(first + i, row, None)


def position_name(kind: str) -> str:
    """What a position of a format counts.

    >>> position_name("jsonl"), position_name("json")
    ('line', 'element')
    """
    if kind in ("jsonl", "text"):
        return "line"
    return {"json": "element", "bin": "token", "npy": "token", "megatron": "document"}.get(kind, "row")
