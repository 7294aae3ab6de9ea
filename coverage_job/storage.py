"""Files on any fsspec path, whole or not at all; run directories that say themselves whether they are whole.

Object stores have no rename, so a directory is whole when its `run.json`, written last, lists every
other file with its size and sha256. Local files are written beside their place and renamed.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, TypeVar

import fsspec
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from coverage_job.errors import RunDirectoryError, StorageError
from coverage_job.schemas import FORMAT_VERSION

T = TypeVar("T")

# Delays before the second, third, ... try of a remote operation, in seconds.
_BACKOFF = (0.5, 1.0, 2.0, 4.0, 8.0)


# Errors of the packages that speak to stores, which need not be OSErrors.
_REMOTE = {
    "aiobotocore",
    "aiohttp",
    "azure",
    "botocore",
    "gcsfs",
    "google",
    "httpx",
    "huggingface_hub",
    "requests",
}
# Errors that no repetition mends.
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
_FINAL_NAMES = {"FileExpired", "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"}
_PASSING_STATUS = {408, 425, 429}


def _passing(error: Exception) -> bool:
    """Whether the same operation may work a little later."""
    if isinstance(error, _FINAL) or type(error).__name__ in _FINAL_NAMES:
        return False
    answer = getattr(error, "response", None)
    for status in (getattr(error, "status", None), getattr(answer, "status_code", None)):
        if isinstance(status, int) and 400 <= status < 500 and status not in _PASSING_STATUS:
            return False
    return isinstance(error, OSError) or type(error).__module__.split(".")[0] in _REMOTE


def with_retries(operation: Callable[[], T], what: str) -> T:
    """Run a remote operation, again after a pause where the store throttles or drops the connection.

    Errors that no repetition mends pass through at once. Raises StorageError naming `what` where the last
    try fails too, or credentials are missing.
    """
    for delay in (*_BACKOFF, None):
        try:
            return operation()
        except Exception as error:
            if not _passing(error):
                if isinstance(error, OSError) or type(error).__module__.split(".")[0] not in _REMOTE:
                    raise
                raise StorageError(f"{what}: {error}") from error
            if delay is None:
                raise StorageError(f"{what}: gave up after {len(_BACKOFF) + 1} tries: {error}") from error
            time.sleep(delay)
    raise AssertionError("unreachable")


class _PatientFile:
    """A remote file whose reads are tried again; all else is the file's own."""

    def __init__(self, file: Any, path: str) -> None:
        self._file, self._path = file, path

    def read(self, size: int = -1) -> bytes:
        # A read that failed has not moved the file's position.
        data: bytes = with_retries(lambda: self._file.read(size), self._path)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _PatientFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def open_input(path: str) -> Any:
    """A file open for reading; remote reads are tried again. Raises OSError, ValueError or ImportError."""
    opener = fsspec.open(path, "rb")
    if "file" in ([opener.fs.protocol] if isinstance(opener.fs.protocol, str) else opener.fs.protocol):
        return opener.open()
    file = with_retries(opener.open, path)
    # A stream of unknown length cannot go back to where a read failed.
    return _PatientFile(file, path) if getattr(file, "size", None) is not None else file


_SECRET_KEY = re.compile(
    r"(?i)secret|passw|token|credential|access[._-]?key|account[._-]?key|signature|\bsas\b"
)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^/@\s\"']+)@")
_QUERY = re.compile(
    r"(?i)([?&;](?:[\w.-]*(?:signature|token|credential|secret|password|key(?:id)?)|sig)=)[^&;\s\"']+"
)
MASK = "***"


def mask_text(text: str) -> str:
    """A text without the secrets that its URLs hold.

    >>> mask_text("https://user:pw@host/x?sig=abc&n=1 failed")
    'https://***@host/x?sig=***&n=1 failed'
    """
    if "://" not in text:
        return text
    return _QUERY.sub(rf"\1{MASK}", _URL.sub(rf"\1{MASK}@", text))


