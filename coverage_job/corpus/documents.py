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
