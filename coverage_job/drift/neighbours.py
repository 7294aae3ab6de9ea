"""The rows nearest to a row by cosine, exactly, by blocked matrix products.

Cosines are float32 products of float32 unit rows (no TF32). Rows of one direction, whose unit rows are equal
bit for bit, are one candidate, so that they tie whatever the order of a sum was: of equal cosines the lowest
id comes first. Other rows whose cosines differ by less than float32 can tell (about 1e-6) may change places.
A row is no neighbour of itself; zero rows and rows with NaN or infinity have none and are none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coverage_job.checkpoint.dtypes import Float32
from coverage_job.checkpoint.matrix import Matrix
from coverage_job.drift.score import Progress

if TYPE_CHECKING:
    import torch

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


def nearest(
    matrix: Matrix,
    ids: Int64,
    k: int = 10,
    *,
    device: str = "cpu",
    memory: int | None = None,
    progress: Progress | None = None,
) -> Int32:
    """int32[len(ids), k]: the k nearest rows of each of `ids`, nearest first, -1 where there are fewer.

    memory: bytes that query rows and similarities may take, by default 1 GiB or half of a GPU's free memory;
    where not all queries fit, the matrix is read once per group of queries that do.
    """
    if memory is None:
        memory = _budget(device)
    groups = _Groups(matrix)
    query_bytes = matrix.shape[1] * 4
    group = max(1, min(len(ids), int(memory * 0.6) // query_bytes))
    result = np.full((len(ids), k), -1, dtype=np.int32)
    for start in range(0, len(ids), group):
        part = ids[start : start + group]
        result[start : start + len(part)] = _nearest(matrix, groups, part, k, device, memory)
        if progress is not None:
            progress(f"{matrix.name} neighbours", start + len(part), len(ids))
    return result


def _budget(device: str) -> int:
    import torch

    return torch.cuda.mem_get_info()[0] // 2 if device == "cuda" else 1 << 30


class _Groups:
    """Rows of one direction, known by the lowest id among them.

    first: int64[rows], that id for each row; -1 for a row without a direction.
    members: the ids, ascending, of groups of two or more.
    """

    def __init__(self, matrix: Matrix) -> None:
        self.first = np.full(matrix.shape[0], -1, dtype=np.int64)
        self.members: dict[int, list[int]] = {}
        seen: dict[bytes, int] = {}
        for start, rows in blocks(matrix):
            directions = unit(_tensor(rows)).numpy()
            for i in np.flatnonzero(np.isfinite(directions).all(axis=1)).tolist():
                row = start + i
                key = hashlib.blake2b(directions[i].data, digest_size=16).digest()
                self.first[row] = first = seen.setdefault(key, row)
                if first != row:
                    self.members.setdefault(first, [first]).append(row)

    def expand(self, query: int, firsts: list[int], k: int) -> list[int]:
        """Ids of the groups, in order, without the query itself; k at most."""
        found: list[int] = []
        for first in firsts:
            if first < 0 or len(found) >= k:
                break
            # k + 1 of a group are enough: one of them may be the query.
            members = self.members.get(first, [first])[: k + 1]
            found += [row for row in members if row != query]
        return found[:k]


def blocks(matrix: Matrix, size: int = 32 << 20) -> Iterator[tuple[int, Float32]]:
    """(first id, float32 rows) over the whole matrix, about `size` bytes of float32 at a time."""
    step = max(1, size // (matrix.shape[1] * 4))
    for start in range(0, matrix.shape[0], step):
        yield start, matrix.rows(start, min(matrix.shape[0], start + step))


def _tensor(rows: Float32, device: str = "cpu") -> torch.Tensor:
    import torch

    return torch.from_numpy(rows).to(device)


def unit(rows: torch.Tensor) -> torch.Tensor:
    """Rows at length one; NaN where a row has no direction."""
    import torch

    # Squares of large values leave float32, lengths do not. Adding zero makes -0 and 0 the same bits.
    norm = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64).float()
    directions: torch.Tensor = rows / norm + 0.0
    return directions


def _nearest(matrix: Matrix, groups: _Groups, ids: Int64, k: int, device: str, memory: int) -> Int32:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    queries = unit(_tensor(matrix.rows_of(ids), device))
    own = torch.from_numpy(groups.first[ids]).to(device)
    # One more than k: a group of equal rows holds the query itself, and may hold nothing else.
    keep = k + 1
    best = torch.full((len(ids), keep), -torch.inf, device=device)
    best_ids = torch.full((len(ids), keep), -1, dtype=torch.int64, device=device)
    rows_at_once = max(256, min(16384, int(memory * 0.2) // (4 * matrix.shape[1])))
    for start, block in blocks(matrix, rows_at_once * 4 * matrix.shape[1]):
        index = np.arange(start, start + len(block))
        leading = groups.first[index] == index
        if not leading.any():
            continue
        candidates = unit(_tensor(block[leading], device))
        candidate_ids = torch.from_numpy(index[leading]).to(device)
        at_once = max(1, int(memory * 0.2) // (4 * len(candidate_ids)))
        for low in range(0, len(ids), at_once):
            high = min(len(ids), low + at_once)
            similarity = queries[low:high] @ candidates.T
            # A row's own group is the nearest there can be, whatever rounding says.
            similarity.masked_fill_(own[low:high, None] == candidate_ids[None, :], 2.0)
            values, at = similarity.topk(min(keep, similarity.shape[1]), dim=1)
            merged = torch.cat([best[low:high], values], 1)
            merged_ids = torch.cat([best_ids[low:high], candidate_ids[at]], 1)
            # By id first, then stably by cosine: equal cosines keep the lowest ids.
            order = merged_ids.argsort(dim=1)
            merged, merged_ids = merged.gather(1, order), merged_ids.gather(1, order)
            order = merged.argsort(dim=1, descending=True, stable=True)[:, :keep]
            best[low:high], best_ids[low:high] = merged.gather(1, order), merged_ids.gather(1, order)
    found = best_ids.tolist()
    result = np.full((len(ids), k), -1, dtype=np.int32)
    for i, query in enumerate(ids.tolist()):
        if groups.first[query] >= 0:
            row = groups.expand(query, found[i], k)
            result[i, : len(row)] = row
    return result


def overlap(before: Int32, after: Int32) -> npt.NDArray[np.float64]:
    """float64[n]: the share of a row's neighbours after that were so before; NaN where it has none."""
    shared = ((before[:, :, None] == after[:, None, :]) & (after[:, None, :] >= 0)).any(axis=1).sum(axis=1)
    count = (after >= 0).sum(axis=1)
    with np.errstate(invalid="ignore"):
        return np.where(count > 0, shared / count, np.nan)
