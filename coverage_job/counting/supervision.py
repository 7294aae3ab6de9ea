"""Which tokens bear loss, once a batch is encoded: truncation, and the token side of the mask audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from coverage_job.corpus.audit import MaskAudit
from coverage_job.corpus.documents import Int64, TokenBatch

Bool = npt.NDArray[np.bool_]


def truncate(
    batch: TokenBatch, max_length: int, side: Literal["right", "left"] = "right"
) -> tuple[TokenBatch, Bool, Bool]:
    """(the batch with each document cut to `max_length` tokens, cut, answer cut) per document.

    side: the side that is cut off. An answer is cut where at least one supervised token is. Seams keep
    the count of the whole document: they are facts of the text.
    """
    lengths = np.diff(batch.documents)
    kept = np.minimum(lengths, max_length)
    cut = lengths > max_length
    if not cut.any():
        return batch, cut, cut
    first = batch.documents[:-1] if side == "right" else batch.documents[1:] - kept
    documents = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    take = np.arange(documents[-1]) + np.repeat(first - documents[:-1], kept)
    supervised = batch.supervised[take] if batch.supervised is not None else None
    if batch.supervised is None or supervised is None:
        answer_cut = cut
    else:
        answer_cut = _sums(batch.supervised, batch.documents) > _sums(supervised, documents)
    out = TokenBatch(batch.ids[take], documents, supervised, batch.seams, batch.keys)
    return out, cut, answer_cut


@dataclass(frozen=True, slots=True)
class Watched:
    """Ids that the audit looks for. bos: of BOS, None where there is none. ends: id -> its text."""

    bos: int | None
    ends: Mapping[int, str]


def audit_tokens(
    audit: MaskAudit,
    batch: TokenBatch,
    watched: Watched,
    cut: Bool | None = None,
    answer_cut: Bool | None = None,
) -> Bool:
    """Adds a batch to `audit`; returns which documents have no target, bool[n].

    batch: after truncation. cut, answer_cut: what `truncate` said.
    """
    audit.records += len(batch)
    audit.tokens += len(batch.ids)
    supervised = batch.supervised if batch.supervised is not None else np.ones(len(batch.ids), np.uint8)
    audit.supervised_tokens += int(np.count_nonzero(supervised))
    empty: Bool = np.equal(_sums(supervised, batch.documents), 0)
    audit.without_target += int(empty.sum())
    if batch.seams is not None:
        audit.seam_tokens += int(batch.seams.sum())
        audit.with_seams += int(np.count_nonzero(batch.seams))
    if watched.bos is not None:
        audit.with_two_bos += int((_sums(batch.ids == watched.bos, batch.documents) > 1).sum())
    for token, text in watched.ends.items():
        here = batch.ids == token
        pair = audit.end_of_turn.setdefault(text, [0, 0])
        pair[0] += int(np.count_nonzero(here))
        pair[1] += int(np.count_nonzero(here & (supervised != 0)))
    if cut is not None:
        audit.truncated += int(cut.sum())
    if answer_cut is not None:
        audit.truncated_answers += int(answer_cut.sum())
    return empty


def _sums(values: npt.NDArray[np.generic], documents: Int64) -> Int64:
    """Sum of non-negative `values` per document; 0 for an empty one."""
    total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    return np.asarray(total[documents[1:]] - total[documents[:-1]], np.int64)