def mask_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings by name, the values of those that hold secrets masked.

    >>> mask_settings({"spark.hadoop.fs.s3a.secret.key": "abc", "spark.executor.cores": "4"})
    {'spark.hadoop.fs.s3a.secret.key': '***', 'spark.executor.cores': '4'}
    """
    return {k: MASK if _SECRET_KEY.search(k) else mask_text(v) for k, v in settings.items()}


def mask_urls(value: T) -> T:
    """A tree of plain values with every text as `mask_text` gives it."""
    if isinstance(value, str):
        return mask_text(value)  # type: ignore[return-value]
    if isinstance(value, Mapping):
        return {k: mask_urls(v) for k, v in value.items()}  # type: ignore[return-value]
    if isinstance(value, (list, tuple)):
        return type(value)(mask_urls(v) for v in value)
    return value


def split_url(path: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of a path and the path within it. Raises StorageError naming a missing package."""
    try:
        fs, plain = fsspec.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise StorageError(f"{path}: {error}") from None
    return fs, plain


def is_local(path: str) -> bool:
    fs, _ = split_url(path)
    return "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)


def join(folder: str, *names: str) -> str:
    return "/".join([folder.rstrip("/"), *names])


def kind_of(path: str) -> Literal["file", "directory"] | None:
    """What is at a path; None where nothing is. A store that does not answer is an error, not nothing."""
    fs, plain = split_url(path)
    try:
        kind = with_retries(lambda: fs.info(plain)["type"], path)
    except (FileNotFoundError, NotADirectoryError):  # the latter: below a file
        return None
    return "directory" if kind == "directory" else "file"


def exists(path: str) -> bool:
    return kind_of(path) is not None


def list_folder(path: str) -> list[str]:
    """The names in a folder, sorted; none where there is no such folder."""
    fs, plain = split_url(path)
    try:
        found = with_retries(lambda: fs.ls(plain, detail=False), path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in found)


@dataclass(frozen=True)
class Entry:
    """A file in a folder. size: bytes. modified: seconds since 1970, 0 where the store does not say."""

    name: str
    size: int
    modified: float


def list_entries(path: str) -> list[Entry]:
    """The files in a folder, by name; none where there is no such folder."""
    fs, plain = split_url(path)
    try:
        found = with_retries(lambda: fs.ls(plain, detail=True, refresh=True), path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    entries = []
    for info in found:
        if info["type"] == "directory":
            continue
        times = (info.get(key) for key in ("mtime", "LastModified", "last_modified", "updated", "created"))
        time_ = next((t for t in times if t is not None), 0.0)
        if isinstance(time_, str):
            time_ = datetime.fromisoformat(time_.replace("Z", "+00:00"))
        if isinstance(time_, datetime):
            time_ = time_.timestamp()
        name = str(info["name"]).rstrip("/").rsplit("/", 1)[-1]
        entries.append(Entry(name, int(info.get("size") or 0), float(time_)))
    return sorted(entries, key=lambda e: e.name)


def remove(path: str, *, folder: bool = False) -> None:
    """Remove a file, or a folder and what is in it, where it is there. Raises StorageError naming it."""
    fs, plain = split_url(path)
    try:
        with_retries(lambda: fs.rm(plain, recursive=True) if folder else fs.rm_file(plain), path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"{path}: cannot be removed: {error}") from None


def read_bytes(path: str) -> bytes:
    """All of a small file. Raises StorageError naming it."""
    fs, plain = split_url(path)
    try:
        data: bytes = with_retries(lambda: fs.cat_file(plain), path)
    except FileNotFoundError:
        raise StorageError(f"{path}: no such file") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error}") from None
    return data


def read_range(path: str, start: int, end: int) -> bytes:
    """Bytes start to end of a file, fewer where it is shorter. Raises StorageError naming it."""
    fs, plain = split_url(path)
    try:
        data: bytes = with_retries(lambda: fs.cat_file(plain, start=start, end=end), path)
    except FileNotFoundError:
        raise StorageError(f"{path}: no such file") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error}") from None
    return data


