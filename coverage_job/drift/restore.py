"""Put the base's output rows back into a trained checkpoint, for chosen tokens.

Of what post-training did to the output matrix only the chosen rows are undone; no other byte of the
checkpoint changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from coverage_job import storage
from coverage_job.checkpoint.dtypes import STORED, encode, is_float8
from coverage_job.checkpoint.files import UInt8
from coverage_job.checkpoint.matrix import Matrix
from coverage_job.checkpoint.read import Checkpoint, open_checkpoint
from coverage_job.checkpoint.write import Region, copy_folder
from coverage_job.drift.score import Int64, check_comparable, fitted
from coverage_job.errors import CheckpointError, JobError

DEFAULT_TOKENS = "posttraining_supervised_occurrences = 0 AND lm_head_cosine < 0.95"
RECORD = "coverage_job_restore.json"


@dataclass(frozen=True)
class Restored:
    """rows: how many were put back. exact: whether they are the base's numbers bit for bit."""

    output: str
    rows: int
    exact: bool
    note: str


def choose_tokens(coverage: pa.Table, tokens: str = DEFAULT_TOKENS) -> Int64:
    """int64, ascending: ids of a coverage table's rows for which a Polars SQL predicate holds.

    Raises JobError where the predicate is none, or holds for no row.
    """
    if coverage["lm_head_cosine"].null_count == coverage.num_rows and "lm_head_cosine" in tokens:
        raise JobError(
            "restore: the coverage table has no drift; give the directory that `drift --run ... --output` "
            "made"
        )
    try:
        frame = pl.SQLContext(coverage=pl.DataFrame(coverage)).execute(
            f"SELECT token_id FROM coverage WHERE ({tokens})", eager=True
        )
    except Exception as error:  # polars raises many kinds
        raise JobError(
            f"--tokens {tokens!r}: no predicate over coverage.parquet ({' '.join(str(error).split())[:200]})"
        ) from None
    ids = np.sort(frame["token_id"].to_numpy().astype(np.int64))
    if not len(ids):
        raise JobError(f"--tokens {tokens!r}: holds for no token; nothing to put back")
    return ids


def restore(
    before: str,
    after: str,
    run_directory: str,
    output: str,
    tokens: str = DEFAULT_TOKENS,
    blend: float = 1.0,
    *,
    lm_head: str | None = None,
    row_map: Int64 | None = None,
) -> Restored:
    """Write the after checkpoint to `output` with chosen output rows put back from the base.

    run_directory: holds a `coverage.parquet` with drift. tokens: a Polars SQL predicate over it.
    blend: the base's share, 0 < blend <= 1; a row becomes blend x base + (1 - blend) x after, in float32,
    rounded to the nearest number of the after checkpoint's kind. row_map: as for `drift`.
    Raises JobError, CheckpointError or StorageError with the way out; `output` then does not exist.
    """
    if not 0 < blend <= 1:
        raise JobError(f"--blend {blend}: is above 0 and at most 1")
    if storage.exists(output):
        raise JobError(f"--output {output}: exists already; name a directory that does not")
    ids = choose_tokens(storage.read_parquet(storage.join(run_directory, "coverage.parquet")), tokens)
    old, new = open_checkpoint(before, lm_head), open_checkpoint(after, lm_head)
    base, target = _matrices(old, new)
    row_map = fitted(row_map, target.shape[0])
    check_comparable(base, target, row_map)
    sources = np.full(len(ids), -1, dtype=np.int64)
    present = ids < target.shape[0]
    sources[present] = ids[present] if row_map is None else row_map[ids[present]]
    missing = int(((sources < 0) | (sources >= base.shape[0])).sum())
    if missing:
        example = f"token_id < {min(base.shape[0], target.shape[0])}"
        if row_map is not None:
            example = "lm_head_cosine IS NOT NULL"  # of tokens without a counterpart drift gives none
        raise CheckpointError(
            f"restore: {missing} of the {len(ids)} chosen tokens have no row in both checkpoints; "
            f"leave them out of --tokens, for example with {example}"
        )
    widened = base.dtype in ("F16", "BF16") and target.dtype in ("F32", "F64")
    exact = blend == 1 and (base.dtype == target.dtype or widened)
    record = {
        "before": before,
        "after": after,
        "matrix": target.name,
        "tokens": tokens,
        "blend": blend,
        "rows": len(ids),
        "token_ids": ids.tolist(),
    }
    regions, first = [], 0
    for part in target.parts:
        inside = (ids >= first) & (ids < first + part.shape[0])
        if inside.any():
            patch = _Patch(base, target, ids[inside], sources[inside], first, blend)
            width = part.shape[1] * STORED[target.dtype].itemsize
            regions.append(Region(part.path, part.offset, part.offset + part.nbytes, width, patch))
        first += part.shape[0]
    copy_folder(after.rstrip("/"), output, regions, {RECORD: storage.dump_json(record)})
    note = "" if exact else f"converted from {base.dtype} to {target.dtype}"
    if blend < 1:
        note = "blended and rounded"
    return Restored(output, len(ids), exact, note)


def _matrices(old: Checkpoint, new: Checkpoint) -> tuple[Matrix, Matrix]:
    base, target = old.lm_head, new.lm_head
    if base is None or target is None:
        source = old.source if base is None else new.source
        raise CheckpointError(f"checkpoint {source}: has no output matrix; name it with --lm-head")
    if new.tied:
        raise CheckpointError(
            f"checkpoint {new.source}: its matrices are tied ({new.tied}): putting an output row back "
            "would change what the model reads as well; untie them first, or protect the rows while training"
        )
    name = target.parts[0].path.rsplit("/", 1)[-1]
    if not name.endswith(".safetensors") or target.axis != 0:
        raise CheckpointError(
            f"checkpoint {new.source}: {target.name} lies in {name}, in which rows cannot be replaced one by "
            "one; save it as safetensors first"
        )
    if is_float8(target.dtype):
        raise CheckpointError(
            f"checkpoint {new.source}: {target.name} holds {target.dtype}, and a row put back would need "
            "scales of its own; restore the checkpoint it was quantized from"
        )
    return base, target


class _Patch:
    """Changes the chosen rows of a piece of one part of the output matrix."""

    def __init__(
        self, base: Matrix, target: Matrix, ids: Int64, sources: Int64, first: int, blend: float
    ) -> None:
        self._base, self._target, self._blend = base, target, blend
        self._rows, self._sources = ids - first, sources

    def __call__(self, offset: int, piece: UInt8) -> None:
        width = self._target.row_bytes
        start = offset // width
        rows = piece.view(STORED[self._target.dtype]).reshape(-1, self._target.shape[1])
        low, high = np.searchsorted(self._rows, [start, start + len(rows)])
        if low == high:
            return
        at, sources = self._rows[low:high] - start, self._sources[low:high]
        if self._blend == 1 and self._base.dtype == self._target.dtype:
            rows[at] = self._base.take(sources)
            return
        values = self._base.rows_of(sources)
        if self._blend < 1:
            kept = self._target.scale(rows[at], at)
            values = np.float32(self._blend) * values + np.float32(1 - self._blend) * kept
        rows[at] = encode(values, self._target.dtype)
