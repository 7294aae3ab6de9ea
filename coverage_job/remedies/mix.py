"""Pre-training text that brings short tokens to their number, within a budget of tokens.

What is chosen are passages: a document, or a part of a long one between ends of lines or sentences.
Two passes on an engine, each a plain function of a spec and an item. `candidates` reads a split, takes
what supplies most of what is short for its share of the budget (a few times over), and gives back what those
passages hold, not their text; so what reaches the driver is bounded by the budget, not by the corpora.
The driver chooses among all candidates (`cover.py`). `texts` then fetches the chosen ones.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from coverage_job.corpus.batches import TextBuilder
from coverage_job.corpus.documents import Int32, Int64
from coverage_job.corpus.formats import Row
from coverage_job.corpus.languages import normalise_language
from coverage_job.corpus.lines import Oversized
from coverage_job.corpus.plan import Piece, Split
from coverage_job.corpus.reader import PieceReader, Reader, text_of
from coverage_job.corpus.shapes import RecordError
from coverage_job.counting.task import CountSpec
from coverage_job.errors import BadFileError
from coverage_job.remedies.cover import Documents, cover, offer, tally
from coverage_job.schemas import MIX_CANDIDATES, MIX_TEXTS, Action

# Entries (passage, token) that a task holds before it drops what it would not offer.
_MOST_ENTRIES = 4_000_000
# Tokens of a split that are offered at the least, so that a small split is not left out.
_LEAST_OFFERED = 4096
# Ends of lines and of sentences.
_ENDS = re.compile("\n|[.!?](?=\\s)|\u3002|\uff01|\uff1f|\u0964|\u061f|\u06d4".encode())


@dataclass(frozen=True)
class MixOptions:
    """What may be chosen.

    min_tokens, max_tokens: of a passage. passage_bytes: a longer document is cut into passages of about
    so many bytes; 0: documents stay whole. languages: values of the corpus' language field, as BCP-47
    tags (or as they are where they are no language); none: all. quality_field: a number that must be
    at least min_quality. deny: a regular expression; a document in which it matches is not chosen.
    offered: how many times its share of the budget a split offers.
    """

    budget_tokens: int
    min_tokens: int = 16
    max_tokens: int = 8192
    passage_bytes: int = 256
    languages: tuple[str, ...] = ()
    quality_field: str | None = None
    min_quality: float = 0.0
    deny: str | None = None
    offered: float = 8.0


@dataclass(frozen=True)
class MixSpec:
    """All that a task needs besides its split. need: int32[rows]. total_bytes: of all the splits."""

    count: CountSpec
    need: Int32
    options: MixOptions
    total_bytes: int


@dataclass(frozen=True)
class Chosen:
    """Passages of one piece whose text is wanted: position in the piece, first byte, end; rising."""

    corpus: str
    piece: Piece
    passages: tuple[tuple[int, int, int], ...]


def needs(coverage: pl.DataFrame, rows: int) -> Int32:
    """int32[rows]: what each token lacks that the manifest gives to a mix and pre-training text can supply.

    A token of which all corpora together hold too few is left to the repeat set.
    """
    wanted = coverage.filter(
        pl.col("action").is_in([Action.MIX.value, Action.REPEAT_AND_MIX.value])
        & (pl.col("deficit") > 0)
        & (pl.col("pretraining_occurrences") >= pl.col("deficit"))
    )
    need = np.zeros(rows, np.int32)
    need[wanted["token_id"].to_numpy()] = wanted["deficit"].to_numpy()
    return need


def passages(text: bytes, size: int) -> Iterator[tuple[int, int]]:
    """Byte ranges, back to back, of at most `size` bytes each where lines or sentences end often enough.

    >>> list(passages(b"One. Two.\\nThree and four. Five.", 12))
    [(0, 10), (10, 25), (25, 31)]
    >>> list(passages(b"One. Two.", 0))
    [(0, 9)]
    """
    start = last = 0
    if 0 < size < len(text):
        for found in _ENDS.finditer(text):
            end = found.end()
            if end - start > size:
                if last > start:
                    yield start, last
                    start = last
                if end - start > size:
                    yield start, end
                    start = end
            last = end
        if len(text) - start > size and last > start:
            yield start, last
            start = last
    if start < len(text):
        yield start, len(text)


# File, start of the piece, position in it, tokens, hash of the text, first byte of the passage, its end.
_Row = tuple[str, int, int, int, int, int, int]


class _Pool:
    """Candidates of a split so far."""

    def __init__(self, need: Int64, offered: int) -> None:
        self._need, self._offered = need, offered
        self.rows: list[_Row] = []
        self._ids: list[Int32] = []
        self._counts: list[Int32] = []
        self._entries = 0
        self._most = _MOST_ENTRIES

    def add(self, row: _Row, ids: Int32, counts: Int32) -> None:
        self.rows.append(row)
        self._ids.append(ids)
        self._counts.append(counts)
        self._entries += len(ids)
        if self._entries > self._most:
            self.reduce()
            # What is offered may be more than that; not to reduce again at every passage.
            self._most = max(_MOST_ENTRIES, 2 * self._entries)

    def drop(self, file: str) -> None:
        """Forget what a file gave: it turned out to be cut."""
        self._keep([i for i, row in enumerate(self.rows) if row[0] != file])

    def reduce(self) -> None:
        # Of passages with one text the first is kept.
        _, first = np.unique([row[4] for row in self.rows], return_index=True)
        self._keep(np.sort(first).tolist())
        documents = Documents.of([row[3] for row in self.rows], self._ids, self._counts)
        self._keep(np.sort(offer(documents, self._need, self._offered)).tolist())

    def _keep(self, kept: list[int]) -> None:
        self.rows = [self.rows[i] for i in kept]
        self._ids = [self._ids[i] for i in kept]
        self._counts = [self._counts[i] for i in kept]
        self._entries = sum(map(len, self._ids))

    def batch(self, corpus: str, lines: list[tuple[str, int, int]]) -> pa.RecordBatch:
        rows = [
            (corpus, *row[:5], ids.tobytes(), counts.tobytes(), *row[5:])
            for row, ids, counts in zip(self.rows, self._ids, self._counts, strict=True)
        ]
        rows += [(corpus, file, start, -1, n, 0, b"", b"", 0, 0) for file, start, n in lines]
        columns = zip(*rows, strict=True) if rows else [()] * len(MIX_CANDIDATES)
        arrays = [pa.array(list(c), f.type) for c, f in zip(columns, MIX_CANDIDATES, strict=True)]
        return pa.record_batch(arrays, schema=MIX_CANDIDATES)


def candidates(spec: MixSpec, split: Split) -> Iterator[pa.RecordBatch]:
    """The documents of a split that it offers to the mix: one batch of schema MIX_CANDIDATES.

    A file that ends badly offers nothing where the corpus says `on_bad_file: skip`; else BadFileError.
    """
    options = spec.options
    source = spec.count.corpora[split.corpus].source
    if options.quality_field is not None and options.quality_field not in source.columns:
        source = replace(source, columns=(*source.columns, options.quality_field))
    reader = Reader(source, rows=spec.count.rows)
    share = split.bytes / max(1, spec.total_bytes)
    pool = _Pool(
        spec.need.astype(np.int64), max(_LEAST_OFFERED, int(options.budget_tokens * options.offered * share))
    )
    lines: list[tuple[str, int, int]] = []
    for piece in split.pieces:
        part = reader.open(piece)
        try:
            _offer(spec, part, pool)
        except BadFileError:
            if source.on_bad_file == "fail":
                raise
            pool.drop(piece.path)
        lines.append((piece.path, piece.start, part.stats.lines))
    pool.reduce()
    yield pool.batch(split.corpus, lines)


def _offer(spec: MixSpec, part: PieceReader, pool: _Pool) -> None:
    kernel = spec.count.kernel()
    wanted = spec.need > 0
    options = spec.options
    waiting: list[tuple[int, int, int, int]] = []
    builder = TextBuilder(spanned=False)

    def take(batch: Any) -> None:
        encoded = kernel.encode(batch)
        lengths = np.diff(encoded.documents).tolist()
        document, ids, counts = tally(encoded.ids, encoded.documents, wanted)
        borders = np.searchsorted(document, np.arange(len(lengths) + 1))
        places = waiting[: len(lengths)]
        del waiting[: len(lengths)]
        for i, ((position, digest, begin, end), tokens) in enumerate(zip(places, lengths, strict=True)):
            first, last = borders[i], borders[i + 1]
            if first < last and options.min_tokens <= tokens <= options.max_tokens:
                row = (part.piece.path, part.piece.start, position, tokens, digest, begin, end)
                pool.add(row, ids[first:last].copy(), counts[first:last].copy())

    for position, text in _texts(part, options):
        for begin, end in passages(text, options.passage_bytes):
            passage = text[begin:end]
            digest = int.from_bytes(hashlib.blake2b(passage, digest_size=8).digest(), "little", signed=True)
            waiting.append((position, digest, begin, end))
            for batch in builder.add((passage,), None, 0):
                take(batch)
    if len(builder):
        take(builder.take())


def _records(part: PieceReader) -> Iterator[Row]:
    if part.source.format != "text":
        yield from part.rows()
        return
    for block in part.lines():
        for position, line in enumerate(block, part.stats.lines + 1):
            if not isinstance(line, Oversized) and line.strip():
                yield Row(position, {part.source.text: line.removesuffix(b"\r")}, None)


def _texts(part: PieceReader, options: MixOptions | None) -> Iterator[tuple[int, bytes]]:
    """Positions and texts of a piece's good records, those that `options` lets through."""
    source = part.source
    deny = re.compile(options.deny) if options is not None and options.deny else None
    for row in _records(part):
        if isinstance(row.value, RecordError):
            continue
        text = text_of(row.value, source.text)
        if isinstance(text, RecordError) or len(text) > source.max_record_bytes:
            continue
        if options is not None:
            if options.languages and _language(row.value, source.language_field) not in options.languages:
                continue
            if options.quality_field is not None and not _at_least(
                row.value.get(options.quality_field), options.min_quality
            ):
                continue
            if deny is not None and deny.search(text.decode()):
                continue
        yield row.position, text


