"""Reading splits: pieces of files as batches of documents, with what was counted and what was bad.

    reader = Reader(source, renderer=renderer, rows=rows)
    for piece in split.pieces:
        part = reader.open(piece)
        for batch in part.batches():      # BadFileError here: nothing of the piece may count
            ...                           # batch.keys index reader.keys
        part.stats, part.bad              # complete, now that the batches have ended

The split's pieces are read one at a time, so that what a file gave can be dropped when the file turns
out to be cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from coverage_job.corpus import formats
from coverage_job.corpus.batches import TextBuilder
from coverage_job.corpus.documents import Key, TextBatch, TokenBatch
from coverage_job.corpus.formats import Row
from coverage_job.corpus.languages import KeyTable
from coverage_job.corpus.lines import FIRST_BYTES, Oversized
from coverage_job.corpus.plan import Piece
from coverage_job.corpus.shapes import (
    Dialogue,
    PlainRenderer,
    RecordError,
    Renderer,
    count_notes,
    to_dialogue,
)
from coverage_job.corpus.source import Source
from coverage_job.corpus.token_records import token_batches
from coverage_job.errors import CorpusError

# Located bad records kept of one piece; the others are counted.
MAX_BAD = 100

Batch = TextBatch | TokenBatch


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that could not be used.

    start: first byte of the piece it was read from. position: line (from 1) within that piece, or
    row, element or token of the file (from 0): see `locate`.
    """

    corpus: str
    file: str
    start: int
    position: int
    reason: str
    first_bytes: bytes


@dataclass(slots=True)
class PieceStats:
    """What reading one piece gave. records = documents + bad_records.

    bytes: of the piece, as stored. text_bytes: of the documents' text, or of their ids as int32.
    lines: lines that begin in the piece, blank ones too; 0 for formats without lines.
    empty_documents: documents of no text or ids. without_target: documents in which nothing is
    supervised. labelled, shifted_labels: of token corpora, tokens with a label and those whose label
    is another id than their own. reasons: bad records by the first words of their reason. notes: what
    else is to be reported, with the number of records.
    """

    file: str
    start: int
    end: int
    bytes: int
    records: int = 0
    documents: int = 0
    bad_records: int = 0
    empty_documents: int = 0
    without_target: int = 0
    text_bytes: int = 0
    lines: int = 0
    labelled: int = 0
    shifted_labels: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)


def locate(bad: Iterable[BadRecord], stats: Iterable[PieceStats]) -> list[BadRecord]:
    """Bad records with positions in their files, sorted by file and position.

    A task that begins in the middle of a file cannot know how many lines stand before; the stats of
    the file's earlier pieces tell. Where one of those is missing, positions after it stay too low.
    """
    lines: dict[str, list[tuple[int, int]]] = {}
    for s in stats:
        if s.lines:
            lines.setdefault(s.file, []).append((s.start, s.lines))
    found = [
        replace(b, start=0, position=b.position + sum(n for at, n in lines.get(b.file, ()) if at < b.start))
        for b in bad
    ]
    return sorted(found, key=lambda b: (b.file, b.position))


class Reader:
    """Reads the pieces of a corpus' splits.

    renderer: for dialogues; without one each message's content is a piece of its own
    (`chat_template: none`). rows: of the vocabulary's matrix; token ids beyond are an error.
    """

    def __init__(self, source: Source, *, renderer: Renderer | None = None, rows: int | None = None) -> None:
        self.source = source
        self.renderer: Renderer = renderer or PlainRenderer(source.train_on)
        self.rows = rows
        # Told of every dialogue that is used, with its key and its place.
        self.observe: Callable[[Dialogue, Key, str], None] | None = None
        self.table = KeyTable(source.corpus, source.language_field, source.group_by)
        if self.table.constant:
            self.table.index(None, None)

    @property
    def keys(self) -> list[Key]:
        """The (language, group) pairs that batches' `keys` index; grows while reading."""
        return self.table.keys

    def open(self, piece: Piece) -> PieceReader:
        """A reader of one piece; nothing is read yet."""
        return PieceReader(self, piece)

    def open_table(self, batches: Iterable[pa.RecordBatch], name: str) -> PieceReader:
        """A reader of Arrow batches that something else reads; positions are rows from 0."""

        def numbered() -> Iterator[tuple[int, pa.RecordBatch]]:
            first = 0
            for batch in batches:
                yield first, batch
                first += batch.num_rows

        return PieceReader(self, Piece(name, 0, 0, 0), numbered())


