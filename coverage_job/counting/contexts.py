"""Texts in which tokens stand that the vocabulary table knows no text for.

A text corpus that holds such a token proves that it can be reached; the text around it is the proof.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from coverage_job.corpus.documents import TextBatch, TokenBatch

# Characters kept on each side of the token, tried in turn until the excerpt encodes to it.
_MARGINS = (4, 16, 64, 256, 1024)
# Larger pieces are not encoded again, and a token is given up after some pieces: its count stands without.
_LARGEST_BYTES = 1 << 20
_TRIES = 8


class Contexts:
    """Finds one text per watched id, in the batches a task reads anyway.

    watched: ids whose reachability is still open.
    """

    def __init__(self, tokenizer: Tokenizer, watched: npt.NDArray[np.int32], rows: int) -> None:
        self._tokenizer = tokenizer
        # Tries left per id; 0 where it is not sought.
        self._tries = np.zeros(rows, np.int8)
        self._tries[watched] = _TRIES
        self._sought = frozenset(watched.tolist())
        self.found: dict[int, str] = {}

    def look(self, batch: TextBatch, encoded: TokenBatch) -> None:
        """Note a text for each watched id that stands in `encoded`, the encoding of `batch`."""
        hits = np.flatnonzero(self._tries[encoded.ids])
        while len(hits):
            document = int(np.searchsorted(encoded.documents, hits[0], side="right")) - 1
            end = encoded.documents[document + 1]
            self._tries[np.unique(encoded.ids[hits[hits < end]])] -= 1
            for piece in range(int(batch.documents[document]), int(batch.documents[document + 1])):
                data = batch.text[batch.pieces[piece] : batch.pieces[piece + 1]]
                if len(data) <= _LARGEST_BYTES:
                    self._look_in(bytes(data).decode())
            hits = hits[hits >= end]
            hits = hits[self._tries[encoded.ids[hits]] > 0]

    def _look_in(self, text: str) -> None:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id not in self._sought or token_id in self.found:
                continue
            for margin in _MARGINS:
                excerpt = text[max(0, start - margin) : end + margin]
                if token_id in self._tokenizer.encode(excerpt, add_special_tokens=False).ids:
                    self.found[token_id] = excerpt
                    self._tries[token_id] = 0
                    break
