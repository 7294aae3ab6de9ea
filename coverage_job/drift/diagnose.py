"""Is it the common push or learning: do the rows' changes point one way?

Rows without targets get only the push that every other target gives them, so their changes share a
direction; rows that learn move each their own way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import orjson

from coverage_job.checkpoint.files import Files
from coverage_job.checkpoint.matrix import Matrix
from coverage_job.drift.score import RowScores
from coverage_job.errors import CheckpointError
from coverage_job.storage import join

if TYPE_CHECKING:
    import torch

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

# Rows per group whose changes enter the principal component; more are sampled.
COMPONENT_ROWS = 16_384


@dataclass(frozen=True)
class Group:
    """Rows that are looked at together: a name and a mask over the after matrix's rows."""

    name: str
    rows: Bool


def diagnose(
    before: Matrix,
    after: Matrix,
    scores: RowScores,
    groups: list[Group],
    *,
    row_map: Int64 | None = None,
    learning_rates: float | None = None,
    device: str = "cpu",
    component_rows: int = COMPONENT_ROWS,
) -> dict[str, Any]:
    """Per group, over its rows that changed: do they move together, and did they grow.

    rows, changed; mean_cosine; pairwise_cosine: mean cosine between the changes of two rows, exact, from the
    norm of the sum of unit changes; first_component: share of the changes' squared length along their first
    (uncentred) principal component, from at most `component_rows` rows drawn by a fixed seed;
    growth: mean of norm after over norm before; relative_change: rms change over rms value before;
    steps_over_rms: `learning_rates` (the sum over steps) over the median rms of the rows before.
    Memory: 4 columns² bytes per group, twice.
    """
    return {
        group.name: _of_group(before, after, scores, group, row_map, learning_rates, device, component_rows)
        for group in groups
    }


def _of_group(
    before: Matrix,
    after: Matrix,
    scores: RowScores,
    group: Group,
    row_map: Int64 | None,
    learning_rates: float | None,
    device: str,
    component_rows: int,
) -> dict[str, Any]:
    usable = group.rows & ~np.isnan(scores.cosine)
    changed = np.flatnonzero(usable & (scores.l2 > 0))
    norm_before = scores.norm_before[usable]
    rms = norm_before / np.sqrt(after.shape[1])
    result: dict[str, Any] = {
        "rows": int(usable.sum()),
        "changed": len(changed),
        "mean_cosine": _mean(scores.cosine[usable]),
        "growth": _mean(scores.norm_after[usable] / norm_before),
        "relative_change": _root_mean(scores.l2[usable], norm_before),
        "pairwise_cosine": None,
        "first_component": None,
        "steps_over_rms": (
            float(learning_rates / np.median(rms)) if learning_rates is not None and len(rms) else None
        ),
    }
    if len(changed) < 2:
        return result
    drawn = np.zeros(after.shape[0], dtype=bool)
    if len(changed) > component_rows:
        drawn[np.random.default_rng(0).choice(changed, component_rows, replace=False)] = True
    else:
        drawn[changed] = True
    total = np.zeros(after.shape[1])
    gram = Gram(after.shape[1], device)
    for ids, change in _changes(before, after, changed, row_map):
        total += (1 / scores.l2[ids]).astype(np.float32) @ change
        if drawn[ids].any():
            gram.add(change[drawn[ids]])
    n = len(changed)
    result["pairwise_cosine"] = float((total @ total - n) / (n * (n - 1)))
    result["first_component"] = gram.leading()[0] / gram.trace()
    return result


def _changes(
    before: Matrix, after: Matrix, ids: Int64, row_map: Int64 | None, size: int = 32 << 20
) -> Iterator[tuple[Int64, npt.NDArray[np.float32]]]:
    """(ids, after - before as float32), about `size` bytes at a time."""
    step = max(1, size // (4 * after.shape[1]))
    for start in range(0, len(ids), step):
        part = ids[start : start + step]
        yield part, after.rows_of(part) - before.rows_of(part if row_map is None else row_map[part])


def _mean(values: Float64) -> float | None:
    return float(values.mean()) if len(values) else None


def _root_mean(change: Float64, norm: Float64) -> float | None:
    return float(np.sqrt((change**2).sum() / (norm**2).sum())) if len(change) else None


class Gram:
    """The sum of outer products of rows, float32[columns, columns] on a device, and its first component."""

    def __init__(self, columns: int, device: str) -> None:
        import torch

        self._device = device
        self._sum = torch.zeros(columns, columns, device=device)

    def add(self, rows: npt.NDArray[np.float32]) -> None:
        import torch

        x = torch.from_numpy(rows).to(self._device)
        self._sum.addmm_(x.T, x)

    def trace(self) -> float:
        return float(self._sum.diagonal().double().sum())

    def leading(self, steps: int = 60, width: int = 8) -> tuple[float, torch.Tensor]:
        """(largest eigenvalue, its unit vector float32[columns]), by subspace iteration from a fixed seed."""
        import torch

        generator = torch.Generator().manual_seed(0)
        columns = self._sum.shape[0]
        basis = torch.randn(columns, min(width, columns), generator=generator).to(self._device)
        for _ in range(steps):
            basis, _ = torch.linalg.qr(self._sum @ basis)
        values, vectors = torch.linalg.eigh(basis.T @ (self._sum @ basis))
        return float(values[-1]), basis @ vectors[:, -1]


def sum_of_learning_rates(files: Files, folder: str | None) -> float | None:
    """Sum over all steps, from the log of `trainer_state.json` in a checkpoint folder; None without one.

    An entry stands for the steps since the entry before it. Raises CheckpointError where the file is torn.
    """
    if folder is None:
        return None
    path = join(folder, "trainer_state.json")
    try:
        size = files.size(path)
    except CheckpointError:
        return None
    try:
        history = orjson.loads(files.read(path, 0, min(size, 256 << 20)))["log_history"]
        entries = sorted(
            (int(e["step"]), float(e["learning_rate"]))
            for e in history
            if "learning_rate" in e and "step" in e
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        raise CheckpointError(f"checkpoint {path}: no trainer's log; remove it, or copy it again") from None
    total, last = 0.0, 0
    for step, rate in entries:
        total += rate * (step - last)
        last = step
    return total if entries else None
