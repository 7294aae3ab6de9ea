"""Tiny checkpoints, made at run time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


def matrix(rows: int, columns: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(dtype)


def others(count: int = 20, columns: int = 64, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    return {
        f"model.layers.{i}.mlp.up_proj.weight": matrix(4 * columns, columns, 100 + i, dtype)
        for i in range(count)
    }


def save_sharded(folder: Path, shards: Mapping[str, Mapping[str, torch.Tensor]], **config: Any) -> Path:
    """A folder with an index, one file per entry of `shards`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in shards.items():
        save_file(dict(tensors), folder / name)
    weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def save_single(folder: Path, tensors: Mapping[str, torch.Tensor], **config: Any) -> Path:
    """A folder with one model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def pair(head: torch.Tensor, embedding: torch.Tensor, prefix: str = "model.") -> dict[str, torch.Tensor]:
    return {"lm_head.weight": head, f"{prefix}embed_tokens.weight": embedding}
