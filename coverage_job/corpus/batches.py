"""Assembling batches of documents that are bounded by bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coverage_job.corpus.documents import Int64, TextBatch, TokenBatch

# Text of one batch; a longer document is a batch alone.
BATCH_BYTES = 8 << 20


def _borders(lengths: list[int]) -> Int64:
    borders = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=borders[1:])
    return borders


class TextBuilder:
    """Collects documents into `TextBatch`es.

    spanned: whether documents say which of their bytes are supervised; otherwise all are.
    """

    def __init__(self, *, spanned: bool) -> None:
        self.spanned = spanned
        self._clear()

    def _clear(self) -> None:
        self._text: list[Any] = []
        self._pieces: list[int] = []
        self._documents: list[int] = []
        self._spans: list[tuple[int, int]] = []
        self._plain: list[tuple[int, int]] = []
        self._keys: list[int] = []
        self.size = 0
        self._single = True

    def add(
        self,
        pieces: Sequence[bytes],
        spans: Sequence[tuple[int, int]] | None,
        key: int,
        plain: Sequence[tuple[int, int]] = (),
    ) -> Iterator[TextBatch]:
        """One document; gives full batches. spans, plain: byte ranges over its pieces back to back."""
        size = sum(map(len, pieces))
        if self.size and self.size + size > BATCH_BYTES:
            yield self.take()
        if spans:
            self._spans.extend((self.size + start, self.size + end) for start, end in spans)
        self._plain.extend((self.size + start, self.size + end) for start, end in plain)
        self._text.extend(pieces)
        self._pieces.extend(map(len, pieces))
        self._documents.append(len(pieces))
        self._single = self._single and len(pieces) == 1
        self._keys.append(key)
        self.size += size
        if self.size >= BATCH_BYTES:
            yield self.take()

    def add_texts(self, texts: Sequence[bytes], keys: list[int]) -> Iterator[TextBatch]:
        """Documents of one piece each."""
        lengths = list(map(len, texts))
        size = sum(lengths)
        if self.size + size > BATCH_BYTES:
            for text, key in zip(texts, keys, strict=True):
                yield from self.add((text,), None, key)
            return
        self._text.extend(texts)
        self._extend(lengths, keys, size)

    def add_array(
        self, text: npt.NDArray[np.uint8], borders: Int64, keys: Sequence[int]
    ) -> Iterator[TextBatch]:
        """Documents of one piece each: document i is text[borders[i]:borders[i + 1]]."""
        first = 0
        count = len(borders) - 1
        while first < count:
            room = BATCH_BYTES - self.size
            last = int(np.searchsorted(borders, borders[first] + room, side="right")) - 1
            if last <= first:
                if self.size:
                    yield self.take()
                    continue
                last = first + 1
            last = min(last, count)
            size = int(borders[last] - borders[first])
            self._text.append(text[borders[first] : borders[last]])
            self._extend(np.diff(borders[first : last + 1]).tolist(), list(keys[first:last]), size)
            first = last

    def _extend(self, lengths: list[int], keys: list[int], size: int) -> None:
        self._pieces.extend(lengths)
        self._documents.extend([1] * len(lengths))
        self._keys.extend(keys)
        self.size += size

    def __len__(self) -> int:
        return len(self._documents)

    def take(self) -> TextBatch:
        """The batch so far, which may be empty; the builder begins anew."""
        text = np.frombuffer(b"".join(self._text), np.uint8)
        documents = (
            np.arange(len(self._documents) + 1, dtype=np.int64) if self._single else _borders(self._documents)
        )
        batch = TextBatch(
            text=text,
            pieces=_borders(self._pieces),
            documents=documents,
            spans=np.array(self._spans, np.int64).reshape(-1, 2) if self.spanned else None,
            keys=np.array(self._keys, np.int32),
            plain=np.array(self._plain, np.int64) if self._plain else None,
        )
        self._clear()
        return batch


class TokenBuilder:
    """Collects documents of ids into `TokenBatch`es.

    masked: whether documents come with a mask of supervised tokens; otherwise all are.
    """

    def __init__(self, *, masked: bool) -> None:
        self.masked = masked
        self._clear()

    def _clear(self) -> None:
        self._ids: list[npt.NDArray[np.int32]] = []
        self._masks: list[npt.NDArray[np.uint8]] = []
        self._documents: list[int] = []
        self._keys: list[int] = []
        self.size = 0

    def add(
        self,
        ids: npt.NDArray[np.int32],
        lengths: Sequence[int],
        mask: npt.NDArray[np.uint8] | None,
        keys: Sequence[int],
    ) -> Iterator[TokenBatch]:
        """Documents back to back in `ids`, of the given lengths. Gives batches that are full."""
        if self.size and self.size + ids.nbytes > BATCH_BYTES:
            yield self.take()
        self._ids.append(ids)
        if self.masked and mask is not None:
            self._masks.append(mask)
        self._documents.extend(lengths)
        self._keys.extend(keys)
        self.size += ids.nbytes
        if self.size >= BATCH_BYTES:
            yield self.take()

    def __len__(self) -> int:
        return len(self._documents)

    def take(self) -> TokenBatch:
        """The batch so far, which may be empty; the builder begins anew."""
        batch = TokenBatch(
            ids=np.concatenate(self._ids) if self._ids else np.empty(0, np.int32),
            documents=_borders(self._documents),
            supervised=(
                (np.concatenate(self._masks) if self._masks else np.empty(0, np.uint8))
                if self.masked
                else None
            ),
            seams=None,
            keys=np.array(self._keys, np.int32),
        )
        self._clear()
        return batch
