"""A checkpoint's two vocabulary matrices, found and streamed without the model.

The embedding has one row per token id, and so has the output matrix (`lm_head`). Only their bytes are
read, by ranges, from a folder, a file, or a list of tensor-parallel shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from coverage_job.checkpoint.dtypes import STORED, Float32, decode, is_float8
from coverage_job.checkpoint.files import Files, is_folder, listing
from coverage_job.checkpoint.formats import Stored, located, tensors
from coverage_job.checkpoint.matrix import Matrix, Scale
from coverage_job.errors import CheckpointError
from coverage_job.storage import join

# Tails of names in order of preference; a name matches where it is one of them or ends with "." and one.
LM_HEAD_NAMES = (
    "lm_head.weight",
    "embed_out.weight",
    "output_layer.weight",
    "lm_head.linear.weight",
    "output.weight",
    "ff_out.weight",
    "head.weight",
    "unembed.weight",
)
EMBEDDING_NAMES = (
    "embed_tokens.weight",
    "wte.weight",
    "tok_embeddings.weight",
    "embed_in.weight",
    "word_embeddings.weight",
    "tokens_embed.weight",
    "shared.weight",
    "embedding.weight",
    "embeddings.weight",
    "embed.weight",
    "emb.weight",
)
# Towers and heads that have vocabularies or matrices of their own.
_OTHER_PARTS = (
    "vision",
    "visual",
    "image",
    "audio",
    "speech",
    "talker",
    "token2wav",
    "mtp",
    "eagle",
    "medusa",
    "encoder",
    "position_embeddings",
)


@dataclass(frozen=True)
class Checkpoint:
    """What was opened.

    lm_head, embedding: None where there is none (a single matrix); the same one where `tied`.
    tied: why both are one matrix, or None where they are two.
    folder: the folder that holds it, None for a list of shards in different places.
    """

    source: str
    lm_head: Matrix | None
    embedding: Matrix | None
    tied: str | None
    folder: str | None
    files: Files = field(repr=False)

    @property
    def bytes_read(self) -> int:
        return self.files.bytes_read

    def matrix(self, role: str) -> Matrix | None:
        """The matrix of a role: ``lm_head`` or ``embedding``."""
        return self.lm_head if role == "lm_head" else self.embedding

    def rows(self, role: str, start: int, stop: int) -> Float32:
        """Rows start .. stop of a role's matrix as float32. Raises CheckpointError where it has none."""
        matrix = self.matrix(role)
        if matrix is None:
            raise CheckpointError(f"checkpoint {self.source}: has no {role}; name it with {_option(role)}")
        return matrix.rows(start, stop)


def open_checkpoint(
    path: str | Sequence[str], lm_head: str | None = None, embedding: str | None = None
) -> Checkpoint:
    """Find a checkpoint's two matrices.

    path: a folder, a file (.safetensors, .bin, .pt, .pth, .npy), local or any fsspec path, or a list of
        tensor-parallel shards in rank order.
    lm_head, embedding: names of the matrices, where they are not the usual ones.
    Raises CheckpointError naming the file at fault, or the matrices that could be meant.
    """
    files = Files()
    paths = [path] if isinstance(path, str) else [str(p) for p in path]
    if not paths:
        raise CheckpointError("checkpoint: an empty list of shards; give a folder, a file or the shards")
    shards = [_Shard.open(files, p) for p in paths]
    config = next((s.config for s in shards if s.config), {})
    source = ", ".join(paths)
    ranks = [rank for shard in shards for rank in shard.ranks]
    names = {"lm_head": lm_head, "embedding": embedding}
    found = {role: _find(source, ranks, role, name) for role, name in names.items()}
    if found["lm_head"] is None and found["embedding"] is None:
        raise CheckpointError(_nothing_found(source, ranks))
    matrices = {
        role: _assemble(source, files, name, ranks, config) if name is not None else None
        for role, name in found.items()
    }
    head, embed = matrices["lm_head"], matrices["embedding"]
    tied: str | None = None
    if head is None and embed is not None:
        head, tied = embed, f"no output matrix beside {embed.name}"
        if _tied_in(config):
            tied = "tie_word_embeddings in config.json"
    elif embed is not None and head is not None:
        if _tied_in(config) and lm_head is None:
            head, tied = embed, "tie_word_embeddings in config.json"
        elif head.parts == embed.parts or _same_place(head, embed):
            head, tied = embed, "both names are of one tensor"
    if head is not None and embed is not None and head.shape[0] != embed.shape[0]:
        raise CheckpointError(
            f"checkpoint {source}: {head.name} has {head.shape[0]} rows and {embed.name} {embed.shape[0]}; "
            "name the matrices of the language model with --lm-head and --embedding"
        )
    folder = shards[0].folder if len(shards) == 1 else None
    return Checkpoint(source, head, embed, tied, folder, files)


