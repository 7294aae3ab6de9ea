"""Token corpora: ids, labels and masks in records; Megatron pairs and flat files."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coverage_job.errors import BadFileError, CorpusError, TokenIdError
from tests.corpus.reading import make_job, read_all

RECORDS: list[dict[str, Any]] = [
    {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "mask": [0, 1, 1]},
    {"input_ids": [], "labels": [], "mask": []},
    {"input_ids": [1, 2], "labels": [1, -100], "mask": [1, 0]},
    {"input_ids": [9], "labels": [-100], "mask": [0]},
]
TARGETS = [[6, 7], [], [1], []]


def as_file(
    write: Callable[..., str], kind: str, rows: list[dict[str, Any]], ids: pa.DataType | None = None
) -> str:
    if kind == "jsonl":
        return write("a.jsonl", b"\n".join(map(orjson.dumps, rows)))
    kinds = {
        "input_ids": pa.list_(pa.int32()),
        "labels": pa.large_list(pa.int64()),
        "mask": pa.list_(pa.int8()),
    }
    if ids is not None:
        kinds["input_ids"] = ids
    table = pa.table({k: pa.array([r.get(k) for r in rows], t) for k, t in kinds.items() if k in rows[0]})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return write("a.parquet", sink.getvalue())


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("key", ["labels", "loss_mask"])
def test_labels_and_masks(write: Callable[..., str], kind: str, key: str) -> None:
    keys = {} if key == "labels" else {"loss_mask": "mask"}
    read = read_all(make_job(path=as_file(write, kind, RECORDS), stage="posttraining", **keys))
    assert read.ids == [r["input_ids"] for r in RECORDS]
    assert [targets for _, _, targets in read.documents] == TARGETS
    assert (read.total("empty_documents"), read.total("without_target")) == (1, 1)
    assert (read.total("labelled"), read.total("shifted_labels")) == ((3, 0) if key == "labels" else (0, 0))
    assert read.source.warnings == ()
    assert "supervised by" in read.source.decided


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_without_labels_all_is_supervised(write: Callable[..., str], kind: str) -> None:
    rows = [{"input_ids": r["input_ids"]} for r in RECORDS]
    path = as_file(write, kind, rows)
    read = read_all(make_job(path=path, stage="posttraining"))
    assert [targets for _, _, targets in read.documents] == [r["input_ids"] for r in RECORDS]
    assert "neither labels nor a loss mask" in read.source.warnings[0]
    assert read_all(make_job(path=path)).source.warnings == ()
    with pytest.raises(CorpusError, match=r"no field 'tags' \(labels"):
        read_all(make_job(path=path, labels="tags"))


def test_a_mask_by_its_usual_name(write: Callable[..., str]) -> None:
    rows = b'{"input_ids": [1, 2], "assistant_masks": [false, true]}'
    read = read_all(make_job(path=write("a.jsonl", rows), stage="posttraining"))
    assert read.documents[0][2] == [2]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_shifted_labels_are_counted(write: Callable[..., str], kind: str) -> None:
    rows = [{"input_ids": [1, 2, 3, 4], "labels": [2, 3, 4, -100]}]
    read = read_all(make_job(path=as_file(write, kind, rows), stage="posttraining"))
    assert (read.total("labelled"), read.total("shifted_labels")) == (3, 3)
    assert read.documents[0][2] == [1, 2, 3]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_bad_token_records(write: Callable[..., str], kind: str) -> None:
    rows: list[dict[str, Any]] = [
        {"input_ids": [1], "labels": [1]},
        {"input_ids": [1, 2], "labels": [1]},
        {"input_ids": None, "labels": [1]},
        {"input_ids": [1], "labels": None},
        {"input_ids": [1, None], "labels": [1, 2]},
        {"input_ids": list(range(40)), "labels": list(range(40))},
    ]
    if kind == "jsonl":
        rows += [{"input_ids": value, "labels": [1]} for value in (["a"], [1.5], "x", [[1], [2, 3]])]
    read = read_all(make_job(path=as_file(write, kind, rows), max_record_bytes=100))
    assert read.ids == [[1]]
    reasons = [b.reason.partition(":")[0] for b in read.bad]
    assert reasons[:5] == ["lengths differ", "missing field", "missing field", "wrong type", "too long"]
    assert set(reasons[5:]) <= {"wrong type"}
    first = 2 if kind == "jsonl" else 1
    assert [b.position for b in read.bad] == list(range(first, first + len(rows) - 1))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("id_", [100, -1, 1 << 40])
def test_an_id_outside_the_matrix_names_its_record(write: Callable[..., str], kind: str, id_: int) -> None:
    rows = [{"input_ids": [1, 99]}, {"input_ids": []}, {"input_ids": [3, id_]}]
    path = as_file(write, kind, rows, pa.list_(pa.int64()))
    place = "line 3" if kind == "jsonl" else "row 2"
    with pytest.raises(
        TokenIdError, match=rf"corpus c: .*, {place}: id {id_} is outside the model's 100 rows"
    ):
        read_all(make_job(path=path), rows=100)


@pytest.mark.parametrize("ids", [pa.list_(pa.uint16()), pa.large_list(pa.uint32()), pa.list_(pa.int64(), 2)])
def test_types_of_ids(write: Callable[..., str], ids: pa.DataType) -> None:
    read = read_all(
        make_job(path=as_file(write, "parquet", [{"input_ids": [1, 2]}, {"input_ids": [3, 4]}], ids))
    )
    assert read.ids == [[1, 2], [3, 4]]


def megatron(folder: Path, documents: Sequence[Sequence[Sequence[int]]], dtype: str = "uint16") -> str:
    """Documents of sequences of ids as a .bin/.idx pair, by the layout's own words."""
    codes = {"uint8": 1, "int32": 4, "int64": 5, "uint16": 8}
    sequences = [s for d in documents for s in d]
    sizes = [len(s) for s in sequences]
    width = np.dtype(dtype).itemsize
    places = [width * sum(sizes[:i]) for i in range(len(sizes))]
    borders = np.cumsum([0, *map(len, documents)]).tolist()
    (folder / "m.bin").write_bytes(b"".join(np.array(s, dtype).tobytes() for s in sequences))
    (folder / "m.idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, codes[dtype], len(sizes), len(borders))
        + np.array(sizes, "<i4").tobytes()
        + np.array(places, "<i8").tobytes()
        + np.array(borders, "<i8").tobytes()
    )
    return str(folder / "m.bin")


