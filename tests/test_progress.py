from __future__ import annotations

import io

from rich.console import Console

from coverage_job.progress import Steps


def steps(**options: bool) -> tuple[Steps, io.StringIO]:
    out = io.StringIO()
    made = Steps()
    made.console = Console(file=out, width=80, highlight=False, **options)
    return made, out


def test_a_step_shows_itself_while_it_runs_on_a_terminal() -> None:
    made, out = steps(force_terminal=True)
    with made.step("a", "think [of it]"):
        assert "think [of it]" in out.getvalue()
    assert "think [of it]: 0.0 s" in out.getvalue()


def test_steps_within_a_step_do_not_move_beside_it() -> None:
    made, out = steps(force_terminal=True)
    with made.step("outer"), made.step("inner", total=2, unit="parts") as inner:
        inner.advance()
        assert "parts" not in out.getvalue()
    with made.step("later", total=2, unit="parts"):
        assert "parts" in out.getvalue()
    assert list(made.seconds) == ["inner", "outer", "later"]


def test_elsewhere_a_step_is_one_line_however_long() -> None:
    made, out = steps(force_terminal=False)
    with made.step("a", "x" * 100):
        assert out.getvalue() == ""
    assert out.getvalue() == "x" * 100 + ": 0.0 s\n"