def _option(role: str) -> str:
    return "--lm-head" if role == "lm_head" else "--embedding"


def _same_place(a: Matrix, b: Matrix) -> bool:
    return [(p.path, p.offset) for p in a.parts] == [(p.path, p.offset) for p in b.parts]


def _tied_in(config: dict[str, Any]) -> bool:
    """Whether a model's configuration ties its matrices, also inside a multimodal wrapper."""
    for part in (config, config.get("text_config"), config.get("llm_config"), config.get("language_config")):
        if isinstance(part, dict) and "tie_word_embeddings" in part:
            return part["tie_word_embeddings"] is True
    return False


class _Rank:
    """One tensor-parallel rank: tensor names, and each one's place once it is asked for."""

    def __init__(self, files: Files, homes: dict[str, str] | None, paths: list[str]) -> None:
        self._files, self._homes, self._paths = files, homes, paths
        self._headers: dict[str, dict[str, Stored]] = {}

    def header(self, path: str) -> dict[str, Stored]:
        if path not in self._headers:
            self._headers[path] = tensors(self._files, path)
        return self._headers[path]

    def names(self) -> list[str]:
        if self._homes is not None:
            return list(self._homes)
        return [name for path in self._paths for name in self.header(path)]

    def get(self, name: str) -> Stored | None:
        if self._homes is not None:
            home = self._homes.get(name)
            if home is None:
                return None
            stored = self.header(home).get(name)
            if stored is None:
                raise CheckpointError(
                    f"checkpoint {home}: has no tensor {name[:80]!r}, though the index says so; "
                    "copy both again"
                )
        else:
            stored = next((h[name] for h in map(self.header, self._paths) if name in h), None)
        return located(self._files, stored) if stored is not None else None

    def all(self) -> Iterable[Stored]:
        for path in self._paths:
            yield from self.header(path).values()


@dataclass(frozen=True)
class _Shard:
    """One path given by the user: its configuration, and the ranks that it holds (mostly one)."""

    folder: str
    config: dict[str, Any]
    ranks: list[_Rank]

    @classmethod
    def open(cls, files: Files, path: str) -> _Shard:
        if not is_folder(path):
            folder = path.rsplit("/", 1)[0] if "/" in path else "."
            return cls(folder, _config(files, folder), [_Rank(files, None, [path])])
        names = [name for name in listing(path) if "/" not in name]
        config = _config(files, path) if "config.json" in names else {}
        index = next((n for n in _index_names(names) if n in names), None)
        if index is not None:
            homes = _read_index(files, join(path, index))
            folder_files = sorted({join(path, home) for home in homes.values()})
            return cls(
                path, config, [_Rank(files, {n: join(path, h) for n, h in homes.items()}, folder_files)]
            )
        for tail in (".safetensors", ".bin", ".pth", ".pt"):
            chosen = [n for n in names if n.endswith(tail) and not _is_training_state(n)]
            if not chosen:
                continue
            whole = [n for n in chosen if n in ("model.safetensors", "pytorch_model.bin")]
            if whole:
                chosen = whole[:1]
            ranked = len(chosen) > 1 and all(n.startswith("consolidated.") for n in chosen)
            groups = [[n] for n in chosen] if ranked else [chosen]
            return cls(path, config, [_Rank(files, None, [join(path, n) for n in group]) for group in groups])
        raise CheckpointError(f"checkpoint {path}: the folder holds no .safetensors, .bin, .pth or .pt file")


