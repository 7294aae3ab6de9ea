"""A sample of each split's documents, encoded again by the reference in the run itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from coverage_job.corpus.documents import Int64, TextBatch, TokenBatch, select_documents
from coverage_job.counting.reference import ReferenceKernel

# The first documents of a split are always in the sample, so that a small split has one too.
_AT_LEAST = 8
# The reference takes memory in proportion to a document, some hundred times its bytes.
_LARGEST_BYTES = 1 << 20


@dataclass
class Audit:
    """Documents encoded twice, and where the two differed.

    oversize: documents that were due but are over 1 MiB.
    """

    every: int
    documents: int = 0
    bytes: int = 0
    differing: int = 0
    oversize: int = 0
    examples: list[str] = field(default_factory=list)
    _seen: int = 0

    def check(self, batch: TextBatch, encoded: TokenBatch, reference: ReferenceKernel) -> bool:
        """Encode the sampled documents of a batch again; whether all ids and masks are equal."""
        due = self._due(len(batch))
        sizes = batch.pieces[batch.documents[due + 1]] - batch.pieces[batch.documents[due]]
        self.oversize += int((sizes > _LARGEST_BYTES).sum())
        due = due[sizes <= _LARGEST_BYTES]
        if len(due) == 0:
            return True
        sample = select_documents(batch, due)
        expected = reference.encode(sample)
        self.documents += len(due)
        self.bytes += len(sample.text)
        equal = True
        for k, i in enumerate(due.tolist()):
            if not _same(expected, k, encoded, i):
                equal = False
                self.differing += 1
                if len(self.examples) < 3:
                    first, last = sample.documents[k], sample.documents[k + 1]
                    text = sample.text[sample.pieces[first] : sample.pieces[last]]
                    self.examples.append(bytes(text[:200]).decode("utf-8", "replace"))
        return equal

    def _due(self, n: int) -> Int64:
        ordinals = self._seen + np.arange(n)
        self._seen += n
        due: Int64 = np.flatnonzero((ordinals < _AT_LEAST) | (ordinals % self.every == 0))
        return due


def _same(a: TokenBatch, i: int, b: TokenBatch, j: int) -> bool:
    left = slice(int(a.documents[i]), int(a.documents[i + 1]))
    right = slice(int(b.documents[j]), int(b.documents[j + 1]))
    if not np.array_equal(a.ids[left], b.ids[right]):
        return False
    if a.supervised is None or b.supervised is None:
        return a.supervised is b.supervised
    return np.array_equal(a.supervised[left], b.supervised[right])
