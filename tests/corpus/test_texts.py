"""Text corpora: the same documents whatever the format, the compression and the cuts."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coverage_job.corpus.documents import Key, TextBatch
from coverage_job.errors import CorpusError
from tests.corpus.reading import COMPRESS, make_job, read_all

TEXTS = ["one", "", "zwei\u2028drei", "\u0085", "嘉祺", "a\nb\r\nc", "𝕏 e\u0301", "\x00\x7f", "long " * 999]


def jsonl(texts: list[str]) -> bytes:
    return b"".join(orjson.dumps({"id": i, "text": t}) + b"\n" for i, t in enumerate(texts))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_jsonl(write: Callable[..., str], suffix: str) -> None:
    path = write(f"a.jsonl{suffix}", b"\xef\xbb\xbf" + jsonl(TEXTS).replace(b"\n", b"\r\n\n \n"))
    read = read_all(make_job(path=path))
    assert read.texts == TEXTS
    assert read.source.decided == "format jsonl, shape text (field 'text')"
    assert (read.total("documents"), read.total("empty_documents"), read.total("bad_records")) == (9, 1, 0)
    assert read.total("text_bytes") == sum(len(t.encode()) for t in TEXTS)
    assert read.total("lines") == 3 * len(TEXTS)
    for batch in read.batches:
        assert isinstance(batch, TextBatch)
        assert batch.spans is None


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    texts=st.lists(st.text(max_size=20), min_size=1, max_size=30),
    split=st.integers(1, 400),
    crlf=st.booleans(),
)
def test_any_split_of_jsonl_gives_the_same_documents(
    tmp_path: Path, texts: list[str], split: int, crlf: bool
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(jsonl(texts).replace(b"\n", b"\r\n" if crlf else b"\n"))
    assert read_all(make_job(path=str(path)), split_bytes=split).texts == texts


@pytest.mark.parametrize("pieces", [1, 7, 64])
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "txt"])
def test_the_number_of_splits_changes_nothing(tmp_path: Path, kind: str, pieces: int) -> None:
    texts = [f"text {i} " + "é" * (i % 50) for i in range(3000)]
    path = tmp_path / f"x.{kind}"
    if kind == "jsonl":
        path.write_bytes(jsonl(texts))
    elif kind == "txt":
        path.write_bytes("\n".join(texts).encode())
    else:
        pq.write_table(pa.table({"text": texts}), path, row_group_size=30)
    read = read_all(make_job(path=str(path)), split_bytes=-(-path.stat().st_size // pieces))
    assert read.splits == pieces
    assert read.texts == texts


def parquet(column: pa.Array, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array(range(len(column))), "text": column}), sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize(
    "column",
    [
        pa.array(TEXTS),
        pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS).dictionary_encode(),
        pa.array([t.encode() for t in TEXTS]),
        pa.array([t.encode() for t in TEXTS], pa.large_binary()),
        pa.array(TEXTS, pa.string_view()),
    ],
    ids=lambda c: str(c.type).split("<")[0],
)
@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
def test_arrow_types(write: Callable[..., str], column: pa.Array, kind: str) -> None:
    if kind == "parquet":
        path = write("a.parquet", parquet(column, row_group_size=4))
    else:
        sink = io.BytesIO()
        table = pa.table({"text": column})
        make = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with make(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
        path = write("a.arrow", sink.getvalue())
    read = read_all(make_job(path=path))
    assert read.texts == TEXTS
    assert read.total("empty_documents") == 1


def test_bad_arrow_values_cost_their_row(write: Callable[..., str]) -> None:
    column = pa.array([b"good", None, b"\xff", "ünï".encode(), b"x" * 50, b""])
    read = read_all(make_job(path=write("a.parquet", parquet(column)), max_record_bytes=20))
    assert read.texts == ["good", "ünï", ""]
    assert [(b.position, b.reason.partition(":")[0], b.first_bytes) for b in read.bad] == [
        (1, "missing field", b""),
        (2, "not UTF-8", b"\xff"),
        (4, "too long", b"x" * 50),
    ]


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_csv(write: Callable[..., str], delimiter: str) -> None:
    import csv

    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerows([["n", "text"], *([i, t] for i, t in enumerate(TEXTS))])
    name = "a.csv" if delimiter == "," else "a.tsv"
    read = read_all(make_job(path=write(name, b"\xef\xbb\xbf" + out.getvalue().encode() + b"\r\n")))
    assert read.texts == TEXTS


def test_plain_text(write: Callable[..., str]) -> None:
    read = read_all(make_job(path=write("a.txt.gz", "one\r\n\n \ntwo\u2028\n{\xe9}".encode())))
    assert read.texts == ["one", "two\u2028", "{\xe9}"]


def test_json_array_and_objects(write: Callable[..., str]) -> None:
    records = [{"text": t, "meta": {"a": [1, {"b": '"]}'}]}} for t in TEXTS]
    pretty = orjson.dumps(records, option=orjson.OPT_INDENT_2)
    assert read_all(make_job(path=write("a.json.xz", pretty))).texts == TEXTS
    one = orjson.dumps(records[0], option=orjson.OPT_INDENT_2)
    read = read_all(make_job(path=write("b.json", one + b"\n" + one)))
    assert read.texts == ["one", "one"]
    lines = read_all(make_job(path=write("c.json", jsonl(TEXTS))))
    assert (lines.source.format, lines.texts) == ("jsonl", TEXTS)


def test_keys(write: Callable[..., str]) -> None:
    values = [
        ("pt_BR", "web"),
        ("code", None),
        (None, 3),
        ("English", True),
        ("en", "web"),
        ("zho", 1),
        (5, 1.0),
        ("150", "web"),  # Europe, of the UN's numbers
    ]
    data = b"".join(orjson.dumps({"text": "x", "lang": a, "src": b}) + b"\n" for a, b in values)
    path = write("a.jsonl", data)
    both = read_all(make_job(path=path, language_field="lang", group_by="src"))
    assert [k for k, _, _ in both.documents] == [
        Key("pt-BR", "web"), Key("", "code"), Key("", "3"), Key("en", "true"), Key("en", "web"),
        Key("zh", "1"), Key("", "1.0/5"), Key("", "web/150"),
    ]  # fmt: skip
    language = read_all(make_job(path=path, language_field="lang"))
    assert [k for k, _, _ in language.documents][:4] == [
        Key("pt-BR", ""),
        Key("", "code"),
        Key("", ""),
        Key("en", ""),
    ]
    rows = [{"text": "x", "lang": a, "src": None if b is None else str(b)} for a, b in values[:6]]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    table = read_all(
        make_job(path=write("a.parquet", sink.getvalue()), language_field="lang", group_by="src")
    )
    assert [k for k, _, _ in table.documents][:3] == [
        Key("pt-BR", "web"),
        Key("", "code"),
        Key("", "3"),
    ]


def test_too_many_groups(write: Callable[..., str]) -> None:
    data = b"".join(orjson.dumps({"text": "x", "id": i}) + b"\n" for i in range(1001))
    with pytest.raises(CorpusError, match="'id' has over 1,000 values"):
        read_all(make_job(path=write("a.jsonl", data), group_by="id"))


def test_batches_are_bounded_by_bytes(write: Callable[..., str]) -> None:
    texts = ["x" * (2 << 20)] * 9 + ["y" * (9 << 20)] + ["z"] * 3
    for name, data in (("a.jsonl", jsonl(texts)), ("a.parquet", parquet(pa.array(texts)))):
        read = read_all(make_job(path=write(name, data)))
        assert read.texts == texts
        sizes = [b.text.size for b in read.batches if isinstance(b, TextBatch)]
        assert all(size <= 8 << 20 for size in sizes if size != 9 << 20)
        assert 9 << 20 in sizes
