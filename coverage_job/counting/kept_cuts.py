"""Cuts kept between runs: they follow from the tokenizer alone, and deriving them takes seconds."""

from __future__ import annotations

from contextlib import suppress

from coverage_job.cache import cache_folder
from coverage_job.counting.cuts import FORMAT, Cuts, derive
from coverage_job.errors import StorageError
from coverage_job.storage import write_bytes
from coverage_job.tokenizer.load import TokenizerSpec, load


def cuts_bytes(spec: TokenizerSpec) -> bytes:
    """A tokenizer's cuts as `Cuts.to_bytes` gives them, from the cache folder or derived."""
    path = cache_folder() / f"cuts-{spec.sha256[:32]}-{FORMAT}.npz"
    try:
        data = path.read_bytes()
        Cuts.from_bytes(data)
        return data
    except (OSError, ValueError):
        data = derive(load(spec)).to_bytes()
    # A full or read-only disk costs time, not the run.
    with suppress(StorageError):
        write_bytes(str(path), data)
    return data