class PieceReader:
    """One piece of a file: its batches, and its stats once they have ended."""

    def __init__(
        self, reader: Reader, piece: Piece, tables: Iterator[tuple[int, pa.RecordBatch]] | None = None
    ) -> None:
        self.source = reader.source
        self.piece = piece
        self.bad: list[BadRecord] = []
        self.stats = PieceStats(piece.path, piece.start, piece.end, max(piece.end - piece.start, 0))
        self._reader = reader
        self.rows_of_matrix = reader.rows
        self._table = reader.table
        self._tables = tables

    def batches(self) -> Iterator[Batch]:
        """The piece's documents, in batches of about 8 MiB of text; a longer document alone.

        Raises BadFileError where the file ends early or is not what its name says: batches given
        until then must not count. Raises TokenIdError for an id outside the matrix, CorpusError for a
        bad record where the job says `on_bad_record: fail`, or over 1,000 groups.
        """
        source = self.source
        if source.shape == "tokens":
            yield from token_batches(self)
        elif source.shape == "text":
            builder = TextBuilder(spanned=False)
            yield from self._texts(builder)
            if len(builder):
                yield self._counted(builder.take())
        else:
            builder = TextBuilder(spanned=not source.pretraining)
            yield from self._dialogues(builder)
            if len(builder):
                yield self._counted(builder.take())

    # What is reported

    def fault(self, position: int, fault: RecordError, raw: bytes | None) -> None:
        """Counts a bad record. Raises CorpusError under `on_bad_record: fail`."""
        stats, source = self.stats, self.source
        stats.records += 1
        stats.bad_records += 1
        stats.reasons[fault.reason.partition(":")[0]] += 1
        if source.on_bad_record == "fail":
            raise CorpusError(
                f"corpus {source.corpus}: {self.piece.path}, {self.place(position)}: {fault.reason}; "
                "mend it, or set `on_bad_record: skip`"
            )
        if len(self.bad) < MAX_BAD:
            first = (raw or b"")[:FIRST_BYTES]
            self.bad.append(
                BadRecord(source.corpus, self.piece.path, self.piece.start, position, fault.reason, first)
            )

    def place(self, position: int) -> str:
        """A position in words, for an error that is raised while reading."""
        name = formats.position_name(self.source.format)
        part = f" of the part from byte {self.piece.start}" if name == "line" and self.piece.start else ""
        return f"{name} {position}{part}"

    def _counted(self, batch: TextBatch) -> TextBatch:
        stats = self.stats
        n = len(batch)
        stats.records += n
        stats.documents += n
        stats.text_bytes += batch.text.size
        borders = batch.pieces[batch.documents]
        stats.empty_documents += int(np.count_nonzero(np.diff(borders) == 0))
        return batch

    @staticmethod
    def shown(record: Any) -> bytes:
        """The first bytes of a record that came as values."""
        try:
            return orjson.dumps(record, default=str)[:FIRST_BYTES]
        except TypeError:
            return b""

    # Rows of any format

    def tables(self) -> Iterator[tuple[int, pa.RecordBatch]] | None:
        """Arrow batches with their first row's number, for formats that are Arrow or like it."""
        if self._tables is not None:
            return self._tables
        columns, presence = self.source.columns, self.source.presence
        if self.source.format == "parquet":
            return formats.parquet_batches(self.piece, columns, presence)
        if self.source.format == "arrow":
            return formats.arrow_batches(self.piece.path, columns, presence)
        return None

    def rows(self) -> Iterator[Row]:
        """The piece's records as Python values."""
        source, path = self.source, self.piece.path
        tables = self.tables()
        if tables is not None:
            return (row for first, batch in tables for row in formats.batch_rows(first, batch))
        if source.format == "json":
            return formats.json_rows(path, source.max_record_bytes)
        if source.format in ("csv", "tsv"):
            return formats.csv_rows(path, source.max_record_bytes, "," if source.format == "csv" else "\t")
        return formats.jsonl_rows(self.lines())

    def lines(self) -> Iterator[list[bytes | Oversized]]:
        """The piece's lines in blocks, counted."""
        for block in formats.piece_lines(self.piece, self.source.max_record_bytes):
            yield block
            self.stats.lines += len(block)

    # Texts

    def _texts(self, builder: TextBuilder) -> Iterator[TextBatch]:
        if self.source.format == "text":
            full = self._plain_texts(builder)
        elif self.source.format == "jsonl":
            full = self._jsonl_texts(builder)
        else:
            tables = self.tables()
            full = self._row_texts(builder) if tables is None else self._arrow_texts(builder, tables)
        for batch in full:
            yield self._counted(batch)

    def _line_texts(
        self,
        builder: TextBuilder,
        fast: Callable[[list[Any]], tuple[list[bytes], list[int]]],
        slow: Callable[[bytes | Oversized], tuple[bytes, int] | RecordError | None],
    ) -> Iterator[TextBatch]:
        """Texts of lines, with their keys: a block at once where nothing is amiss, else line by line."""
        for block in self.lines():
            try:
                texts, keys = fast(block)
            except CorpusError:
                raise
            except Exception:  # any fault of any line; `slow` finds which
                texts, keys = [], []
                for position, line in enumerate(block, self.stats.lines + 1):
                    found = slow(line)
                    if isinstance(found, RecordError):
                        self.fault(position, found, line.first_bytes if isinstance(line, Oversized) else line)
                    elif found is not None:
                        texts.append(found[0])
                        keys.append(found[1])
            yield from builder.add_texts(texts, keys)

    def _jsonl_texts(self, builder: TextBuilder) -> Iterator[TextBatch]:
        name, loads, key = self.source.text, orjson.loads, self.key
        constant = self._table.constant

        def fast(block: list[Any]) -> tuple[list[bytes], list[int]]:
            if constant:
                return [loads(line)[name].encode() for line in block], [0] * len(block)
            records = [loads(line) for line in block]
            return [r[name].encode() for r in records], self._table.of_records(records)

        def slow(line: bytes | Oversized) -> tuple[bytes, int] | RecordError | None:
            value = formats.parse_line(line)
            if value is None or isinstance(value, RecordError):
                return value
            text = text_of(value, name)
            return text if isinstance(text, RecordError) else (text, key(value))

        return self._line_texts(builder, fast, slow)

    def _plain_texts(self, builder: TextBuilder) -> Iterator[TextBatch]:
        def fast(block: list[Any]) -> tuple[list[bytes], list[int]]:
            b"\n".join(block).decode("utf-8")
            texts = [line.removesuffix(b"\r") for line in block if line.strip()]
            return texts, [0] * len(texts)

        def slow(line: bytes | Oversized) -> tuple[bytes, int] | RecordError | None:
            if isinstance(line, Oversized):
                return RecordError(formats.TOO_LONG)
            fault = formats.text_fault(line)
            if fault is not None:
                return fault
            return (line.removesuffix(b"\r"), 0) if line.strip() else None

        return self._line_texts(builder, fast, slow)

    def _row_texts(self, builder: TextBuilder) -> Iterator[TextBatch]:
        name, limit = self.source.text, self.source.max_record_bytes
        for row in self.rows():
            text = row.value if isinstance(row.value, RecordError) else text_of(row.value, name)
            if not isinstance(text, RecordError) and len(text) > limit:
                text = RecordError(formats.TOO_LONG)
            if isinstance(text, RecordError):
                self.fault(row.position, text, row.raw)
            elif isinstance(row.value, dict):
                yield from builder.add((text,), None, self._table.of_record(row.value))

    def _arrow_texts(
        self, builder: TextBuilder, tables: Iterator[tuple[int, pa.RecordBatch]]
    ) -> Iterator[TextBatch]:
        """Texts taken from Arrow's own buffers, without a Python object for each."""
        limit = self.source.max_record_bytes
        for first, batch in tables:
            column = _text_array(batch, self.source.text)
            if column is None:
                for i in range(batch.num_rows):
                    self.fault(first + i, _no_text(batch, self.source.text), None)
                continue
            keys = self.keys_of(batch)
            good = _good_texts(column, limit)
            if not good.all():
                for i in np.flatnonzero(~good).tolist():
                    self.fault(first + i, *_text_fault(column[i], self.source.text, limit))
                mask = pa.array(good)
                column = column.filter(mask)
                keys = [key for key, ok in zip(keys, good.tolist(), strict=True) if ok]
            if len(column):
                text, borders = _buffers(column)
                yield from builder.add_array(text, borders, keys)

    def key(self, record: dict[str, Any]) -> int:
        """The index of a record's key in the reader's `keys`."""
        return self._table.of_record(record)

    def keys_of(self, batch: pa.RecordBatch) -> list[int]:
        """The index of each row's key in the reader's `keys`."""
        if self._table.constant:
            return [0] * batch.num_rows

        def values(name: str | None) -> list[Any]:
            if name is None or batch.schema.get_field_index(name) < 0:
                return [None] * batch.num_rows
            column = batch.column(name)
            try:
                return list(column.to_pylist())
            except UnicodeDecodeError:
                return [v.decode("utf-8", "replace") for v in column.cast(pa.binary()).to_pylist()]

        index = self._table.index
        pairs = zip(values(self.source.language_field), values(self.source.group_by), strict=True)
        return [index(language, group) for language, group in pairs]

    # Dialogues

    def _dialogues(self, builder: TextBuilder) -> Iterator[TextBatch]:
        source, renderer, stats = self.source, self._reader.renderer, self.stats
        for row in self.rows():
            value = row.value
            if isinstance(value, RecordError):
                self.fault(row.position, value, row.raw)
                continue
            try:
                dialogue = to_dialogue(value, source)
                renderer.place = f"{self.piece.path}, {self.place(row.position)}"
                rendered = renderer.render(dialogue)
                if row.raw is None and sum(map(len, rendered.pieces)) > source.max_record_bytes:
                    raise RecordError(formats.TOO_LONG)
            except RecordError as fault:
                self.fault(row.position, fault, row.raw if row.raw is not None else self.shown(value))
                continue
            if dialogue.notes:
                count_notes(dict.fromkeys(dialogue.notes), stats.notes)
            if not rendered.spans and not source.pretraining:
                stats.without_target += 1
            key = self._table.of_record(value)
            if self._reader.observe is not None:
                self._reader.observe(dialogue, self._reader.keys[key], renderer.place)
            for batch in builder.add(rendered.pieces, rendered.spans, key, rendered.plain):
                yield self._counted(batch)


