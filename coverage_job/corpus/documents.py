"""What reading hands to counting: batches of documents, as flat arrays.

A batch is bounded by bytes, never by rows. `TextBatch` holds text still to be encoded, `TokenBatch`
holds ids. Both carry, per document, an index `keys[i]` into the task's list of (language, group).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]


class Key(NamedTuple):
    """What counts are kept apart by within a corpus."""

    language: str
    group: str


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Documents as UTF-8 text.

    A document is one or more *pieces*, each encoded alone (a rendered dialogue or a web page is one
    piece; a dialogue without a template is one piece per message).

    text: uint8[bytes], the pieces of all documents back to back, valid UTF-8.
    pieces: int64[p + 1], piece j is text[pieces[j]:pieces[j + 1]].
    documents: int64[n + 1], document i is pieces documents[i]:documents[i + 1].
    spans: int64[s, 2] of byte ranges in `text` that are supervised, sorted, disjoint, on character
        borders; None where every byte is.
    keys: int32[n].
    plain: int64[k, 2] of byte ranges in `text`, sorted and disjoint, whose special-token text is a
        message's own and is encoded as plain text; None where there is none.
    """

    text: UInt8
    pieces: Int64
    documents: Int64
    spans: Int64 | None
    keys: Int32
    plain: Int64 | None = None

    def __len__(self) -> int:
        return len(self.documents) - 1


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Documents as token ids.

    ids: int32[t], of all documents back to back.
    documents: int64[n + 1], document i is ids[documents[i]:documents[i + 1]].
    supervised: uint8[t], 1 where the token is a target; None where all are.
    seams: int32[n] or None: tokens that straddle the border of a supervised span, per document.
    keys: int32[n].
    """

    ids: Int32
    documents: Int64
    supervised: UInt8 | None
    seams: Int32 | None
    keys: Int32

    def __len__(self) -> int:
        return len(self.documents) - 1


def select_documents(batch: TextBatch, which: Int64) -> TextBatch:
    """The documents of the given positions, in that order, as a batch of their own."""
    texts, pieces, documents = [], [np.zeros(1, np.int64)], [0]
    spans: list[Int64] = []
    plain: list[Int64] = []
    size = 0
    for i in which.tolist():
        first, last = int(batch.documents[i]), int(batch.documents[i + 1])
        start, end = int(batch.pieces[first]), int(batch.pieces[last])
        texts.append(batch.text[start:end])
        pieces.append(batch.pieces[first + 1 : last + 1] - start + size)
        documents.append(documents[-1] + last - first)
        for ranges, chosen in ((batch.spans, spans), (batch.plain, plain)):
            if ranges is not None:
                lo, hi = np.searchsorted(ranges[:, 0], [start, end])
                chosen.append(ranges[lo:hi] - start + size)
        size += end - start
    return TextBatch(
        text=np.concatenate([np.empty(0, np.uint8), *texts]),
        pieces=np.concatenate(pieces),
        documents=np.array(documents, np.int64),
        spans=None if batch.spans is None else np.concatenate([np.empty((0, 2), np.int64), *spans]),
        keys=batch.keys[which],
        plain=None if batch.plain is None else np.concatenate([np.empty((0, 2), np.int64), *plain]),
    )


def insert_ids(batch: TokenBatch, first: int | None, last: int | None) -> TokenBatch:
    """Every document with one supervised id put before and one after it, where they are given."""
    n = len(batch)
    places: list[Int64] = []
    values: list[Int32] = []
    for token_id, where in ((first, batch.documents[:-1]), (last, batch.documents[1:])):
        if token_id is not None:
            places.append(where)
            values.append(np.full(n, token_id, np.int32))
    if not places:
        return batch
    # np.insert puts values of one place in the order given; documents must take turns there.
    order = np.argsort(np.concatenate([2 * np.arange(n) + k for k in range(len(places))]), kind="stable")
    at, inserted = np.concatenate(places)[order], np.concatenate(values)[order]
    supervised = batch.supervised
    return TokenBatch(
        ids=np.insert(batch.ids, at, inserted),
        documents=batch.documents + len(places) * np.arange(n + 1),
        supervised=None if supervised is None else np.insert(supervised, at, np.uint8(1)),
        seams=batch.seams,
        keys=batch.keys,
    )