SMALL = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
DOCUMENTS = st.lists(st.lists(st.lists(st.integers(0, 200), max_size=5), max_size=3), min_size=1, max_size=12)


@SMALL
@given(
    documents=DOCUMENTS,
    split=st.integers(1, 60),
    dtype=st.sampled_from(["uint8", "uint16", "int32", "int64"]),
)
def test_megatron_at_any_split(
    tmp_path: Path, documents: list[list[list[int]]], split: int, dtype: str
) -> None:
    read = read_all(make_job(path=megatron(tmp_path, documents, dtype)), split_bytes=split)
    assert read.ids == [[i for s in d for i in s] for d in documents]
    assert read.source.decided == "format megatron, shape tokens (ids)"


def test_megatron_sequences_in_another_order(tmp_path: Path) -> None:
    path = megatron(tmp_path, [[[1, 2], [3]], [[4, 5]]])
    data = bytearray((tmp_path / "m.idx").read_bytes())
    data[34 + 12 : 34 + 36] = np.array([6, 4, 0], "<i8").tobytes()
    (tmp_path / "m.idx").write_bytes(data)
    assert read_all(make_job(path=path)).ids == [[4, 5, 3], [1, 2]]


def test_megatron_faults(tmp_path: Path) -> None:
    path = megatron(tmp_path, [[[1, 2]], [list(range(100))], [[3]]])
    read = read_all(make_job(path=path, max_record_bytes=100))
    assert (read.ids, [(b.position, b.reason[:8]) for b in read.bad]) == ([[1, 2], [3]], [(1, "too long")])
    with pytest.raises(TokenIdError, match="document 1: id 50"):
        read_all(make_job(path=path), rows=50)
    index, data = (tmp_path / "m.idx").read_bytes(), (tmp_path / "m.bin").read_bytes()
    for name, content in (
        ("m.idx", index[:-4]),
        ("m.idx", b"x" + index[1:]),
        ("m.idx", index[:20]),
        ("m.bin", data[:-2]),
    ):
        (tmp_path / "m.idx").write_bytes(index)
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadFileError, match=r"m\.(idx|bin)"):
            read_all(make_job(path=path))


