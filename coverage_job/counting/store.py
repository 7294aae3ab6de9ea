"""Partial histograms kept between runs, by content key.

A store is a folder on any fsspec path:

    <corpus>-<options>/parts/<name>.parquet       counts of one split by file, its report in the metadata
    <corpus>-<options>/snapshots/<name>.parquet   counts of a set of files, summed, and their tally

`<options>` is a hash of everything that changes a count: the tokenizer, how records are read, the
template. A part's name follows from the pieces it counted, so a task that runs twice writes the same
file. A snapshot's name follows from its files' keys: an unchanged corpus is one read. Files are written
whole or not at all, and one that is torn counts as missing: two runs may share a store, and a run that
was interrupted goes on from its parts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from coverage_job.corpus.plan import Split
from coverage_job.counting.merge import sum_counts
from coverage_job.counting.tally import PieceReport, Tally
from coverage_job.errors import StorageError
from coverage_job.schemas import PARTIAL
from coverage_job.storage import join, list_folder, parquet_bytes, read_bytes, write_bytes

# Raised when parts of another version cannot be used.
FORMAT = 3
_REPORT = b"coverage_job.report"


def options_key(options: Mapping[str, Any]) -> str:
    """32 hex digits of everything that changes a count."""
    text = orjson.dumps({"format": FORMAT, **options}, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:32]


def folder_name(corpus: str) -> str:
    """A corpus' name as part of a path.

    >>> folder_name("web / 2026")
    'web___2026'
    """
    return re.sub(r"[^A-Za-z0-9.-]", "_", corpus)


def set_key(keys: Iterable[str]) -> str:
    """32 hex digits of a set of content keys."""
    return hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class StoreSpec:
    """Where a task puts its part. folder: of the corpus. keys: content key by path, of its files."""

    folder: str
    keys: Mapping[str, str]

    def write_part(
        self,
        split: Split,
        pieces: Sequence[PieceReport],
        contexts: Mapping[int, str],
        counts: Sequence[pa.RecordBatch],
    ) -> None:
        """Keep a split's counts. counts: schema PARTIAL, `unit` being the path of the file."""
        report = {
            "pieces": [
                {
                    "key": self.keys[p.stats.file],
                    "report": orjson.loads(orjson.dumps(p, default=bytes.hex)),
                }
                for p in pieces
            ],
            "contexts": {str(i): text for i, text in contexts.items()},
        }
        table = pa.Table.from_batches(list(counts), PARTIAL)
        path = join(self.folder, "parts", part_name(split, self.keys))
        write_bytes(path, _with_report(table, report))


def part_name(split: Split, keys: Mapping[str, str]) -> str:
    """The file name of a split's part: of the pieces it reads, and their files' keys."""
    named = [f"{keys[p.path]} {p.start} {p.end}" for p in split.pieces]
    return hashlib.sha256("\n".join(named).encode()).hexdigest()[:32] + ".parquet"


def _with_report(table: pa.Table, report: Mapping[str, Any]) -> bytes:
    return parquet_bytes(table.replace_schema_metadata({_REPORT: orjson.dumps(report)}))


def read_kept_file(path: str) -> tuple[pa.Table, dict[str, Any]]:
    """A file of the store and its report. Raises StorageError where it is torn."""
    try:
        # The path of a file stands in every row of its counts.
        table = pq.read_table(pa.BufferReader(read_bytes(path)), read_dictionary=["unit"])
        report = orjson.loads(table.schema.metadata[_REPORT])
    except (pa.ArrowException, OSError, KeyError, TypeError, orjson.JSONDecodeError) as error:
        raise StorageError(f"{path}: torn ({error})") from None
    return table.replace_schema_metadata(None), report


_Part = tuple[pa.Table, dict[str, Any]]


@dataclass
class Kept:
    """What a store gave for a corpus.

    counts: tables of schema PARTIAL, whose `unit` says nothing. tally: of the snapshot among them.
    pieces: of the parts among them. files: the paths that are covered to their ends. contexts: texts
    found in them. spare: parts of files that are not. torn: files of the store that could not be read.
    """

    counts: list[pa.Table] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    pieces: list[PieceReport] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    contexts: dict[int, str] = field(default_factory=dict)
    spare: dict[str, _Part] = field(default_factory=dict)
    torn: list[str] = field(default_factory=list)