def _language(record: dict[str, Any], field: str | None) -> str:
    value = record.get(field) if field is not None else None
    return (normalise_language(value) or value) if isinstance(value, str) else ""


def _at_least(value: Any, least: float) -> bool:
    try:
        return float(value) >= least
    except (TypeError, ValueError):
        return False


def choose(found: pa.Table, need: Int32, budget: int) -> pa.Table:
    """The candidates that are taken, in order of corpus, file, position and first byte.

    found: schema MIX_CANDIDATES, of all splits. Gives corpus, file, start, position (in the piece), line
    (in the file), tokens, passage_start, passage_end, ids and counts (binary int32: what each brings that was
    still needed). Of passages with one text the first is kept.
    """
    frame = pl.DataFrame(found).sort("corpus", "file", "start", "position", "passage_start")
    lines = frame.filter(pl.col("position") < 0).select(
        "corpus",
        "file",
        "start",
        pl.col("tokens").cum_sum().over("corpus", "file").alias("through"),
        "tokens",
    )
    earlier = lines.select("corpus", "file", "start", (pl.col("through") - pl.col("tokens")).alias("earlier"))
    documents = (
        frame.filter(pl.col("position") >= 0)
        .unique("text_hash", keep="first", maintain_order=True)
        .join(earlier, on=["corpus", "file", "start"], how="left", maintain_order="left")
    )
    ids = [np.frombuffer(b, np.int32) for b in documents["ids"]]
    counts = [np.frombuffer(b, np.int32) for b in documents["counts"]]
    held = Documents.of(documents["tokens"].to_list(), ids, counts)
    taken, brought = cover(held, need.astype(np.int64), budget)
    taken = np.sort(taken)
    kept_ids, kept_counts = [], []
    for i in taken.tolist():
        first, last = held.borders[i], held.borders[i + 1]
        useful = brought[first:last] > 0
        kept_ids.append(held.ids[first:last][useful].tobytes())
        kept_counts.append(brought[first:last][useful].tobytes())
    result: pa.Table = (
        documents[taken]
        .with_columns(
            (pl.col("position") + pl.col("earlier").fill_null(0)).alias("line"),
            pl.Series("ids", kept_ids, pl.Binary),
            pl.Series("counts", kept_counts, pl.Binary),
        )
        .drop("text_hash", "earlier")
        .to_arrow()
    )
    return result


