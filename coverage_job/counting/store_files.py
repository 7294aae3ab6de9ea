"""What lies in a store, for the commands that look after it: listed, read through, cleaned up.

Nothing here is needed for counting: a file that is gone is counted again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from coverage_job.counting.store import read_kept_file
from coverage_job.errors import StorageError
from coverage_job.storage import Entry, join, list_entries, list_folder, remove

# Of a folder of one corpus, read in one way; and what is in it.
_FOLDER = re.compile(r"(?P<corpus>.+)-(?P<options>[0-9a-f]{32})")
_KINDS = ("parts", "snapshots")
_DAY = 86_400.0


@dataclass(frozen=True)
class Folder:
    """What is kept of a corpus under one set of options. newest: seconds since 1970; 0 where it is empty."""

    name: str
    corpus: str
    options: str
    parts: int
    snapshots: int
    bytes: int
    newest: float


def _files(store: str) -> Iterator[tuple[str, str, list[Entry]]]:
    """(folder, parts or snapshots, the files there). Raises StorageError where there is no store."""
    folders = [name for name in list_folder(store) if _FOLDER.fullmatch(name)]
    if not folders:
        raise StorageError(
            f"{store}: no store, or an empty one; give the folder that the job's `store:` names"
        )
    for folder in folders:
        for kind in _KINDS:
            yield folder, kind, list_entries(join(store, folder, kind))


def list_store(store: str) -> list[Folder]:
    """What is kept, by corpus and options."""
    found: dict[str, dict[str, list[Entry]]] = {}
    for folder, kind, entries in _files(store):
        found.setdefault(folder, {})[kind] = entries
    result = []
    for name, kinds in found.items():
        match = _FOLDER.fullmatch(name)
        assert match is not None
        entries = [e for kind in _KINDS for e in kinds[kind]]
        result.append(
            Folder(
                name=name,
                corpus=match["corpus"],
                options=match["options"],
                parts=len(kinds["parts"]),
                snapshots=len(kinds["snapshots"]),
                bytes=sum(e.size for e in entries),
                newest=max((e.modified for e in entries), default=0.0),
            )
        )
    return result


def verify_store(store: str) -> tuple[int, list[str]]:
    """Read every file; how many are whole, and a line for each that is not."""
    whole, torn = 0, []
    for folder, kind, entries in _files(store):
        for entry in entries:
            path = join(store, folder, kind, entry.name)
            try:
                read_kept_file(path)
                whole += 1
            except StorageError as error:
                torn.append(str(error))
    return whole, torn


def prune_store(
    store: str, now: float, older_than_days: float | None, keep: int | None, dry_run: bool = False
) -> tuple[int, int]:
    """Remove what is old; (files, bytes) that were, or with `dry_run` would be, removed.

    older_than_days: parts and snapshots that were written longer ago go. keep: of the snapshots of each
    folder only the newest so many stay. now: seconds since 1970. Where both are given a file goes for
    either. What a run needs again it counts again.
    """
    files = size = 0
    for folder, kind, entries in _files(store):
        newest = sorted(entries, key=lambda e: (-e.modified, e.name))
        surplus = set() if keep is None or kind != "snapshots" else {e.name for e in newest[keep:]}
        for entry in entries:
            # A store that tells no time cannot be pruned by age.
            old = (
                older_than_days is not None
                and entry.modified > 0
                and now - entry.modified > older_than_days * _DAY
            )
            if old or entry.name in surplus:
                files += 1
                size += entry.size
                if not dry_run:
                    remove(join(store, folder, kind, entry.name))
    return files, size
