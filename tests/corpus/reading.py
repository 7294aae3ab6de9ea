"""Corpora written on the spot, and one road from a job's keys to what was read."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from coverage_job.config import Job, parse_job
from coverage_job.corpus.documents import Key, TextBatch, TokenBatch
from coverage_job.corpus.plan import FileInfo, list_files, make_splits
from coverage_job.corpus.reader import BadRecord, PieceStats, Reader, locate
from coverage_job.corpus.shapes import Renderer
from coverage_job.corpus.source import Source, resolve

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def make_job(**corpus: Any) -> Job:
    """A job of one corpus named c."""
    tree = {"tokenizer": "t", "corpora": [{"name": "c", "stage": "pretraining"} | corpus]}
    return parse_job(tree, base=Path("/"))


@dataclass
class Read:
    """All that reading a corpus gave. documents: (key, pieces, supervised texts) in order."""

    source: Source
    files: list[FileInfo]
    splits: int
    documents: list[tuple[Key, list[Any], list[Any]]]
    stats: list[PieceStats]
    bad: list[BadRecord]
    batches: list[TextBatch | TokenBatch]

    @property
    def texts(self) -> list[str]:
        """Each document's pieces, joined."""
        return [b"".join(pieces).decode() for _, pieces, _ in self.documents]

    @property
    def ids(self) -> list[list[int]]:
        return [pieces for _, pieces, _ in self.documents]

    def total(self, name: str) -> int:
        return sum(getattr(s, name) for s in self.stats)


def unpack(batch: TextBatch | TokenBatch, keys: list[Key]) -> list[tuple[Key, list[Any], list[Any]]]:
    """Documents as (key, pieces, supervised parts), by the slowest and plainest road."""
    out: list[tuple[Key, list[Any], list[Any]]] = []
    text = batch.text.tobytes() if isinstance(batch, TextBatch) else b""
    spans = batch.spans.tolist() if isinstance(batch, TextBatch) and batch.spans is not None else []
    for i in range(len(batch)):
        key = keys[batch.keys[i]]
        if isinstance(batch, TokenBatch):
            a, b = batch.documents[i : i + 2]
            ids = batch.ids[a:b].tolist()
            mask = batch.supervised[a:b] if batch.supervised is not None else np.ones(b - a, np.uint8)
            out.append((key, ids, [t for t, m in zip(ids, mask, strict=True) if m]))
            continue
        first, last = batch.documents[i : i + 2]
        pieces = [text[batch.pieces[p] : batch.pieces[p + 1]] for p in range(first, last)]
        end = batch.pieces[last]
        if batch.spans is None:
            targets = pieces
        else:
            targets = []
            while spans and spans[0][1] <= end:  # spans are sorted
                start, stop = spans.pop(0)
                targets.append(text[start:stop])
        out.append((key, pieces, [s.decode() for s in targets]))
    assert not spans
    return out


def read_all(
    job: Job, *, split_bytes: int = 1 << 27, renderer: Renderer | None = None, rows: int | None = None
) -> Read:
    """Lists, decides, splits and reads the job's one corpus."""
    corpus = job.corpora[0]
    files = list_files(corpus)
    source = Source.from_json(resolve(corpus, job, files).to_json())
    splits = make_splits(corpus.name, files, source, split_bytes)
    read = Read(source, files, len(splits), [], [], [], [])
    for split in splits:
        reader = Reader(source, renderer=renderer, rows=rows)
        for piece in split.pieces:
            part = reader.open(piece)
            for batch in part.batches():
                read.batches.append(batch)
                read.documents += unpack(batch, reader.keys)
            read.stats.append(part.stats)
            read.bad += part.bad
    read.bad = locate(read.bad, read.stats)
    assert read.total("records") == read.total("documents") + read.total("bad_records")
    assert read.total("documents") == len(read.documents)
    return read