def flat(folder: Path, ids: list[int], kind: str) -> str:
    path = folder / f"x.{kind}"
    if kind == "npy":
        np.save(path, np.array(ids, np.uint16))
    else:
        path.write_bytes(np.array(ids, "<u2").tobytes())
    return str(path)


@SMALL
@given(
    ids=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    split=st.integers(1, 150),
    kind=st.sampled_from(["bin", "npy"]),
    keys=st.sampled_from([{"document_end": 0}, {"sequence_length": 3}, {"sequence_length": 100}]),
)
def test_flat_files_at_any_split(
    tmp_path: Path, ids: list[int], split: int, kind: str, keys: dict[str, int]
) -> None:
    expected: list[list[int]] = [[]]
    for i in ids:
        expected[-1].append(i)
        if i == 0 if "document_end" in keys else len(expected[-1]) == keys["sequence_length"]:
            expected.append([])
    expected = [d for d in expected if d]
    dtype = {"dtype": "uint16"} if kind == "bin" else {}
    read = read_all(make_job(path=flat(tmp_path, ids, kind), **keys, **dtype), split_bytes=split)
    assert read.ids == expected


def test_a_flat_file_larger_than_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coverage_job.corpus.token_files.READ_BYTES", 14)
    ids = [1, 1, 0, 0, 2, *[3] * 30, 0, 4, 4, 0, 5]
    for split in (1000, 20, 9):
        read = read_all(
            make_job(path=flat(tmp_path, ids, "bin"), dtype="uint16", document_end=0), split_bytes=split
        )
        assert read.ids == [[1, 1, 0], [0], [2, *[3] * 30, 0], [4, 4, 0], [5]]
        read = read_all(
            make_job(path=flat(tmp_path, ids, "bin"), dtype="uint16", document_end=0, max_record_bytes=40),
            split_bytes=split,
        )
        assert read.ids == [[1, 1, 0], [0], [4, 4, 0], [5]]
        assert [(b.position, b.reason[:8]) for b in read.bad] == [(4, "too long")]


def test_rows_of_a_two_dimensional_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12).reshape(3, 4))
    for split in (1000, 40):
        read = read_all(make_job(path=str(tmp_path / "x.npy")), split_bytes=split)
        assert read.ids == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_flat_files_that_do_not_say_enough(tmp_path: Path) -> None:
    path = flat(tmp_path, [1, 2, 3], "bin")
    with pytest.raises(CorpusError, match="set `dtype:`"):
        read_all(make_job(path=path, document_end=0))
    with pytest.raises(CorpusError, match="`document_end: ID` or `sequence_length: N`"):
        read_all(make_job(path=path, dtype="uint16"))
    with pytest.raises(CorpusError, match="`document_end: ID`"):
        read_all(make_job(path=flat(tmp_path, [1], "npy")))
    with pytest.raises(BadFileError, match=r"x\.bin: its size is no multiple of 4"):
        read_all(make_job(path=path, dtype="uint32", document_end=0))
    (tmp_path / "x.npy").write_bytes(Path(flat(tmp_path, [1] * 50, "npy")).read_bytes()[:-1])
    with pytest.raises(BadFileError, match=r"x\.npy: ends early"):
        read_all(make_job(path=str(tmp_path / "x.npy"), document_end=0))
    with pytest.raises(TokenIdError, match="token 2: id 3"):
        read_all(make_job(path=path, dtype="uint16", document_end=2), rows=3)
