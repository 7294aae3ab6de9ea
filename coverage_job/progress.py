"""Progress of long work: a bar on a terminal, a log line now and then elsewhere. All of it on stderr."""

from __future__ import annotations

import re
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")

# Seconds between two lines where there is no terminal.
_EVERY = 15.0


def shown(text: str) -> str:
    """A text for the terminal: names from files and records cannot act on it.

    >>> shown("a\x1b[31m b")
    'a<1B>[31m b'
    """
    return _CONTROL.sub(lambda match: f"<{ord(match[0]):02X}>", text)


class Steps:
    """Says what step a command is at, and how long each took (`seconds`)."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self.seconds: dict[str, float] = {}
        self.moving = False

    def say(self, text: str) -> None:
        # Not folded: a path that is broken over two lines cannot be copied.
        self.console.print(shown(text), markup=False, soft_wrap=True)

    def step(self, name: str, text: str | None = None, total: int = 0, unit: str = "") -> Step:
        return Step(self, name, text or name, total, unit)


class Step:
    """One timed step; on a terminal it moves, with a `total` it shows how far it is."""

    def __init__(self, steps: Steps, name: str, text: str, total: int, unit: str) -> None:
        self._steps, self._name, self._text, self._total, self._unit = steps, name, text, total, unit
        self._bar: Progress | None = None
        self._done = 0

    def __enter__(self) -> Step:
        self._start = self._said = time.monotonic()
        console = self._steps.console
        # One at a time: two that move would write over each other.
        if console.is_terminal and not console.quiet and not self._steps.moving:
            how_far = (BarColumn(), MofNCompleteColumn(), TextColumn(self._unit)) if self._total else ()
            first = () if self._total else (SpinnerColumn(),)
            self._bar = Progress(
                *first,
                TextColumn("{task.description}", markup=False),
                *how_far,
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task(self._text, total=self._total or None)
            self._bar.start()
            self._steps.moving = True
        return self

    def advance(self) -> None:
        """One more of the total is done."""
        self.reach(self._done + 1)

    def reach(self, done: int) -> None:
        """So many of the total are done."""
        self._done = done
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
        elif time.monotonic() - self._said > _EVERY:
            self._said = time.monotonic()
            passed = self._said - self._start
            self._steps.say(f"{self._text}: {self._done} of {self._total} {self._unit}, {passed:.0f} s")
            sys.stderr.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._steps.moving = False
        self._steps.seconds[self._name] = round(time.monotonic() - self._start, 3)
        if kind is None:
            self._steps.say(f"{self._text}: {self._steps.seconds[self._name]:.1f} s")