def write_bytes(path: str, data: bytes) -> None:
    """Write a whole file, so that no reader sees a part of it. Raises StorageError naming it."""
    fs, plain = split_url(path)
    try:
        if is_local(path):
            os.makedirs(os.path.dirname(plain) or ".", exist_ok=True)
            beside = f"{plain}.{secrets.token_hex(4)}.part"
            try:
                with open(beside, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(beside, plain)
            finally:
                if os.path.exists(beside):
                    os.unlink(beside)
        else:
            with_retries(lambda: fs.pipe_file(plain, data), path)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error}") from None


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file with the format's version in its metadata."""
    metadata = {**(table.schema.metadata or {}), b"coverage_job.format": str(FORMAT_VERSION).encode()}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink, compression="zstd")
    result: bytes = sink.getvalue().to_pybytes()
    return result


def write_parquet(path: str, table: pa.Table) -> None:
    write_bytes(path, parquet_bytes(table))


def read_parquet(path: str, columns: list[str] | None = None) -> pa.Table:
    """A table written by `write_parquet`. Raises StorageError naming a torn file."""
    try:
        return pq.read_table(pa.BufferReader(read_bytes(path)), columns=columns)
    except pa.ArrowInvalid as error:
        raise StorageError(f"{path}: not a whole Parquet file ({error}); write it again") from None


def dump_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY) + b"\n"


def refuse_existing(directory: str) -> None:
    """Raises StorageError where something is at a path that is to be made."""
    if not directory:
        raise StorageError("the output directory has no name; name a directory that does not exist")
    if exists(directory):
        raise StorageError(f"{directory}: exists already; name a directory that does not")


class RunWriter:
    """Writes the files of a new run directory; `finish` makes it whole."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._files: dict[str, dict[str, Any]] = {}

    @classmethod
    def create(cls, output: str, directory: str | None = None) -> RunWriter:
        """A run directory under `output`, or `directory` itself, which must not exist yet."""
        if directory is None:
            stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
            directory = join(output, f"{stamp}-{secrets.token_hex(3)}")
        refuse_existing(directory)
        if is_local(directory):
            _, plain = split_url(directory)
            try:
                os.makedirs(plain)
            except OSError as error:
                raise StorageError(f"{directory}: cannot be made: {error}") from None
        return cls(directory)

    def write(self, name: str, data: bytes) -> None:
        write_bytes(join(self.path, name), data)
        self._files[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def write_table(self, name: str, table: pa.Table) -> None:
        self.write(name, parquet_bytes(table))

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, dump_json(value))

    def finish(self, run: dict[str, Any]) -> None:
        """Write `run.json`, which lists every file: from now on readers accept the directory."""
        write_bytes(
            join(self.path, "run.json"), dump_json({"format": FORMAT_VERSION, **run, "files": self._files})
        )


class Run:
    """A whole run directory, opened for reading."""

    def __init__(self, path: str) -> None:
        """Raises RunDirectoryError where `run.json` is missing or a listed file does not match it."""
        self.path = path
        if not exists(join(path, "run.json")):
            raise RunDirectoryError(
                f"{path}: no run.json, so no run that ended; give the directory that `run` printed last"
            )
        try:
            self.info: dict[str, Any] = orjson.loads(read_bytes(join(path, "run.json")))
        except orjson.JSONDecodeError:
            raise RunDirectoryError(f"{path}/run.json: torn; run again") from None
        if self.info.get("format") != FORMAT_VERSION:
            raise RunDirectoryError(
                f"{path}: written by format {self.info.get('format')}, this program reads {FORMAT_VERSION}; "
                "run again"
            )

    def read(self, name: str) -> bytes:
        """A listed file, checked against its size and sha256."""
        entry = self.info["files"].get(name)
        if entry is None:
            raise RunDirectoryError(f"{self.path}: this run has no {name}")
        try:
            data = read_bytes(join(self.path, name))
        except StorageError as error:
            raise RunDirectoryError(f"{error}; the run is not whole, run again") from None
        if len(data) != entry["size"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise RunDirectoryError(f"{self.path}/{name}: not as it was written; run again")
        return data

    def table(self, name: str, columns: list[str] | None = None) -> pa.Table:
        return pq.read_table(pa.BufferReader(self.read(name)), columns=columns)

    def json(self, name: str) -> Any:
        return orjson.loads(self.read(name))

    def verify(self) -> None:
        """Read every listed file once and compare. Raises RunDirectoryError naming the first that differs."""
        for name in self.info["files"]:
            self.read(name)
