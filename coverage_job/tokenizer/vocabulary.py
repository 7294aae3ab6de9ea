"""The vocabulary table: one row per row of the model's matrix, free of corpora.

Built once per tokenizer file and kept in the cache folder under the file's hash.
"""

from __future__ import annotations

import gc
import hashlib
import os
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers

from coverage_job.cache import cache_folder
from coverage_job.config import LabelOptions
from coverage_job.schemas import VOCABULARY, Kind, Reachability
from coverage_job.tokenizer import labels
from coverage_job.tokenizer.entries import Entry, decodable, entries, family, text_of
from coverage_job.tokenizer.load import TokenizerSpec, load
from coverage_job.tokenizer.reachability import Reached, reach

# Rises when the table's contents change for the same tokenizer.
_VERSION = 7

# The table as cached: without categories, which a job may define, and with the text they are read from.
_BUILT = pa.schema(
    [field for field in VOCABULARY if not field.name.startswith("category")]
    + [pa.field("_text", pa.string())]
)

# Drawn as nothing or as a gap, though their categories do not say so.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | {
    chr(c) for c in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}


def printable(data: bytes) -> str:
    """Bytes as one line that a person can read, whatever they are.

    What is not UTF-8 is shown as hex, control characters as their pictures, and characters that are not
    seen or that turn the direction of writing by number.

    >>> printable(b" the"), printable("嘉".encode() + b"\\xe5\\x98"), printable("a\\n\\u202e\\u200b".encode())
    (' the', '嘉<E5 98>', 'a␊<U+202E><U+200B>')
    """
    return _show(data.decode("utf-8", errors="surrogateescape"))


def _show(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    out: list[str] = []
    raw: list[str] = []
    for c in text:
        code = ord(c)
        if 0xDC80 <= code <= 0xDCFF:
            raw.append(f"{code - 0xDC00:02X}")
            continue
        if raw:
            out.append(f"<{' '.join(raw)}>")
            raw.clear()
        if code < 0x20 or code == 0x7F:
            out.append(chr(0x2421 if code == 0x7F else 0x2400 + code))
        elif c in _BLANK or (not c.isprintable() and c != " "):
            out.append(f"<U+{code:04X}>")
        else:
            out.append(c)
    if raw:
        out.append(f"<{' '.join(raw)}>")
    return "".join(out)


def vocabulary_table(
    spec: TokenizerSpec, model_vocab_size: int | None = None, options: LabelOptions | None = None
) -> pa.Table:
    """The vocabulary of a tokenizer (schema `VOCABULARY`), rows in id order.

    It has max(highest id + 1, model_vocab_size) rows; ids without an entry are `unused`. Taken from the
    cache where the same file was seen before; categories follow the job's rules, and are never cached.
    Raises TokenizerError, and JobError for rules that cannot be read.
    """
    options = options or LabelOptions()
    rules = labels.read_rules(options.rules)
    path = cache_folder() / f"vocabulary-{_key(spec)}.parquet"
    table = _cached(path, spec.rows)
    if table is None:
        table = _build(spec)
        _keep(path, table)
    padding = (model_vocab_size or 0) - spec.rows
    if padding > 0:
        table = pa.concat_tables([table, _rows({}, {}, range(spec.rows, spec.rows + padding), False)])
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    named = labels.categories(frame.select("kind", "decodable", text="_text"), rules, options.seo_spam)
    columns = {**{name: table[name] for name in _BUILT.names if name != "_text"}}
    return pa.table(columns | {name: named[name].to_arrow() for name in named.columns}).cast(VOCABULARY)


def raise_contextual(table: pa.Table, contexts: Mapping[int, str | None]) -> pa.Table:
    """The table with ids that a corpus was seen to contain as `contextual`.

    contexts: id -> a text whose encoding has it. Only ids that no text was known for are changed.
    """
    never = {
        Reachability.UNREACHABLE.value,
        Reachability.MERGE_INTERMEDIATE.value,
        Reachability.BYTE_NEVER.value,
    }
    state, example = table["reachability"].to_pylist(), table["example"].to_pylist()
    for i, text in contexts.items():
        if state[i] in never:
            state[i], example[i] = Reachability.CONTEXTUAL.value, text
    for name, values in (("reachability", state), ("example", example)):
        column = table.schema.get_field_index(name)
        table = table.set_column(column, table.schema.field(name), pa.array(values, pa.string()))
    return table


def _key(spec: TokenizerSpec) -> str:
    """What the table depends on: the file, this code, its rules, and the versions of what it reads."""
    versions = [unicodedata.unidata_version, tokenizers.__version__, version("wordfreq")]
    parts = [spec.sha256, str(_VERSION), *versions]
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:32]


def _cached(path: Path, rows: int) -> pa.Table | None:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException):
        return None  # not there, or cut short by a full disk: it is made again
    return table if table.schema.equals(_BUILT) and table.num_rows == rows else None


def _keep(path: Path, table: pa.Table) -> None:
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(handle)
        try:
            pq.write_table(table, name, compression="zstd")
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError:
        return  # a cache that cannot be written to costs time, nothing else


def _build(spec: TokenizerSpec) -> pa.Table:
    tokenizer = load(spec)
    of = family(tokenizer)
    with _no_collection():
        known = entries(tokenizer, of)
        return _rows(
            known,
            reach(tokenizer, of, known, f"tokenizer {spec.path}"),
            range(spec.rows),
            bool(of.continuing_prefix),
        )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without looking for cycles, of which a table of plain values has none: up to a fifth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _rows(known: dict[int, Entry], reached: dict[int, Reached], ids: range, marks_inside: bool) -> pa.Table:
    """The rows of some ids. marks_inside: pieces inside a word are marked, those that begin one are not."""
    hole = Entry("", b"", Kind.UNUSED, False)
    nowhere = Reached(False, Reachability.UNUSED, None)
    rows = [(known.get(i, hole), reached.get(i, nowhere)) for i in ids]
    surfaces = [_surface(e, marks_inside) for e, _ in rows]
    named = labels.languages(
        [e.data if text is None else text.encode() for (e, _), text in zip(rows, surfaces, strict=True)]
    )
    return pa.table(
        {
            "token_id": pa.array(ids, pa.int32()),
            "token": [_token(e) for e, _ in rows],
            "token_bytes": pa.array([e.data for e, _ in rows], pa.binary()),
            "kind": [e.kind.value for e, _ in rows],
            "decodable": [decodable(e.data).value for e, _ in rows],
            "round_trip": [r.round_trip for _, r in rows],
            "reachability": [r.reachability.value for _, r in rows],
            "example": pa.array([r.example for _, r in rows], pa.string()),
            **{name: named[name].to_arrow().cast(pa.string()) for name in named.columns},
            "_text": pa.array(surfaces, pa.string()),
        },
        schema=_BUILT,
    )


def _token(entry: Entry) -> str:
    mark = entry.content[: len(entry.content) - len(entry.data.decode())] if entry.continues else ""
    return mark + printable(entry.data)


def _surface(entry: Entry, marks_inside: bool) -> str | None:
    """A token's text with a space in front where it begins a word; None where it is none."""
    if (text := text_of(entry.data)) is None:
        return None
    begins = marks_inside and entry.kind is Kind.BASE and not entry.continues and text[:1].isalpha()
    return f" {text}" if begins else text