def text_of(record: dict[str, Any], name: str) -> bytes | RecordError:
    """A record's text as UTF-8, or why it has none."""
    value = record.get(name)
    if value is None:
        return RecordError(f"missing field: {name!r}")
    if isinstance(value, bytes):
        return value if formats.text_fault(value) is None else RecordError(f"not UTF-8: field {name!r}")
    if not isinstance(value, str):
        return RecordError(f"wrong type: field {name!r} is no text")
    try:
        return value.encode()
    except UnicodeEncodeError:
        return RecordError(f"lone surrogate: in field {name!r}")


def _text_array(batch: pa.RecordBatch, name: str) -> Any | None:
    """A batch's text column as string, large_string or their binary kin; None where it is no text."""
    index = batch.schema.get_field_index(name)
    if index < 0:
        return None
    column = batch.column(index)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return column
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return column
    if str(kind) in ("string_view", "binary_view"):
        return column.cast(pa.large_binary())
    return None


def _no_text(batch: pa.RecordBatch, name: str) -> RecordError:
    index = batch.schema.get_field_index(name)
    return RecordError(f"missing field: {name!r}" if index < 0 else f"wrong type: field {name!r} is no text")


def _binary(column: Any) -> Any:
    kind = column.type
    if pa.types.is_string(kind):
        return column.view(pa.binary())
    return column.view(pa.large_binary()) if pa.types.is_large_string(kind) else column


