"""Files of a corpus and the splits that tasks read: pure planning, on the driver.

Nothing is opened here: what a split holds follows from names and sizes alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import fsspec

from coverage_job.config import Corpus
from coverage_job.corpus.streams import CODECS, codec_of
from coverage_job.errors import CorpusError
from coverage_job.storage import exists, with_retries

if TYPE_CHECKING:
    from coverage_job.corpus.source import Source

# Tasks report per file; a split of very many tiny files would make one report without end.
MAX_PIECES = 512

FORMATS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".jsonlines": "jsonl", ".json": "json",
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".txt": "text", ".text": "text",
    ".bin": "bin", ".npy": "npy",
}  # fmt: skip

# Formats that compress within, or are read by position: a compressed file of them cannot be.
PLAIN_ONLY = frozenset({"parquet", "arrow", "megatron", "bin", "npy"})
# Formats of which any byte range can be read alone.
SPLITTABLE = frozenset({"jsonl", "text", "parquet", "megatron", "bin", "npy"})


@dataclass(frozen=True)
class FileInfo:
    """A file as the store lists it.

    size: bytes, -1 where the store does not say. version: an etag or generation where the store has
    one, else the time of its last change in nanoseconds; '' where neither is known.
    """

    path: str
    size: int
    version: str


@dataclass(frozen=True)
class Piece:
    """A byte range of a file; (0, size) for a whole one.

    What begins in the range belongs to it: lines by their first byte, Parquet row groups by theirs,
    documents of token files by their place. version: of the file, see FileInfo.
    """

    path: str
    size: int
    start: int
    end: int
    version: str = ""

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.end == self.size


@dataclass(frozen=True)
class Split:
    """What one task reads: a part of a file, or several small files."""

    index: int
    corpus: str
    pieces: tuple[Piece, ...]

    @property
    def bytes(self) -> int:
        return sum(max(piece.end - piece.start, 0) for piece in self.pieces)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Split:
        data = json.loads(text)
        return cls(data["index"], data["corpus"], tuple(Piece(**piece) for piece in data["pieces"]))


def format_of(path: str) -> str | None:
    """The format that a file's name tells, compression aside; None where it tells none.

    >>> format_of("x.jsonl.zst"), format_of("x.PARQUET"), format_of("README.md")
    ('jsonl', 'parquet', None)
    """
    name = path.lower()
    for suffix in CODECS:
        name = name.removesuffix(suffix)
    return FORMATS.get(os.path.splitext(name)[1])


def _version(info: dict[str, Any]) -> str:
    for key in ("ETag", "etag", "generation", "VersionId", "md5Hash", "content_md5", "blob_id"):
        if info.get(key):
            return str(info[key]).strip('"')
    if info.get("mtime") is not None:
        return str(int(info["mtime"] * 1e9))
    for key in ("LastModified", "last_modified", "updated", "created"):
        if info.get(key) is not None:
            return str(info[key])
    return ""


def _hidden(path: str, root: str) -> bool:
    # Spark and Hive leave marker files (`_SUCCESS`, `.crc`) and half-written folders (`_temporary`).
    # A partition folder such as `_date=1` is data.
    return any(
        part.startswith(".") or (part.startswith("_") and "=" not in part)
        for part in path.removeprefix(root).split("/")
        if part
    )


def _file_info(fs: Any, info: dict[str, Any]) -> FileInfo:
    local = isinstance(fs, fsspec.implementations.local.LocalFileSystem)
    full = info["name"] if local else fs.unstrip_protocol(info["name"])
    # fsspec gives seconds as a float, too coarse to tell two versions of a local file apart.
    version = str(os.stat(full).st_mtime_ns) if local else _version(info)
    size = info.get("size")
    return FileInfo(full, -1 if size is None else int(size), version)


def changed(piece: Piece) -> str:
    """How a piece's file differs from what was planned, now that it was read; '' where it does not."""
    if not piece.version:
        return ""
    fs, plain = fsspec.url_to_fs(piece.path)
    try:
        fs.invalidate_cache(plain)
        now = _file_info(fs, with_retries(lambda: fs.info(plain), piece.path))
    except FileNotFoundError:
        return f"{piece.path}: was removed while it was read; put it back, or run again without it"
    if (now.size, now.version) == (piece.size, piece.version):
        return ""
    sizes = f" ({piece.size:,} bytes then, {now.size:,} now)" if now.size != piece.size else ""
    return f"{piece.path}: changed while it was read{sizes}; let its writer finish, then run again"


