"""What a repeat set really supervises: counted over the text, never taken from who built it.

A dialogue is rendered as the trainer renders it, encoded by the reference, cut to the trainer's
length, and only then are the tokens that overlap a supervised span counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import fsspec
import numpy as np
import numpy.typing as npt
import orjson
from tokenizers import Tokenizer

from coverage_job.errors import StorageError

Int64 = npt.NDArray[np.int64]
Message = dict[str, str]
Dialogue = list[Message]

_BATCH = 64


class Rendered(NamedTuple):
    """A dialogue as the trainer sees it.

    pieces: texts that are encoded one by one. spans: per piece, the supervised ranges in characters.
    """

    pieces: list[str]
    spans: list[list[tuple[int, int]]]


Render = Callable[[Dialogue], Rendered]


def plain(dialogue: Dialogue) -> Rendered:
    """`chat_template: none`: each message's content alone, the assistant's supervised.

    >>> plain([{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}])
    Rendered(pieces=['a', 'bc'], spans=[[], [(0, 2)]])
    """
    pieces = [message["content"] for message in dialogue]
    return Rendered(
        pieces,
        [
            [(0, len(text))] if message["role"] == "assistant" and text else []
            for message, text in zip(dialogue, pieces, strict=True)
        ],
    )


@dataclass(frozen=True)
class Counts:
    """What a set of dialogues supervises.

    occurrences, documents: int64[rows], by token id: supervised tokens, and dialogues with at least one.
    tokens: int64[dialogues], length of each before it is cut. supervised: tokens that bear loss.
    """

    occurrences: Int64
    documents: Int64
    tokens: Int64
    supervised: int

    def of(self, measure: str) -> Int64:
        """The count that the job's `coverage.measure` looks at."""
        return self.documents if measure in ("documents", "supervised_documents") else self.occurrences


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def supervised_ids(
    dialogues: Iterable[Dialogue], tokenizer: Tokenizer, render: Render, max_length: int | None
) -> Iterator[tuple[list[int], int]]:
    """Per dialogue: the ids of its supervised tokens after truncation, and its length before it.

    A token is supervised where it overlaps a supervised span by at least one character.
    """
    for batch in _batches(dialogues, _BATCH):
        rendered = [render(dialogue) for dialogue in batch]
        pieces = [piece for one in rendered for piece in one.pieces]
        encodings = iter(tokenizer.encode_batch(pieces, add_special_tokens=False))
        for one in rendered:
            kept: list[int] = []
            length = 0
            for spans, _ in zip(one.spans, one.pieces, strict=True):
                encoding = next(encodings)
                ids = encoding.ids
                room = len(ids) if max_length is None else max(0, max_length - length)
                if spans and room:
                    kept.extend(_overlapping(ids[:room], encoding.offsets[:room], spans))
                length += len(ids)
            yield kept, length


def _overlapping(
    ids: list[int], offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
) -> Iterator[int]:
    spans = sorted(spans)
    at = 0
    for token, (start, end) in zip(ids, offsets, strict=True):
        while at < len(spans) and spans[at][1] <= start:
            at += 1
        if at == len(spans):
            return
        # A byte-fallback or prefix token can have an empty range; it belongs where it stands.
        if max(end, start + 1) > spans[at][0]:
            yield token


def count(
    dialogues: Iterable[Dialogue], tokenizer: Tokenizer, render: Render, *, rows: int, max_length: int | None
) -> Counts:
    """Counts over dialogues. rows: rows of the model's matrix."""
    occurrences = np.zeros(rows, np.int64)
    documents = np.zeros(rows, np.int64)
    lengths: list[int] = []
    for kept, length in supervised_ids(dialogues, tokenizer, render, max_length):
        ids, times = np.unique(np.asarray(kept, np.int64), return_counts=True)
        occurrences[ids] += times
        documents[ids] += 1
        lengths.append(length)
    return Counts(occurrences, documents, np.asarray(lengths, np.int64), int(occurrences.sum()))


def read_jsonl(path: str) -> Iterator[Dialogue]:
    """The dialogues of a `repeat.jsonl`. Raises StorageError naming the line that is none."""
    with fsspec.open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                messages = orjson.loads(line)["messages"]
            except (json.JSONDecodeError, KeyError, TypeError):
                raise StorageError(
                    f"{path}:{number}: no dialogue with messages; write the set again"
                ) from None
            yield messages
