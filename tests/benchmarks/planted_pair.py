"""Two checkpoints of a real size whose drift summary is the published one, written in a minute.

200,064 rows: mean cosine 0.9837, least 0.3290, 9,805 rows under 0.95, 4,234 under 0.90; of the Japanese
rows 29.7 % under 0.95, Arabic 4.4, Chinese 3.9, Russian 3.7, English 3.5, Korean 3.3.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa

ROWS = 200_064
# language: rows, of them under 0.95
LANGUAGES = {
    "ja": (6_000, 1_782),
    "ar": (7_000, 308),
    "zh": (25_000, 975),
    "ru": (18_000, 666),
    "ko": (8_000, 264),
    "en": (100_064, 3_502),
    "other": (36_000, 2_308),
}


def planted_cosines(rows: int = ROWS) -> tuple[np.ndarray, list[str]]:
    """(float64[rows], languages): the published summary, scaled where rows are fewer."""
    rng = np.random.default_rng(0)
    share = rows / ROWS
    languages: list[str] = []
    low: list[int] = []
    for language, (count, under) in LANGUAGES.items():
        start = len(languages)
        languages += [language] * round(count * share)
        low += range(start, start + round(under * share))
    languages += ["other"] * (rows - len(languages))
    chosen = rng.permutation(low)
    lowest, middle = np.split(chosen, [round(4_234 * share)])
    cosine = np.empty(rows)
    rest = np.ones(rows, dtype=bool)
    rest[chosen] = False
    cosine[lowest] = rng.uniform(0.6, 0.899, len(lowest))
    cosine[lowest[0]] = 0.329
    cosine[middle] = rng.uniform(0.901, 0.949, len(middle))
    mean = (0.9837 * rows - cosine[chosen].sum()) / rest.sum()
    cosine[rest] = 1 - 2 * (1 - mean) * rng.permutation(np.linspace(0, 1, rest.sum()))
    return cosine, languages


def vocabulary(languages: list[str]) -> pa.Table:
    """The columns of a vocabulary table that drift reads."""
    count = len(languages)
    return pa.table(
        {
            "token_id": pa.array(range(count), pa.int32()),
            "token": [f"t{i}" for i in range(count)],
            "language": languages,
            "category": ["word"] * count,
            "kind": ["base"] * count,
            "reachability": ["direct"] * count,
        }
    )


def _bfloat16(values: np.ndarray) -> bytes:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def write_pair(folder: Path, rows: int, columns: int) -> tuple[Path, Path]:
    """(before, after): folders of two bfloat16 shards each, planted; the embedding hardly moves."""
    head, _ = planted_cosines(rows)
    rng = np.random.default_rng(1)
    bank, noise = (rng.standard_normal((4096, columns), dtype=np.float32) for _ in range(2))
    names = {"lm_head.weight": head, "model.embed_tokens.weight": 1 - 1e-4 * rng.random(rows)}
    for side in ("before", "after"):
        (folder / side).mkdir(parents=True)
    for number, (name, cosine) in enumerate(names.items()):
        file = f"model-{number}.safetensors"
        entry = {name: {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [0, rows * columns * 2]}}
        header = json.dumps(entry).encode()
        with open(folder / "before" / file, "wb") as first, open(folder / "after" / file, "wb") as second:
            for out in (first, second):
                out.write(struct.pack("<Q", len(header)) + header)
            for start in range(0, rows, len(bank)):
                count = min(len(bank), rows - start)
                a = bank[rng.permutation(len(bank))[:count]]
                u = noise[rng.permutation(len(bank))[:count]]
                u -= ((u * a).sum(1) / (a * a).sum(1))[:, None] * a
                u *= (np.linalg.norm(a, axis=1) / np.linalg.norm(u, axis=1))[:, None]
                c = cosine[start : start + count, None].astype(np.float32)
                first.write(_bfloat16(a))
                second.write(_bfloat16(c * a + np.sqrt(1 - c * c) * u))
    for side in ("before", "after"):
        weight_map = {name: f"model-{i}.safetensors" for i, name in enumerate(names)}
        (folder / side / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        (folder / side / "config.json").write_text(json.dumps({"tie_word_embeddings": False}))
    return folder / "before", folder / "after"
