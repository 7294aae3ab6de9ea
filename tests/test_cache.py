from pathlib import Path

import pytest

from coverage_job.cache import cache_folder


def test_the_variable_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVERAGE_JOB_CACHE", str(tmp_path / "a" / "b"))
    assert cache_folder() == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()


def test_a_folder_that_cannot_be_written_to_falls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("COVERAGE_JOB_CACHE", str(blocked / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = cache_folder()
    assert found.parent == tmp_path
    assert found.is_dir()
