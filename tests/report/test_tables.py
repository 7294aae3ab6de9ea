from __future__ import annotations

import pytest

from coverage_job.report.tables import grid, show


def test_a_title_is_one_line_however_narrow_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    title = "The 10 most frequent tokens that post-training never asks for"
    show(grid(title, ["a", "b", "c"], [["x", "1", "y"], ["xyz", "100", "yyy"]], "lrl"))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [title, "a      b  c", "x      1  y", "xyz  100  yyy"]