def _is_training_state(name: str) -> bool:
    return name.startswith(
        ("optimizer", "scheduler", "rng_state", "training_args", "scaler", "adapter_model")
    )


def _index_names(names: list[str]) -> list[str]:
    others = [n for n in names if n.endswith(".safetensors.index.json")]
    return ["model.safetensors.index.json", *others, "pytorch_model.bin.index.json"]


def _config(files: Files, folder: str) -> dict[str, Any]:
    path = join(folder, "config.json")
    try:
        size = files.size(path)
    except CheckpointError:
        return {}
    try:
        config = orjson.loads(files.read(path, 0, min(size, 16 << 20)))
    except orjson.JSONDecodeError:
        raise CheckpointError(f"checkpoint {path}: no valid JSON; copy it again") from None
    return config if isinstance(config, dict) else {}


def _read_index(files: Files, path: str) -> dict[str, str]:
    size = files.size(path)
    try:
        weight_map = orjson.loads(files.read(path, 0, min(size, 256 << 20)))["weight_map"]
        items = list(weight_map.items())
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"checkpoint {path}: no index of tensors (weight_map); copy it again") from None
    for name, home in items:
        if not isinstance(home, str) or "/" in home or "\\" in home or home in ("", ".", ".."):
            raise CheckpointError(
                f"checkpoint {path}: tensor {name[:80]!r} is said to lie in {str(home)[:80]!r}, "
                "which is no file of the folder; such an index is not followed"
            )
    return dict(items)


def _find(source: str, ranks: list[_Rank], role: str, name: str | None) -> str | None:
    names = ranks[0].names()
    if name is not None:
        if name not in names:
            raise CheckpointError(
                f"checkpoint {source}: has no tensor {name!r} ({_option(role)}); {_matrices(ranks)}"
            )
        return name
    if names == [""]:
        # A lone .npy array: what was saved to be compared is the output matrix.
        return "" if role == "lm_head" else None
    for tail in LM_HEAD_NAMES if role == "lm_head" else EMBEDDING_NAMES:
        matches = [n for n in names if (n == tail or n.endswith("." + tail)) and _of_language_model(n)]
        if len(matches) > 1:
            raise CheckpointError(
                f"checkpoint {source}: {', '.join(map(_shown, sorted(matches)[:4]))} could each be the "
                f"{role}; name it with {_option(role)}"
            )
        if matches:
            return matches[0]
    return None


def _of_language_model(name: str) -> bool:
    parts = name.lower().split(".")[:-1]
    return not any(part.isdigit() or any(other in part for other in _OTHER_PARTS) for part in parts)


def _matrices(ranks: list[_Rank]) -> str:
    shapes = {s.name: s.shape for rank in ranks[:1] for s in rank.all() if len(s.shape) == 2}
    tall = sorted((n for n, s in shapes.items() if s[0] > s[1]), key=lambda n: (-shapes[n][0], n))
    chosen = (tall or sorted(shapes, key=lambda n: -shapes[n][0]))[:8]
    if not chosen:
        return "it holds no matrix"
    return "its tallest matrices are " + ", ".join(f"{_shown(n)} {list(shapes[n])}" for n in chosen)


def _shown(name: str) -> str:
    # A name is the file's author's: it may hold anything.
    return name[:80] if name.isprintable() else repr(name[:80])


def _nothing_found(source: str, ranks: list[_Rank]) -> str:
    return (
        f"checkpoint {source}: neither output matrix nor embedding has a known name; "
        f"give --lm-head or --embedding; {_matrices(ranks)}"
    )


