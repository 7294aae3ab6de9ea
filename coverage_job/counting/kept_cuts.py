"""Cuts kept between runs: they follow from the tokenizer alone, and deriving them takes seconds."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from coverage_job.cache import cache_folder
from coverage_job.counting.cuts import FORMAT, Cuts, derive
from coverage_job.errors import StorageError
from coverage_job.storage import write_bytes
from coverage_job.tokenizer.load import TokenizerSpec, load


def cuts_bytes(spec: TokenizerSpec) -> bytes:
    """A tokenizer's cuts as `Cuts.to_bytes` gives them, from the cache folder or derived."""
    data = kept(spec)
    if data is None:
        data = derive(load(spec)).to_bytes()
        # A full or read-only disk costs time, not the run.
        with suppress(StorageError):
            write_bytes(str(_path(spec)), data)
    return data


def kept(spec: TokenizerSpec) -> bytes | None:
    """A tokenizer's cuts from the cache folder; None where they are not there, or torn."""
    try:
        data = _path(spec).read_bytes()
        Cuts.from_bytes(data)
    except (OSError, ValueError):
        return None
    return data


def _path(spec: TokenizerSpec) -> Path:
    return cache_folder() / f"cuts-{spec.sha256[:32]}-{FORMAT}.npz"
