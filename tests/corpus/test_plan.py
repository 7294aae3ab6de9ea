"""Files and splits are planned from names and sizes alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from coverage_job.config import Corpus
from coverage_job.corpus.plan import FileInfo, Split, corpus_format, list_files, make_splits
from coverage_job.errors import CorpusError
from coverage_job.schemas import Stage
from tests.corpus.reading import make_job, read_all

LINE = b'{"text": "x"}\n'


def names(path: str | list[str]) -> list[str]:
    return [os.path.basename(f.path) for f in list_files(make_job(path=path).corpora[0])]


@pytest.fixture
def folder(write: Callable[..., str], tmp_path: Path) -> str:
    for name in ("b.jsonl", "a.jsonl", "sub/c.jsonl", "_SUCCESS", ".a.jsonl.crc", "_temporary/d.jsonl",
                 "lang=en/e.jsonl", "_day=1/f.jsonl"):  # fmt: skip
        write(name, LINE)
    return str(tmp_path)


def test_folders_globs_and_lists(folder: str) -> None:
    assert sorted(names(folder)) == ["a.jsonl", "b.jsonl", "c.jsonl", "e.jsonl", "f.jsonl"]
    assert names(f"{folder}/*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert names(f"{folder}/**/*.jsonl") == ["f.jsonl", "a.jsonl", "b.jsonl", "e.jsonl", "c.jsonl"]
    assert names([f"{folder}/b.jsonl", f"{folder}/*.jsonl"]) == ["a.jsonl", "b.jsonl"]
    assert names(f"{folder}/_temporary/*.jsonl") == ["d.jsonl"]


def test_a_name_with_glob_signs_is_a_name(write: Callable[..., str]) -> None:
    assert names(write("a[1].jsonl", LINE)) == ["a[1].jsonl"]


@pytest.mark.parametrize("path", ["nothing.jsonl", "x/*.jsonl", "empty"])
def test_no_match_names_the_path(folder: str, path: str) -> None:
    os.makedirs(f"{folder}/empty")
    with pytest.raises(CorpusError, match=r"corpus c: path .*(nothing|x/\*|empty)"):
        names([f"{folder}/a.jsonl", f"{folder}/{path}"])


def test_versions_change_with_the_file(folder: str) -> None:
    before = list_files(make_job(path=f"{folder}/a.jsonl").corpora[0])
    os.utime(f"{folder}/a.jsonl", ns=(1, 1_700_000_000_123_456_789))
    after = list_files(make_job(path=f"{folder}/a.jsonl").corpora[0])
    assert before[0].size == after[0].size == len(LINE)
    assert after[0].version == "1700000000123456789" != before[0].version


def test_remote_files_keep_their_protocol() -> None:
    with fsspec.open("memory://corpus-test/a.jsonl", "wb") as file:
        file.write(LINE * 3)
    read = read_all(make_job(path="memory://corpus-test/*.jsonl"), split_bytes=20)
    assert read.files[0].path == "memory:///corpus-test/a.jsonl"
    assert read.texts == ["x"] * 3


def test_a_protocol_nobody_knows() -> None:
    with pytest.raises(CorpusError, match="nope://"):
        names("nope://a/b.jsonl")


def test_formats_by_name(folder: str, write: Callable[..., str]) -> None:
    job = make_job(path=folder)
    write("z.md", b"")
    with pytest.raises(CorpusError, match=r"z\.md tells no format; set `format:`"):
        corpus_format(job.corpora[0], list_files(job.corpora[0]))
    os.rename(f"{folder}/z.md", f"{folder}/z.csv")
    with pytest.raises(CorpusError, match=r"two formats, jsonl .* and csv"):
        corpus_format(job.corpora[0], list_files(job.corpora[0]))
    with pytest.raises(CorpusError, match="decompress"):
        read_all(make_job(path=write("y/a.parquet.gz", b"PAR1")))


def test_an_empty_file_is_a_file_of_no_records(write: Callable[..., str], tmp_path: Path) -> None:
    write("a.jsonl", b"")
    write("b.jsonl", LINE)
    read = read_all(make_job(path=str(tmp_path)))
    assert (len(read.stats), read.texts) == (2, ["x"])
    os.remove(tmp_path / "b.jsonl")
    with pytest.raises(CorpusError, match="no usable record"):
        read_all(make_job(path=str(tmp_path)))


class _Jsonl:
    format = "jsonl"


def plan(sizes: dict[str, int], split_bytes: int, kind: str = "jsonl") -> list[Split]:
    source = _Jsonl()
    source.format = kind
    files = [FileInfo(name, size, "") for name, size in sizes.items()]
    return make_splits("c", files, source, split_bytes)  # type: ignore[arg-type]


def test_large_files_are_cut_and_small_ones_packed() -> None:
    splits = plan({"a": 250, "b": 10, "c": 30, "d": 100, "e.gz": 300}, 100)
    shown = [[(p.path, p.start, p.end) for p in s.pieces] for s in splits]
    assert shown == [
        [("a", 0, 100)],
        [("a", 100, 200)],
        [("a", 200, 250), ("b", 0, 10), ("c", 0, 30)],
        [("d", 0, 100)],
        [("e.gz", 0, 300)],
    ]
    assert [s.index for s in splits] == list(range(5))
    assert sum(s.bytes for s in splits) == 690
    assert Split.from_json(splits[2].to_json()) == splits[2]


def test_a_split_holds_a_bounded_number_of_files() -> None:
    splits = plan({f"f{i}": 1 for i in range(1100)}, 1 << 20)
    assert [len(s.pieces) for s in splits] == [512, 512, 76]


@pytest.mark.parametrize("kind", ["json", "csv", "arrow"])
def test_formats_read_in_one_go_are_not_cut(kind: str) -> None:
    assert [len(s.pieces) for s in plan({"a": 1000}, 10, kind)] == [1]


def test_megatron_pairs_are_listed_once(write: Callable[..., str], tmp_path: Path) -> None:
    write("m.bin", b"")
    write("m.idx", b"")
    corpus = Corpus(name="c", stage=Stage.PRETRAINING, path=str(tmp_path))
    assert [os.path.basename(f.path) for f in list_files(corpus)] == ["m.bin"]
    assert corpus_format(corpus, list_files(corpus)) == "megatron"
    only_index = corpus.model_copy(update={"path": f"{tmp_path}/m.idx"})
    assert [os.path.basename(f.path) for f in list_files(only_index)] == ["m.bin"]
