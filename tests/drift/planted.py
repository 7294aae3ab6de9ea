"""Matrices with known drift, and the slow reference that they are held against."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.checkpoint.make import matrix, save_single

PLANTED = {0: 1.0, 1: 0.95, 2: 0.9, 3: 0.329, 4: -1.0}
ZERO_BOTH, ZERO_AFTER, NAN, INF, DUPLICATE = 10, 11, 12, 13, 14


def planted(
    rows: int, columns: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[torch.Tensor, ...]:
    """(before, after): rows of `PLANTED` cosines, broken rows, and duplicates of row 5 at 14 and 15."""
    before = matrix(rows, columns, seed).double()
    noise = matrix(rows, columns, seed + 1).double()
    noise -= (noise * before).sum(1, keepdim=True) / (before * before).sum(1, keepdim=True) * before
    noise *= before.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True)
    cosine = 0.9 + 0.1 * torch.rand(
        rows, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    for row, value in PLANTED.items():
        cosine[row] = value
    after = 1.3 * (cosine * before + (1 - cosine**2).clamp(min=0).sqrt() * noise)
    before[ZERO_BOTH] = after[ZERO_BOTH] = after[ZERO_AFTER] = 0
    before[NAN, 3] = float("nan")
    after[INF, 1] = float("inf")
    before[DUPLICATE : DUPLICATE + 2] = before[5]
    after[DUPLICATE : DUPLICATE + 2] = after[5]
    return before.to(dtype), after.to(dtype)


def reference(before: torch.Tensor, after: torch.Tensor) -> dict[str, np.ndarray]:
    """cosine, l2, relative_l2, norm_before, norm_after in float64, NaN where undefined."""
    x, y = before.double(), after.double()
    broken = ~(torch.isfinite(x).all(1) & torch.isfinite(y).all(1))
    nx, ny, l2 = x.norm(dim=1), y.norm(dim=1), (y - x).norm(dim=1)
    values = {
        "cosine": (x * y).sum(1) / (nx * ny),
        "l2": l2,
        "relative_l2": l2 / nx,
        "norm_before": nx,
        "norm_after": ny,
    }
    values["relative_l2"][nx == 0] = float("nan")
    for value in values.values():
        value[broken] = float("nan")
    return {name: value.numpy() for name, value in values.items()}


def save_planted(folder: Path, rows: int, columns: int, dtype: torch.dtype) -> tuple[Path, Path]:
    """Two single-file checkpoints, before and after, with both matrices planted."""
    head, embedding = planted(rows, columns, dtype, 0), planted(rows, columns, dtype, 7)
    paths = []
    for side, name in ((0, "before"), (1, "after")):
        tensors = {"lm_head.weight": head[side], "model.embed_tokens.weight": embedding[side]}
        paths.append(save_single(folder / name, tensors))
    return paths[0], paths[1]
