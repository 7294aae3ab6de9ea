"""Records and files that cannot be used: counted, located, never lost, never counted as whole."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coverage_job.corpus.plan import list_files, make_splits
from coverage_job.corpus.reader import BadRecord, PieceStats, Reader, locate
from coverage_job.corpus.source import resolve
from coverage_job.errors import BadFileError, CorpusError
from tests.corpus.reading import COMPRESS, make_job, read_all

GOOD = b'{"text": "good"}'
BAD_LINES = {
    b"not json": "not JSON",
    b'{"text": "x"': "not JSON",
    b'{"text": "x"} trailing': "not JSON",
    b'{"text": NaN}': "not JSON",
    b'["text"]': "wrong type",
    b'"text"': "wrong type",
    b'{"text": 5}': "wrong type",
    b'{"text": ["x"]}': "wrong type",
    b'{"text": null}': "missing field",
    b'{"body": "x"}': "missing field",
    b'{"text": "\xff"}': "not UTF-8",
    b'{"text": "\xed\xa0\x80"}': "not UTF-8",
    b'{"text": "\\ud800"}': "lone surrogate",
    b'{"text": "\\udc00 x"}': "lone surrogate",
    b'{"text": "' + b"x" * 200 + b'"}': "too long",
    b"[" * 5000: "too long",
    b"[" * 99: "not JSON",
}


@pytest.mark.parametrize("keys", [{}, {"group_by": "g"}], ids=["fast", "keyed"])
def test_every_fault_of_a_line_is_located(write: Callable[..., str], keys: dict[str, str]) -> None:
    good = b'{"text": "good", "g": "a"}'
    lines = [good]
    for bad in BAD_LINES:
        lines += [b"", bad, good]
    path = write("a.jsonl", b"\n".join(lines))
    for split in (1 << 20, 150, 17):
        read = read_all(
            make_job(path=path, max_record_bytes=100, max_bad_fraction=1.0, **keys), split_bytes=split
        )
        assert read.texts == ["good"] * (len(BAD_LINES) + 1)
        assert [(b.position, b.reason.partition(":")[0], b.first_bytes) for b in read.bad] == [
            (3 + 3 * i, reason, line[:80]) for i, (line, reason) in enumerate(BAD_LINES.items())
        ]
        assert {b.file for b in read.bad} == {path}
        assert sum(sum(s.reasons.values()) for s in read.stats) == len(BAD_LINES)


def test_one_bad_line_of_three_is_no_null(write: Callable[..., str]) -> None:
    read = read_all(make_job(path=write("a.jsonl", GOOD + b"\n{\n" + GOOD)))
    assert (read.total("records"), read.total("documents"), read.total("bad_records")) == (3, 2, 1)


def test_a_torn_last_line_of_a_plain_file_is_a_bad_record(write: Callable[..., str]) -> None:
    read = read_all(make_job(path=write("a.jsonl", GOOD + b"\n" + GOOD[:9])))
    assert (read.total("documents"), [b.position for b in read.bad]) == (1, [2])


def test_bad_records_kept_are_bounded(write: Callable[..., str]) -> None:
    read = read_all(make_job(path=write("a.jsonl", GOOD + b"\n" + b"bad\n" * 1000)))
    assert (read.total("bad_records"), len(read.bad)) == (1000, 100)
    assert read.stats[0].reasons == {"not JSON": 1000}


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.json"])
def test_a_bad_record_may_end_the_run(write: Callable[..., str], name: str) -> None:
    data = {
        "a.jsonl": b'{"text": "x"}\n\nbad\n',
        "a.csv": b'text,n\nx,1\ny\n',
        "a.json": b'[{"text": "x"}, bad]',
    }  # fmt: skip
    place = {"a.jsonl": "line 3", "a.csv": "row 1", "a.json": "element 1"}[name]
    with pytest.raises(CorpusError, match=rf"{name}, {place}: not .*on_bad_record: skip"):
        read_all(make_job(path=write(name, data[name]), on_bad_record="fail"))


def test_json_elements(write: Callable[..., str]) -> None:
    data = b'[{"text": "a"}, {"text": }, 5, {"text": "b,]\\"{"},, {"text": "%s"}, {"text": "c"}]' % (
        b"x" * 9000
    )
    read = read_all(make_job(path=write("a.json", data), max_record_bytes=50))
    assert read.texts == ["a", 'b,]"{', "c"]
    assert [(b.position, b.reason.partition(":")[0]) for b in read.bad] == [
        (1, "not JSON"), (2, "wrong type"), (4, "not JSON"), (5, "too long"),
    ]  # fmt: skip


def test_csv_rows(write: Callable[..., str]) -> None:
    data = (
        b'text,n\na,1\nb\nc,3,4\n"d\n\nd",4\n\xff,5\n"'
        + b"x\n" * 60
        + b'",6\n'
        + b"y" * 200
        + b',7\ne,8\n"torn,9\n'
    )
    read = read_all(make_job(path=write("a.csv", data), max_record_bytes=100))
    assert read.texts == ["a", "d\n\nd", "e"]
    assert [(b.position, b.reason.partition(":")[0]) for b in read.bad] == [
        (1, "not CSV"), (2, "not CSV"), (4, "not UTF-8"), (5, "too long"), (6, "too long"), (8, "not CSV"),
    ]  # fmt: skip
    assert read.bad[-2].first_bytes == b"y" * 80


def test_a_column_name_that_stands_twice_is_refused(write: Callable[..., str], tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match=r"a\.csv: line 1: the header names 'text' twice"):
        read_all(make_job(path=write("a.csv", b"text,n,text\na,1,b\n")))
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(BadFileError, match=r"a\.parquet: two columns are named 'text'"):
        read_all(make_job(path=str(tmp_path / "a.parquet")))


def test_plain_text(write: Callable[..., str]) -> None:
    read = read_all(
        make_job(path=write("a.txt", b"one\n\xff\n\n" + b"x" * 99 + b"\ntwo\n"), max_record_bytes=50)
    )
    assert read.texts == ["one", "two"]
    assert [(b.position, b.reason.partition(":")[0]) for b in read.bad] == [(2, "not UTF-8"), (4, "too long")]


def cut(data: bytes, name: str, write: Callable[..., str], tmp_path: Path) -> None:
    """Each of several cuts of a file must be refused, and the file be named."""
    whole = Path(write(name, data)).read_bytes()
    read_all(make_job(path=str(tmp_path / name)))
    for size in {len(whole) // 3, len(whole) // 2, len(whole) - 9, len(whole) - 2}:
        (tmp_path / name).write_bytes(whole[:size])
        with pytest.raises(BadFileError, match=name.replace(".", r"\.")):
            read_all(make_job(path=str(tmp_path / name)))


@pytest.mark.parametrize("suffix", [s for s in COMPRESS if s])
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "txt"])
def test_a_cut_compressed_file(write: Callable[..., str], tmp_path: Path, suffix: str, kind: str) -> None:
    texts = [f"text {i * 7919 % 10007}" for i in range(3000)]
    lines = [orjson.dumps({"text": t}) for t in texts]
    data = {
        "jsonl": b"\n".join(lines),
        "json": b"[" + b",".join(lines) + b"]",
        "csv": "\n".join(["text", *texts]).encode(),
        "txt": "\n".join(texts).encode(),
    }[kind]
    cut(data, f"a.{kind}{suffix}", write, tmp_path)


def test_a_cut_json_array(write: Callable[..., str], tmp_path: Path) -> None:
    cut(orjson.dumps([{"text": f"text {i}"} for i in range(300)]), "a.json", write, tmp_path)


@pytest.mark.parametrize("data", [b"[{}] {}", b'{"text": "x"} {"text"', b"5", b"]", b'[{"text": "x"}}'])
def test_what_is_no_json_file(write: Callable[..., str], data: bytes) -> None:
    path = write("a.json", data)
    with pytest.raises(CorpusError):
        read_all(make_job(path=path, format="json", text="text", shape="text"))


def parquet(rows: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": [f"text {i}" for i in range(rows)]}), sink, row_group_size=100)
    return sink.getvalue()


def arrow(rows: int, make: Callable[..., pa.RecordBatchWriter]) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"text": [f"text {i}" for i in range(rows)]})
    with make(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    return sink.getvalue()


@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "stream.arrow"])
def test_a_cut_table(write: Callable[..., str], tmp_path: Path, name: str) -> None:
    make = pa.ipc.new_stream if name == "stream.arrow" else pa.ipc.new_file
    cut(parquet(1000) if name == "a.parquet" else arrow(1000, make), name, write, tmp_path)


def test_a_stream_cut_between_two_batches(write: Callable[..., str]) -> None:
    data = arrow(1000, pa.ipc.new_stream)
    reader = pa.ipc.open_stream(data)
    half = io.BytesIO()
    writer = pa.ipc.new_stream(half, reader.schema)
    writer.write_batch(reader.read_next_batch())
    writer.write_batch(reader.read_next_batch())
    with pytest.raises(BadFileError, match="end mark"):  # the writer was never closed
        read_all(make_job(path=write("a.arrow", half.getvalue())))


def test_damaged_parquet_pages(write: Callable[..., str]) -> None:
    data = bytearray(parquet(1000))
    data[20:60] = b"\xa5" * 40
    with pytest.raises(BadFileError, match=r"a\.parquet"):
        read_all(make_job(path=write("a.parquet", bytes(data))))


def test_only_needed_columns_are_read(write: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    import coverage_job.corpus.formats as formats

    sink = io.BytesIO()
    columns = {f"c{i}": [i] * 5 for i in range(40)} | {"text": ["x"] * 5, "lang": ["de"] * 5}
    pq.write_table(pa.table(columns), sink)
    seen: list[list[str]] = []
    real = formats.parquet_batches

    def spy(*arguments: object) -> object:
        for first, batch in real(*arguments):  # type: ignore[arg-type]
            seen.append(batch.schema.names)
            yield first, batch

    monkeypatch.setattr(formats, "parquet_batches", spy)
    read = read_all(make_job(path=write("a.parquet", sink.getvalue()), language_field="lang"))
    assert read.texts == ["x"] * 5
    assert [sorted(names) for names in seen] == [["lang", "text"]]


def test_lines_of_earlier_pieces_are_added() -> None:
    def stats(file: str, start: int, lines: int) -> PieceStats:
        piece = PieceStats(file, start, start + 10, 10)
        piece.lines = lines
        return piece

    def bad(file: str, start: int, position: int) -> BadRecord:
        return BadRecord("c", file, start, position, "not JSON", b"")

    pieces = [stats("a", 20, 3), stats("a", 0, 5), stats("a", 10, 0), stats("b", 0, 7)]
    found = locate([bad("b", 0, 2), bad("a", 20, 1), bad("a", 0, 4)], pieces)
    assert [(b.file, b.position) for b in found] == [("a", 4), ("a", 6), ("b", 2)]


def test_a_file_that_shrank_since_it_was_planned(write: Callable[..., str], tmp_path: Path) -> None:
    path = write("a.jsonl", (GOOD + b"\n") * 20)
    job = make_job(path=path)
    files = list_files(job.corpora[0])
    source = resolve(job.corpora[0], job, files)
    (tmp_path / "a.jsonl").write_bytes((GOOD + b"\n") * 10)
    for split_bytes in (1 << 20, 100):
        last = make_splits("c", files, source, split_bytes)[-1].pieces[-1]
        with pytest.raises(BadFileError, match=r"a\.jsonl: has .* bytes, 340 when the run began"):
            list(Reader(source).open(last).batches())


def test_a_bad_first_file_may_be_skipped_when_the_shape_is_decided(
    write: Callable[..., str], tmp_path: Path
) -> None:
    write("a.parquet", b"PAR1 torn")
    write("b.parquet", parquet(3))
    job = make_job(path=str(tmp_path), on_bad_file="skip")
    files = list_files(job.corpora[0])
    assert resolve(job.corpora[0], job, files).shape == "text"
    strict = make_job(path=str(tmp_path))
    with pytest.raises(BadFileError, match=r"a\.parquet"):
        resolve(strict.corpora[0], strict, files)