def _good_texts(column: Any, limit: int) -> npt.NDArray[np.bool_]:
    """Which values are text of at most `limit` bytes."""
    binary = _binary(column)
    good = np.ones(len(column), np.bool_)
    if column.null_count:
        good &= pc.is_valid(column).to_numpy(zero_copy_only=False)
    lengths = pc.fill_null(pc.binary_length(binary), 0).to_numpy(zero_copy_only=False)
    good &= lengths <= limit
    text = binary.view(pa.large_string() if pa.types.is_large_binary(binary.type) else pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        for i in np.flatnonzero(good).tolist():
            good[i] = formats.text_fault(binary[i].as_py()) is None
    return good


def _text_fault(value: Any, name: str, limit: int) -> tuple[RecordError, bytes]:
    if not value.is_valid:
        return RecordError(f"missing field: {name!r}"), b""
    buffer = value.as_buffer()
    first = buffer.slice(0, min(FIRST_BYTES, buffer.size)).to_pybytes()
    if buffer.size > limit:
        return RecordError(formats.TOO_LONG), first
    return RecordError(f"not UTF-8: field {name!r}"), first


def _buffers(column: Any) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """A text column's bytes, and the border of each value in them. No value is null."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    borders = np.frombuffer(offsets, np.int64 if large else np.int32)
    borders = borders[column.offset : column.offset + len(column) + 1].astype(np.int64)
    text = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return text[borders[0] : borders[-1]], borders - borders[0]
