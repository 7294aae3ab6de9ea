"""Under-trained rows of one checkpoint, as in "Fishing for Magikarp" (arXiv 2405.05417).

Rows that training never used stay near one another, and a token that training hardly met stays near
them. The reference rows are the vocabulary table's unused and unreachable ones, not a list made by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coverage_job.checkpoint.matrix import Matrix
from coverage_job.drift.diagnose import COMPONENT_ROWS, Gram
from coverage_job.drift.neighbours import blocks

Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

# The share of the vocabulary that the paper verifies as candidates.
CANDIDATE_SHARE = 0.02


@dataclass(frozen=True)
class Indicators:
    """float64[rows] each, NaN where a row is zero or broken: cosine and distance to the mean of unused rows.

    centred: after the mean of all rows was taken off. without_first: after their first (uncentred) principal
    component was, which holds what is common to all output rows (of a sample, where there are more than
    `COMPONENT_ROWS`).
    """

    cosine: Float64
    l2: Float64
    centred: Float64
    without_first: Float64


def unused_indicators(matrix: Matrix, unused: Bool, device: str = "cpu") -> Indicators | None:
    """Indicators of every row; None where no unused row is usable. Reads the matrix twice.

    unused: bool[rows]. Memory: 4 columns² bytes, twice.
    """
    rows, columns = matrix.shape
    drawn = np.ones(rows, dtype=bool)
    if rows > COMPONENT_ROWS:
        drawn[:] = False
        drawn[np.random.default_rng(0).choice(rows, COMPONENT_ROWS, replace=False)] = True
    total, reference = np.zeros(columns), np.zeros(columns)
    count = references = 0
    gram = Gram(columns, device)
    for start, block in blocks(matrix):
        span = slice(start, start + len(block))
        finite = np.isfinite(block).all(axis=1)
        chosen = finite & unused[span]
        total += np.ones(int(finite.sum()), np.float32) @ block[finite]
        reference += block[chosen].sum(axis=0, dtype=np.float64)
        count, references = count + int(finite.sum()), references + int(chosen.sum())
        gram.add(block[finite & drawn[span]])
    if references == 0:
        return None
    mean, reference = total / count, reference / references
    first = gram.leading()[1].cpu().numpy().astype(np.float64)
    first /= np.linalg.norm(first)
    axes = np.stack([reference, mean, first], axis=1)
    # Everything below follows from three products and a length per row.
    (rr, rm, rf), mm = reference @ axes, mean @ mean
    result = Indicators(*(np.full(rows, np.nan) for _ in range(4)))
    for start, x in _pieces(matrix):
        span = slice(start, start + len(x))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            xx = np.einsum("ij,ij->i", x, x)
            xr, xm, xf = (x @ axes).T
            result.cosine[span] = xr / np.sqrt(xx * rr)
            result.l2[span] = np.sqrt(np.maximum(xx - 2 * xr + rr, 0))
            result.centred[span] = (xr - xm - rm + mm) / np.sqrt((xx - 2 * xm + mm) * (rr - 2 * rm + mm))
            result.without_first[span] = (xr - xf * rf) / np.sqrt((xx - xf**2) * (rr - rf**2))
            directed = np.isfinite(xx) & (xx > 0)
        for values in (result.cosine, result.l2, result.centred, result.without_first):
            values[span][~directed] = np.nan
    return result


def _pieces(matrix: Matrix, size: int = 1 << 20) -> Iterator[tuple[int, Float64]]:
    """(first id, float64 rows) of about `size` bytes, which stay in a cache while they are worked on."""
    step = max(1, size // (8 * matrix.shape[1]))
    for start, block in blocks(matrix):
        for at in range(0, len(block), step):
            yield start + at, block[at : at + step].astype(np.float64)


def candidates(
    embedding_norm: Float64 | None,
    indicators: Indicators | None,
    eligible: Bool,
    share: float = CANDIDATE_SHARE,
) -> Bool | None:
    """bool[rows]: the `share` of eligible rows that look least trained; None where nothing tells.

    embedding_norm: of untied models, whose unused input rows only decay: the shortest are candidates.
    Else (tied matrices) those nearest in cosine to the unused rows without the first component.
    """
    if embedding_norm is not None:
        value = embedding_norm
    elif indicators is not None:
        value = -indicators.without_first
    else:
        return None
    usable = np.flatnonzero(eligible & ~np.isnan(value))
    chosen = usable[np.argsort(value[usable], kind="stable")[: int(np.ceil(share * len(usable)))]]
    result = np.zeros(len(value), dtype=bool)
    result[chosen] = True
    return result