def _list(path: str, corpus: Corpus) -> Iterator[FileInfo]:
    name = f"corpus {corpus.name}"
    try:
        fs, plain = fsspec.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise CorpusError(f"{name}: {path} cannot be opened ({error})") from None

    def find() -> tuple[dict[str, Any], str]:
        # A file whose name holds glob characters is that file.
        # `exists` would take a store that does not answer for one that has nothing there.
        try:
            info = fs.info(plain)
        except FileNotFoundError:
            info = None
        if info is not None:
            if info["type"] != "directory":
                # Named in full, so not hidden.
                return {plain: info}, plain
            return fs.find(plain, detail=True), plain
        if any(sign in plain for sign in "*?["):
            first = min(plain.index(sign) for sign in "*?[" if sign in plain)
            return fs.glob(plain, detail=True), plain[: plain.rfind("/", 0, first) + 1]
        return {}, plain

    try:
        found, root = with_retries(find, path)
    except OSError as error:
        raise CorpusError(f"{name}: {path} cannot be listed ({error}); check the path and access") from None
    matched = 0
    for key, info in found.items():
        if info["type"] != "directory" and not _hidden(key, root):
            matched += 1
            yield _file_info(fs, info)
    if not matched:
        why = "matches no file" if any(sign in path for sign in "*?[") else "does not exist or holds no file"
        raise CorpusError(
            f"{name}: path {path} {why}; relative paths are relative to the job file, "
            "and ** reaches into folders"
        )


def list_files(corpus: Corpus) -> list[FileInfo]:
    """The files of a corpus, sorted by path, each once.

    A path is a file, a folder (searched to the bottom) or a glob. Hidden files and markers such as
    `_SUCCESS` are left out, as are the `.idx` halves of Megatron pairs. Raises CorpusError where one
    of the corpus' paths matches nothing, or a file's name does not tell its format.
    """
    files = {info.path: info for path in corpus.paths for info in _list(path, corpus)}
    for path in [p for p in files if p.endswith(".idx")]:
        twin = path.removesuffix(".idx") + ".bin"
        if twin in files or corpus.format in ("auto", "megatron"):
            del files[path]
            if twin not in files:
                for info in _list(twin, corpus):
                    files[info.path] = info
    return [files[path] for path in sorted(files)]


def has_index(path: str) -> bool:
    """Whether a .bin file has the .idx file of a Megatron pair beside it."""
    return exists(path.removesuffix(".bin") + ".idx")


def corpus_format(corpus: Corpus, files: list[FileInfo]) -> str:
    """The one format of a corpus' files. Raises CorpusError naming two files that differ."""
    name = f"corpus {corpus.name}"
    if corpus.format != "auto":
        found: dict[str, str] = {corpus.format: files[0].path}
    else:
        found = {}
        for info in files:
            kind = format_of(info.path)
            if kind is None:
                raise CorpusError(
                    f"{name}: the name of {info.path} tells no format; set `format:`, "
                    "or a `path:` that leaves it out, such as folder/*.jsonl"
                )
            if kind == "bin" and has_index(info.path):
                kind = "megatron"
            found.setdefault(kind, info.path)
    if len(found) > 1:
        (a, path_a), (b, path_b) = list(found.items())[:2]
        raise CorpusError(
            f"{name}: two formats, {a} ({path_a}) and {b} ({path_b}); "
            "make a corpus of each, or set `format:` where the names mislead"
        )
    kind = next(iter(found))
    if kind in PLAIN_ONLY:
        for info in files:
            if codec_of(info.path) is not None:
                raise CorpusError(f"{name}: {info.path}: a {kind} file is not read compressed; decompress it")
    return kind


def make_splits(corpus: str, files: Iterable[FileInfo], source: Source, split_bytes: int) -> list[Split]:
    """Splits of about `split_bytes` bytes of stored size each.

    Files that can be read from any byte are cut at multiples of `split_bytes`; what is smaller is
    packed in order, up to that size and 512 files. The same files give the same splits.
    """
    splits: list[Split] = []
    packed: list[Piece] = []
    size = 0
    for piece in (p for info in files for p in _cut(info, source.format, split_bytes)):
        length = max(piece.end - piece.start, 0)
        if packed and (size + length > split_bytes or len(packed) == MAX_PIECES):
            splits.append(Split(len(splits), corpus, tuple(packed)))
            packed, size = [], 0
        packed.append(piece)
        size += length
    if packed:
        splits.append(Split(len(splits), corpus, tuple(packed)))
    return splits


def _cut(info: FileInfo, kind: str, split_bytes: int) -> Iterator[Piece]:
    if kind not in SPLITTABLE or codec_of(info.path) is not None or info.size <= split_bytes:
        yield Piece(info.path, info.size, 0, info.size, info.version)
        return
    for start in range(0, info.size, split_bytes):
        yield Piece(info.path, info.size, start, min(start + split_bytes, info.size), info.version)
