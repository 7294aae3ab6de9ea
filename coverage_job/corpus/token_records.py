"""Token corpora: ids from records (`input_ids`, labels or a mask) and from flat or Megatron files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coverage_job.corpus import formats, token_files
from coverage_job.corpus.batches import TokenBuilder
from coverage_job.corpus.documents import TokenBatch
from coverage_job.corpus.shapes import RecordError
from coverage_job.errors import TokenIdError

if TYPE_CHECKING:
    from coverage_job.corpus.reader import PieceReader

NO_LOSS = -100
_INT32_IDS = 1 << 31

IntArray = npt.NDArray[Any]


def token_batches(part: PieceReader) -> Iterator[TokenBatch]:
    """The documents of a token corpus' piece. Raises TokenIdError for an id outside the matrix."""
    source = part.source
    builder = TokenBuilder(masked=bool(source.labels or source.loss_mask))
    tables = part.tables()
    if source.format in ("megatron", "bin", "npy"):
        full = _of_files(part, builder)
    elif tables is not None:
        full = _of_tables(part, builder, tables)
    else:
        full = _of_rows(part, builder, part.rows())
    for batch in full:
        yield _counted(part, batch)
    if len(builder):
        yield _counted(part, builder.take())


def _counted(part: PieceReader, batch: TokenBatch) -> TokenBatch:
    stats = part.stats
    stats.records += len(batch)
    stats.documents += len(batch)
    stats.text_bytes += batch.ids.nbytes
    lengths = np.diff(batch.documents)
    stats.empty_documents += int(np.count_nonzero(lengths == 0))
    if batch.supervised is not None:
        totals = np.concatenate([[0], np.cumsum(batch.supervised, dtype=np.int64)])
        targets = totals[batch.documents[1:]] - totals[batch.documents[:-1]]
        stats.without_target += int(np.count_nonzero((targets == 0) & (lengths > 0)))
    return batch


def _checked(
    part: PieceReader, ids: IntArray, lengths: list[int], positions: list[int]
) -> npt.NDArray[np.int32]:
    """Ids as int32. Raises TokenIdError naming the record of the first one outside the matrix."""
    rows = part.rows_of_matrix or _INT32_IDS
    if ids.size and (int(ids.max()) >= rows or int(ids.min()) < 0):
        at = int(np.argmax((ids < 0) | (ids >= rows)))
        document = int(np.searchsorted(np.cumsum(lengths), at, side="right"))
        raise TokenIdError(
            f"corpus {part.source.corpus}: {part.piece.path}, {part.place(positions[document])}: "
            f"id {int(ids[at])} is outside the model's {rows:,} rows; is this the tokenizer of these ids? "
            "Set `model_vocab_size:` where the matrix has more rows"
        )
    return ids.astype(np.int32, copy=False)


def _of_files(part: PieceReader, builder: TokenBuilder) -> Iterator[TokenBatch]:
    source, piece = part.source, part.piece
    limit = source.max_record_bytes
    if source.format == "megatron":
        chunks = token_files.megatron(piece, limit)
    else:
        chunks = token_files.flat(
            piece, limit, source.format, source.dtype, source.document_end, source.sequence_length
        )
    for chunk in chunks:
        if isinstance(chunk, token_files.TooLong):
            part.fault(chunk.position, RecordError(formats.TOO_LONG), None)
            continue
        ids = _checked(part, chunk.ids, chunk.lengths, chunk.positions)
        yield from builder.add(ids, chunk.lengths, None, [0] * len(chunk.lengths))


def _of_rows(part: PieceReader, builder: TokenBuilder, rows: Iterator[formats.Row]) -> Iterator[TokenBatch]:
    for row in rows:
        value = row.value
        try:
            if isinstance(value, RecordError):
                raise value
            ids, mask = _record_ids(part, value)
        except RecordError as fault:
            part.fault(row.position, fault, row.raw if row.raw is not None else part.shown(value))
            continue
        yield from builder.add(
            _checked(part, ids, [len(ids)], [row.position]), [len(ids)], mask, [part.key(value)]
        )


def _record_ids(part: PieceReader, record: dict[str, Any]) -> tuple[IntArray, npt.NDArray[np.uint8] | None]:
    source = part.source
    ids = _integers(record.get(source.input_ids), source.input_ids)
    if ids.nbytes > 2 * source.max_record_bytes:  # int64 here; the limit is of int32
        raise RecordError(formats.TOO_LONG)
    name = source.labels or source.loss_mask
    if name is None:
        return ids, None
    values = _integers(record.get(name), name, mask=source.labels is None)
    if len(values) != len(ids):
        raise RecordError(f"lengths differ: {len(ids)} ids and {len(values)} {name!r}")
    return ids, _mask(part, ids, values)


def _mask(part: PieceReader, ids: IntArray, values: IntArray) -> npt.NDArray[np.uint8]:
    if part.source.labels is None:
        return np.asarray(values != 0, np.uint8)
    mask: npt.NDArray[np.bool_] = values != NO_LOSS
    part.stats.labelled += int(np.count_nonzero(mask))
    part.stats.shifted_labels += int(np.count_nonzero(mask & (values != ids)))
    return mask.astype(np.uint8)


def _integers(value: Any, name: str, *, mask: bool = False) -> IntArray:
    if value is None:
        raise RecordError(f"missing field: {name!r}")
    if not isinstance(value, list):
        raise RecordError(f"wrong type: field {name!r} is no list of ids")
    if not value:
        return np.empty(0, np.int64)
    try:
        array = np.array(value)
    except (ValueError, OverflowError):  # lists of unequal lengths
        array = np.empty((0, 0))
    if array.ndim != 1 or array.dtype.kind not in ("iufb" if mask else "iu"):
        raise RecordError(f"wrong type: field {name!r} holds something else than whole numbers")
    return array


def _of_tables(
    part: PieceReader, builder: TokenBuilder, tables: Iterator[tuple[int, pa.RecordBatch]]
) -> Iterator[TokenBatch]:
    source = part.source
    name = source.labels or source.loss_mask
    for first, batch in tables:
        ids = _flat(batch, source.input_ids, "iu")
        values = _flat(batch, name, "iu" if source.labels else "iufb") if name else None
        plain = ids is not None and (not name or (values is not None and np.array_equal(values[1], ids[1])))
        if not plain or ids is None or (ids[1].size and int(ids[1].max()) * 4 > source.max_record_bytes):
            yield from _of_rows(part, builder, formats.batch_rows(first, batch))
            continue
        lengths = ids[1].tolist()
        mask = _mask(part, ids[0], values[0]) if values is not None else None
        checked = _checked(part, ids[0], lengths, list(range(first, first + len(lengths))))
        yield from builder.add(checked, lengths, mask, part.keys_of(batch))


def _flat(batch: pa.RecordBatch, name: str, kinds: str) -> tuple[IntArray, IntArray] | None:
    """A list column as (values, lengths) of its rows; None where any row or value is amiss."""
    index = batch.schema.get_field_index(name)
    if index < 0:
        return None
    column = batch.column(index)
    t = pa.types
    if t.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    if not (t.is_list(column.type) or t.is_large_list(column.type)) or column.null_count:
        return None
    values = column.flatten()
    if values.null_count or t.is_nested(values.type):
        return None
    array = values.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in kinds:
        return None
    return array, column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
