"""What a repeat set really supervises: counted over the text, never taken from who built it.

A dialogue is rendered as the trainer renders it, encoded by the program's kernel, cut to the trainer's
length, and only then are the tokens that overlap a supervised span counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import fsspec
import numpy as np
import orjson

from coverage_job.corpus.batches import TextBuilder
from coverage_job.corpus.documents import Int64, TextBatch, TokenBatch
from coverage_job.corpus.shapes import Rendered, Renderer, dialogue_of
from coverage_job.errors import StorageError

Message = dict[str, str]
Dialogue = list[Message]


class Kernel(Protocol):
    """Encodes batches: `ReferenceKernel`, or a faster one that gives the same."""

    def encode(self, batch: TextBatch) -> TokenBatch: ...


@dataclass(frozen=True)
class Counts:
    """What a set of documents supervises.

    occurrences, documents: int64[rows], by token id: supervised tokens, and documents with at least one.
    tokens: int64[documents], length of each before it is cut.
    """

    occurrences: Int64
    documents: Int64
    tokens: Int64

    @property
    def supervised(self) -> int:
        """Tokens that bear loss."""
        return int(self.occurrences.sum())

    def of(self, measure: str) -> Int64:
        """The count that the job's `coverage.measure` looks at."""
        return self.documents if measure in ("documents", "supervised_documents") else self.occurrences

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.occurrences + other.occurrences,
            self.documents + other.documents,
            np.concatenate([self.tokens, other.tokens]),
        )


@dataclass(frozen=True)
class DialogueCounter:
    """Counts dialogues as the job's trainer sees them.

    rows: of the model's matrix. max_length: tokens a rendered dialogue is cut to, on the right.
    """

    renderer: Renderer
    kernel: Kernel
    rows: int
    max_length: int | None = None

    def render(self, dialogue: Dialogue) -> Rendered:
        return self.renderer.render(dialogue_of(dialogue))

    def count(self, dialogues: Iterable[Dialogue]) -> Counts:
        return count_batches(map(self.kernel.encode, self._batches(dialogues)), self.rows, self.max_length)

    def _batches(self, dialogues: Iterable[Dialogue]) -> Iterator[TextBatch]:
        builder = TextBuilder(spanned=True)
        for dialogue in dialogues:
            rendered = self.render(dialogue)
            yield from builder.add(rendered.pieces, rendered.spans, 0)
        if len(builder):
            yield builder.take()


def count_texts(texts: Iterable[str], kernel: Kernel, rows: int) -> Counts:
    """Counts over documents of plain text, all of it supervised."""

    def batches() -> Iterator[TextBatch]:
        builder = TextBuilder(spanned=False)
        for text in texts:
            yield from builder.add((text.encode(),), None, 0)
        if len(builder):
            yield builder.take()

    return count_batches(map(kernel.encode, batches()), rows, None)


def count_batches(batches: Iterable[TokenBatch], rows: int, max_length: int | None) -> Counts:
    """Counts of what is supervised in the first `max_length` tokens of each document."""
    occurrences, documents = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    lengths = [np.empty(0, np.int64)]
    for batch in batches:
        length = np.diff(batch.documents)
        lengths.append(length)
        document = np.repeat(np.arange(len(length)), length)
        kept = np.ones(len(document), np.bool_) if batch.supervised is None else batch.supervised == 1
        if max_length is not None:
            kept &= np.arange(len(document)) - batch.documents[document] < max_length
        ids = batch.ids[kept].astype(np.int64)
        occurrences += np.bincount(ids, minlength=rows)
        documents += np.bincount(np.unique(document[kept] * rows + ids) % rows, minlength=rows)
    return Counts(occurrences, documents, np.concatenate(lengths))


def read_jsonl(path: str) -> Iterator[dict[str, Any]]:
    """The records of a file that was written here. Raises StorageError naming the line that is none."""
    with fsspec.open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:
                record = None
            if not isinstance(record, dict):
                raise StorageError(f"{path}:{number}: no record; write the set again")
            yield record