def chosen_items(chosen: pa.Table, splits: Iterable[Split]) -> list[Chosen]:
    """What the second pass has to read: one item per piece with a chosen passage."""
    places: dict[tuple[str, str, int], list[tuple[int, int, int]]] = defaultdict(list)
    frame = pl.DataFrame(chosen).select("corpus", "file", "start", "position", "passage_start", "passage_end")
    for corpus, file, start, *place in frame.iter_rows():
        places[corpus, file, start].append(tuple(place))
    return [
        Chosen(split.corpus, piece, tuple(sorted(found)))
        for split in splits
        for piece in split.pieces
        if (found := places.get((split.corpus, piece.path, piece.start)))
    ]


def texts(spec: CountSpec, item: Chosen) -> Iterator[pa.RecordBatch]:
    """The texts of one piece's chosen passages, in batches of schema MIX_TEXTS."""
    part = Reader(spec.corpora[item.corpus].source, rows=spec.rows).open(item.piece)
    wanted = defaultdict(list)
    for position, begin, end in item.passages:
        wanted[position].append((begin, end))
    last = item.passages[-1][0]
    for position, text in _texts(part, None):
        rows = [
            (item.piece.path, item.piece.start, position, text[begin:end], begin)
            for begin, end in wanted.get(position, ())
        ]
        if rows:
            arrays = [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), MIX_TEXTS, strict=True)]
            yield pa.record_batch(arrays, schema=MIX_TEXTS)
        if position >= last:
            return
