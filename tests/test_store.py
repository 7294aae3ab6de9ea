"""A second run counts only what is new or changed, and its tables equal a full count's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from coverage_job.config import parse_job
from coverage_job.corpus.reader import PieceReader
from coverage_job.errors import CorpusError
from coverage_job.pipeline.run import run as run_job
from coverage_job.progress import Steps
from coverage_job.storage import Run
from tests.planted import write_corpora, write_lines

TABLES = (
    "histogram.parquet",
    "coverage.parquet",
    "manifest.parquet",
    "summary.parquet",
    "bad_records.parquet",
)
PAGES = [{"text": f"alpha beta {'gamma ' * (i % 5)}", "lang": "en", "source": "news"} for i in range(60)]


class Bench:
    """A folder with a job whose pre-training corpus has several files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = write_corpora(folder)
        self.tree["corpora"][0]["path"] = "web/*.jsonl"
        for name in ("a", "b", "c"):
            self.write(name, PAGES)
        self.runs = 0

    def write(self, name: str, records: list[Any]) -> Path:
        path = self.folder / "web" / f"{name}.jsonl"
        write_lines(path, records)
        return path

    def run(self, *overrides: str, stored: bool = True) -> Run:
        self.runs += 1
        tree = {**self.tree, "store": str(self.folder / "store")} if stored else self.tree
        job = parse_job(tree, base=self.folder, overrides=overrides)
        output = self.folder / f"run{self.runs}"
        return Run(run_job(job, "local", str(output), Steps(quiet=True)).path)

    def assert_equal_to_a_full_count(self, run: Run) -> None:
        full = self.run(stored=False)
        for name in TABLES:
            assert run.table(name).equals(full.table(name)), name
        for mine, theirs in zip(run.info["corpora"], full.info["corpora"], strict=True):
            for key in set(theirs) - {"files_counted", "files_reused", "seconds"}:
                assert mine[key] == theirs[key], key


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that are read, as they are."""
    names: list[str] = []
    batches = PieceReader.batches

    def noted(self: PieceReader) -> Any:
        names.append(os.path.basename(self.piece.path))
        return batches(self)

    monkeypatch.setattr(PieceReader, "batches", noted)
    return names


def files(run: Run) -> tuple[int, int]:
    web = run.info["corpora"][0]
    return web["files_counted"], web["files_reused"]


def test_a_second_run_reads_no_document_again(bench: Bench, opened: list[str]) -> None:
    first = bench.run()
    assert files(first) == (3, 0)
    opened.clear()
    second = bench.run()
    assert opened == []
    assert files(second) == (0, 3)
    bench.assert_equal_to_a_full_count(second)


def test_of_new_and_changed_files_exactly_those_are_read(bench: Bench, opened: list[str]) -> None:
    bench.run()
    opened.clear()
    bench.write("d", PAGES[:7])
    added = bench.run()
    assert opened == ["d.jsonl"]
    bench.assert_equal_to_a_full_count(added)
    opened.clear()
    bench.write("b", PAGES[:11])
    changed = bench.run()
    assert opened == ["b.jsonl"]
    bench.assert_equal_to_a_full_count(changed)


def test_a_removed_file_is_no_longer_counted(bench: Bench, opened: list[str]) -> None:
    bench.run()
    (bench.folder / "web" / "c.jsonl").unlink()
    opened.clear()
    run = bench.run()
    assert opened == []
    bench.assert_equal_to_a_full_count(run)


@pytest.mark.parametrize("sizes", [("1MiB", "300"), ("300", "1MiB"), ("300", "700")])
def test_other_splits_find_what_is_kept(bench: Bench, opened: list[str], sizes: tuple[str, str]) -> None:
    bench.run(f"engine.split_bytes={sizes[0]}")
    opened.clear()
    run = bench.run(f"engine.split_bytes={sizes[1]}")
    assert opened == []
    bench.assert_equal_to_a_full_count(run)


@pytest.mark.parametrize(
    "override", ["corpora.web.group_by=lang", "max_record_bytes=1MiB", "corpora.web.add_eos=<end>"]
)
def test_an_option_that_changes_counts_is_counted_anew(
    bench: Bench, opened: list[str], override: str
) -> None:
    bench.run()
    opened.clear()
    bench.run(override)
    assert {"a.jsonl", "b.jsonl", "c.jsonl"} <= set(opened)


def test_options_that_change_no_count_reuse_it(bench: Bench, opened: list[str]) -> None:
    bench.run()
    opened.clear()
    bench.run("coverage.minimum=7", "corpora.web.mixed_in=0.25", "on_bad_record=skip")
    assert opened == []


def test_an_interrupted_run_goes_on_from_its_parts(
    bench: Bench, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: PieceReader) -> Any:
        # The smallest split, and so the last.
        if self.piece.path.endswith("tasks.jsonl"):
            raise CorpusError("the driver is killed here")
        return batches(self)

    batches = PieceReader.batches
    with monkeypatch.context() as patch:
        patch.setattr(PieceReader, "batches", stop)
        with pytest.raises(CorpusError, match="killed here"):
            bench.run("engine.split_bytes=2000")
    opened.clear()
    run = bench.run("engine.split_bytes=2000")
    # Of each file the last 80 bytes are a split smaller still; the two before it are not read again.
    assert sorted(opened) == ["a.jsonl", "b.jsonl", "c.jsonl", "tasks.jsonl"]
    bench.assert_equal_to_a_full_count(run)


@pytest.mark.parametrize("kind", ["parts", "snapshots"])
def test_a_torn_file_of_the_store_counts_as_missing(bench: Bench, kind: str) -> None:
    bench.run()
    for path in (bench.folder / "store").glob(f"*/{kind}/*.parquet"):
        path.write_bytes(path.read_bytes()[:-20])
    bench.assert_equal_to_a_full_count(bench.run())


def test_a_bad_file_is_kept_out_of_the_store(bench: Bench) -> None:
    import gzip

    data = gzip.compress((bench.folder / "web" / "a.jsonl").read_bytes())
    (bench.folder / "web" / "cut.jsonl.gz").write_bytes(data[:-30])
    bench.tree["corpora"][0].update(path=["web/*.jsonl", "web/*.gz"], on_bad_file="skip")
    first = bench.run()
    assert first.info["corpora"][0]["files_missing"] == [str(bench.folder / "web" / "cut.jsonl.gz")]
    second = bench.run()
    assert second.info["corpora"][0]["files_missing"] == [str(bench.folder / "web" / "cut.jsonl.gz")]
    bench.assert_equal_to_a_full_count(second)
    (bench.folder / "web" / "cut.jsonl.gz").write_bytes(data)
    bench.assert_equal_to_a_full_count(bench.run())


def test_keys_see_what_a_size_does_not(bench: Bench, opened: list[str]) -> None:
    path = bench.folder / "web" / "a.jsonl"
    bench.run()
    times = os.stat(path)
    path.write_bytes(path.read_bytes().replace(b"beta", b"rare"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    opened.clear()
    run = bench.run()
    assert opened == ["a.jsonl"]
    bench.assert_equal_to_a_full_count(run)


def test_the_store_holds_no_text_of_the_corpora_but_what_is_reported(bench: Bench) -> None:
    bench.write("secret", [{"text": "hunter2 is a password", "lang": "en", "source": "news"}])
    bench.run()
    for path in (bench.folder / "store").rglob("*.parquet"):
        assert b"hunter2" not in path.read_bytes()
    assert json.loads((bench.folder / "run1" / "run.json").read_text())