def load_kept(folder: str, keys: Mapping[str, str], sizes: Mapping[str, int]) -> Kept:
    """What is kept of files with these content keys. keys, sizes: by path.

    The snapshot of exactly these files, else the largest one of some of them; then single parts.
    """
    kept = Kept()
    wanted = {key: file for file, key in keys.items()}
    snapshots = join(folder, "snapshots")
    names = list_folder(snapshots)
    exact = f"{set_key(keys.values())}.parquet"
    for name in [exact] if exact in names else sorted(names, reverse=True):
        try:
            table, report = read_kept_file(join(snapshots, name))
        except StorageError as error:
            kept.torn.append(str(error))
            continue
        if set(report["keys"]) <= wanted.keys() and len(report["keys"]) > len(kept.files):
            kept.counts, kept.tally = [table], Tally.from_dict(report["tally"])
            kept.files = {wanted[key] for key in report["keys"]}
            kept.contexts = {int(i): text for i, text in report["contexts"].items()}
    if len(kept.files) < len(keys):
        _add_parts(kept, folder, wanted, sizes)
    return kept


def _add_parts(kept: Kept, folder: str, wanted: Mapping[str, str], sizes: Mapping[str, int]) -> None:
    """Adds files of which parts cover every byte once."""
    found: dict[str, dict[tuple[int, int], tuple[str, PieceReport]]] = {}
    for name in list_folder(join(folder, "parts")):
        try:
            part = read_kept_file(join(folder, "parts", name))
        except StorageError as error:
            kept.torn.append(str(error))
            continue
        for file, piece in _pieces(part, wanted):
            if file not in kept.files:
                found.setdefault(file, {})[(piece.stats.start, piece.stats.end)] = (name, piece)
                kept.spare[name] = part
    rows: dict[str, list[str]] = {}
    for file, pieces in found.items():
        chosen = _tiling(pieces, sizes[file])
        if chosen is not None:
            kept.files.add(file)
            kept.pieces += [piece for _, piece in chosen]
            for name in dict.fromkeys(name for name, _ in chosen):
                rows.setdefault(name, []).append(file)
    for name, files in rows.items():
        _take(kept, kept.spare[name], files)


def _pieces(part: _Part, wanted: Mapping[str, str]) -> Iterator[tuple[str, PieceReport]]:
    """The usable pieces of a part that are of wanted files."""
    for entry in part[1]["pieces"]:
        file = wanted.get(entry["key"])
        piece = PieceReport.from_dict(entry["report"])
        if file is not None and not piece.error:
            yield file, piece


def _take(kept: Kept, part: _Part, files: Sequence[str]) -> None:
    table, report = part
    own = table.filter(pc.is_in(table["unit"], pa.array(files, pa.string())))
    # Summed at once: many small files of a part share their tokens.
    kept.counts.append(sum_counts([own], ""))
    kept.contexts |= {int(i): text for i, text in report["contexts"].items()}


def resume(kept: Kept, splits: Sequence[Split], keys: Mapping[str, str]) -> list[Split]:
    """The splits that no part holds; those that one holds are added to `kept`.

    A run that was interrupted in the middle of a file goes on from there, if it is cut as it was.
    """
    left = []
    wanted = {key: file for file, key in keys.items()}
    for split in splits:
        part = kept.spare.get(part_name(split, keys))
        pieces = list(_pieces(part, wanted)) if part is not None else []
        if part is None or len(pieces) < len(split.pieces):
            left.append(split)
            continue
        kept.pieces += [piece for _, piece in pieces]
        _take(kept, part, [file for file, _ in pieces])
    return left


def _tiling(
    pieces: Mapping[tuple[int, int], tuple[str, PieceReport]], size: int
) -> list[tuple[str, PieceReport]] | None:
    """Pieces that cover a file from its first to its last byte without overlap, or None.

    Parts of several plans may lie beside each other; from each place the longest piece is taken.
    """
    longest: dict[int, int] = {}
    for start, end in pieces:
        longest[start] = max(end, longest.get(start, end))
    at, chosen = 0, []
    while at in longest:
        chosen.append(pieces[(at, longest[at])])
        if longest[at] >= size:
            return chosen
        at = longest[at]
    return None


def write_snapshot(
    folder: str,
    keys: Iterable[str],
    counts: pa.Table,
    tally: Tally,
    contexts: Mapping[int, str],
) -> None:
    """Keep the sums of a corpus. counts: schema PARTIAL. keys: of the files they cover."""
    keys = sorted(keys)
    report = {
        "keys": keys,
        "tally": tally.to_dict(),
        "contexts": {str(i): text for i, text in contexts.items()},
    }
    write_bytes(join(folder, "snapshots", f"{set_key(keys)}.parquet"), _with_report(counts, report))
