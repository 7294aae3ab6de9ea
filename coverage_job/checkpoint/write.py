"""A copy of a checkpoint folder in which some bytes of one file differ.

Files stream through in pieces, so a copy costs a few megabytes of memory whatever it copies. It appears
whole or not at all where the store has a rename; elsewhere the files by which loaders find a checkpoint
(its index, else its weights) are written last.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from coverage_job.checkpoint.files import Files, UInt8, is_folder, listing
from coverage_job.errors import CheckpointError, StorageError
from coverage_job.storage import is_local, join, split_url

_PIECE = 8 << 20


@dataclass(frozen=True)
class Region:
    """Bytes start .. stop of a file that `change` may alter.

    step: pieces of the region begin at multiples of it, so that a row is never cut.
    change: called with the offset within the region and the piece, which it alters in place.
    """

    path: str
    start: int
    stop: int
    step: int
    change: Callable[[int, UInt8], None]


def copy_folder(source: str, target: str, regions: list[Region], extra: dict[str, bytes]) -> None:
    """Copy every file of `source`, subfolders included, with `regions` changed; then write `extra` beside.

    Raises StorageError where `target` exists or cannot be written, CheckpointError where a file cannot be
    read; then nothing is left at `target`.
    """
    fs, plain = split_url(target)
    if fs.exists(plain):
        raise StorageError(f"{target}: exists already; name a directory that does not")
    if not is_folder(source):
        raise CheckpointError(f"checkpoint {source}: not a folder, which is what is copied; give the folder")
    names = listing(source)
    files = Files()
    local = is_local(target)
    whole = False
    place = f"{plain.rstrip('/')}.{secrets.token_hex(4)}.part" if local else plain.rstrip("/")
    try:
        for name in sorted(set(names) - set(extra), key=_is_entry):
            path = join(source, name)
            own = sorted((r for r in regions if r.path == path), key=lambda r: r.start)
            _write(fs, f"{place}/{name}", _pieces(files, path, own))
        for name, data in extra.items():
            _write(fs, f"{place}/{name}", iter([np.frombuffer(data, dtype=np.uint8)]))
        if local:
            fs.mv(place, plain, recursive=True)
        whole = True
    except OSError as error:
        raise StorageError(f"{target}: cannot be written: {' '.join(str(error).split())[:300]}") from None
    finally:
        if not whole:
            with contextlib.suppress(OSError):
                fs.rm(place, recursive=True)
        files.close()


def _is_entry(name: str) -> int:
    # What loaders look for comes last; of a folder without an index that is the weights themselves.
    if name.endswith(".index.json"):
        return 2
    return int(name.endswith((".safetensors", ".bin", ".pt", ".pth")))


def _pieces(files: Files, path: str, regions: list[Region]) -> Iterator[UInt8]:
    size, at = files.size(path), 0
    for region in regions:
        yield from _plain(files, path, at, region.start)
        step = max(1, _PIECE // region.step) * region.step
        for start in range(region.start, region.stop, step):
            piece = np.empty(min(step, region.stop - start), dtype=np.uint8)
            files.read_into(path, start, piece)
            region.change(start - region.start, piece)
            yield piece
        at = region.stop
    yield from _plain(files, path, at, size)


def _plain(files: Files, path: str, start: int, stop: int) -> Iterator[UInt8]:
    for at in range(start, stop, _PIECE):
        piece = np.empty(min(_PIECE, stop - at), dtype=np.uint8)
        files.read_into(path, at, piece)
        yield piece


def _write(fs: Any, path: str, pieces: Iterator[UInt8]) -> None:
    fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
    with fs.open(path, "wb") as file:
        for piece in pieces:
            file.write(piece.data)