def _assemble(source: str, files: Files, name: str, ranks: list[_Rank], config: dict[str, Any]) -> Matrix:
    parts, scales = [], []
    for rank in ranks:
        part = rank.get(name)
        if part is None:
            raise CheckpointError(f"checkpoint {source}: one shard has no tensor {name!r}; give all shards")
        if not part.readable:
            raise CheckpointError(
                f"checkpoint {source}: {name} holds {part.dtype}; {', '.join(STORED)} are read: dequantize it"
            )
        if len(part.shape) != 2 or 0 in part.shape:
            raise CheckpointError(
                f"checkpoint {source}: {name} has shape {list(part.shape)}, not rows x columns; "
                "name the matrix with --lm-head or --embedding"
            )
        parts.append(part)
        scales.append(_scale(source, files, rank, part, config) if is_float8(part.dtype) else None)
    if len({part.dtype for part in parts}) > 1:
        raise CheckpointError(f"checkpoint {source}: shards of {name} hold different kinds of numbers")
    axis, parts = _stacking(source, name, parts, config)
    rows, columns = parts[0].shape
    if axis == 0:
        rows = sum(part.shape[0] for part in parts)
    else:
        columns = sum(part.shape[1] for part in parts)
    return Matrix(
        name or parts[0].path.rsplit("/", 1)[-1],
        parts[0].dtype,
        (rows, columns),
        tuple(parts),
        axis,
        tuple(scales[: len(parts)]),
        files,
    )


def _stacking(
    source: str, name: str, parts: list[Stored], config: dict[str, Any]
) -> tuple[int, list[Stored]]:
    """How shards make the matrix: by rows (0) or side by side (1); copies are taken once."""
    if len(parts) == 1:
        return 0, parts
    text = config.get("text_config")
    known = {**(text if isinstance(text, dict) else {}), **config}
    width = known.get("hidden_size") or known.get("n_embd") or known.get("d_model") or known.get("dim")
    vocabulary = known.get("vocab_size")
    shapes = [part.shape for part in parts]
    one_width, one_height = len({s[1] for s in shapes}) == 1, len({s[0] for s in shapes}) == 1
    if one_width and one_height and vocabulary == shapes[0][0] and width in (None, shapes[0][1]):
        return 0, parts[:1]
    if one_height and isinstance(width, int) and width == sum(s[1] for s in shapes):
        return 1, parts
    if one_width:
        return 0, parts
    raise CheckpointError(
        f"checkpoint {source}: shards of {name} have shapes {', '.join(str(list(s)) for s in shapes[:4])}, "
        "which do not stack by rows"
    )


def _scale(source: str, files: Files, rank: _Rank, part: Stored, config: dict[str, Any]) -> Scale | None:
    stem = part.name.removesuffix(".weight")
    stored = None
    for name in (f"{part.name}_scale_inv", f"{part.name}_scale", f"{stem}.scale", f"{part.name}.scale"):
        stored = rank.get(name)
        if stored is not None:
            break
    if stored is None:
        return None
    if not stored.readable or is_float8(stored.dtype):
        raise CheckpointError(
            f"checkpoint {source}: {stored.name} holds {stored.dtype}, no scale that is read"
        )
    flat = np.frombuffer(files.read(stored.path, stored.offset, stored.nbytes), dtype=STORED[stored.dtype])
    values = decode(flat, stored.dtype)
    rows, columns = part.shape
    if values.size == 1:
        return Scale(values.reshape(1, 1), (rows, columns))
    if stored.shape in ((rows,), (rows, 1)):
        return Scale(values.reshape(rows, 1), (1, columns))
    down, across = _block_size(config)
    if stored.shape == (math.ceil(rows / down), math.ceil(columns / across)):
        return Scale(values.reshape(stored.shape), (down, across))
    raise CheckpointError(
        f"checkpoint {source}: {stored.name} has shape {list(stored.shape)}, which is neither one scale, "
        f"one per row, nor one per block of {down} x {across} of {list(part.shape)}"
    )


def _block_size(config: dict[str, Any]) -> tuple[int, int]:
    quantization = config.get("quantization_config")
    size = quantization.get("weight_block_size") if isinstance(quantization, dict) else None
    if isinstance(size, list) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size):
        return size[0], size[1]
    return 128, 128
