"""Charts as inline SVG: styled by the page (light, dark, print), no script, readable without colour.

Written by hand and not by a chart library because a page that opens anywhere under a strict content
policy then carries no runtime, and the report needs no further package. Styles are classes only: an
inline style would be refused by the page's policy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from markupsafe import Markup

WIDTH, HEIGHT = 460, 300
# Borders of the drawing area.
LEFT, RIGHT, TOP, BASE = 52, WIDTH - 20, 30, HEIGHT - 42


def short(number: float) -> str:
    """A number for an axis.

    >>> [short(n) for n in (0, 20, 1500, 10_000, 2_000_000, 0.5)]
    ['0', '20', '1.5k', '10k', '2M', '0.5']
    """
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit:
            return f"{number / limit:g}{unit}"
    return f"{number:g}"


class Axis(Protocol):
    """Numbers to a place in 0 .. 1, and the numbers to write beside it."""

    def at(self, value: float) -> float: ...

    def ticks(self) -> list[float]: ...


@dataclass(frozen=True)
class Log:
    """A logarithmic axis from `low` to `high`, both above 0."""

    low: float
    high: float

    def at(self, value: float) -> float:
        return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        step = max(1, math.ceil((last - first + 1) / 7))
        return [10.0**k for k in range(first, last + 1, step)]


@dataclass(frozen=True)
class Linear:
    """An axis of equal steps from `low` to `high`."""

    low: float
    high: float

    def at(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        raw = (self.high - self.low) / 4
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw)
        first = math.ceil(self.low / step - 1e-9)
        return [step * k for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Series:
    """A line. style: a class of the page's sheet for colour and dash. titles: of marks on the points."""

    style: str
    points: Sequence[tuple[float, float]]
    titles: Sequence[str] = ()


@dataclass
class Plot:
    """A drawing area with two axes, to which marks are added in order.

    gap: room between the borders and the scales' starts, where a logarithmic axis keeps its zeros.
    """

    title: str
    x: Axis
    y: Axis
    x_label: str
    y_label: str
    gap: float = 0
    parts: list[Markup] = field(default_factory=list)

    def px(self, value: float) -> float:
        start = LEFT + self.gap
        return start + self.x.at(value) * (RIGHT - start)

    def py(self, value: float) -> float:
        start = BASE - self.gap
        return start - self.y.at(value) * (start - TOP)

    def rect(self, x: tuple[float, float], y: tuple[float, float], style: str, title: str = "") -> None:
        """A rectangle between two values of each axis."""
        self.box(self.px(x[0]), self.py(y[1]), self.px(x[1]), self.py(y[0]), style, title)

    def box(
        self, x0: float, y0: float, x1: float, y1: float, style: str, title: str = "", opacity: float = 1
    ) -> None:
        """A rectangle between two corners, in units of the drawing."""
        self.parts.append(
            Markup(
                '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" '
                'fill-opacity="{:.2f}">{}</rect>'
            ).format(style, x0, y0, max(0.0, x1 - x0), max(0.0, y1 - y0), opacity, _title(title))
        )

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        self.parts.append(
            Markup('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
                style, x, y, anchor, text
            )
        )

    def horizontal(self, value: float, style: str) -> None:
        y = self.py(value)
        self.parts.append(
            Markup('<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>').format(
                style, LEFT, RIGHT, y, y
            )
        )

    def line(self, series: Series) -> None:
        """A line through the points; with a mark on each where they have titles."""
        places = [(self.px(x), self.py(y)) for x, y in series.points]
        path = " ".join(f"{'M' if i == 0 else 'L'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(places))
        self.parts.append(Markup('<path class="line {}" d="{}"/>').format(series.style, path))
        for (x, y), title in zip(places, series.titles, strict=False):
            self.parts.append(
                Markup('<circle class="mark {}" cx="{:.1f}" cy="{:.1f}" r="3.5">{}</circle>').format(
                    series.style, x, y, _title(title)
                )
            )

    def axes(self, x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[tuple[float, str]]) -> None:
        """Grid lines and numbers; ticks are (place in the drawing, text)."""
        for y, text in y_ticks:
            self.parts.append(
                Markup('<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>').format(
                    LEFT, RIGHT, y, y
                )
            )
            self.text(LEFT - 6, y + 4, text, "tick", "end")
        for x, text in x_ticks:
            self.text(x, BASE + 16, text, "tick", "middle")
        self.parts.append(
            Markup('<line class="axis" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>').format(
                LEFT, RIGHT, BASE, BASE
            )
        )
        self.text((LEFT + RIGHT) / 2, HEIGHT - 6, self.x_label, "label", "middle")
        middle = (BASE + TOP) / 2
        self.parts.append(
            Markup(
                '<text class="label" text-anchor="middle" transform="rotate(-90 12 {:.1f})" '
                'x="12" y="{:.1f}">{}</text>'
            ).format(middle, middle, self.y_label)
        )

    def value_axes(self) -> None:
        """Axes whose numbers are those of the two scales."""
        self.axes(
            [(self.px(v), short(v)) for v in self.x.ticks()], [(self.py(v), short(v)) for v in self.y.ticks()]
        )

    def svg(self) -> Markup:
        return Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
            WIDTH, HEIGHT, self.title, Markup("").join(self.parts)
        )


def _title(text: str) -> Markup:
    return Markup("<title>{}</title>").format(text) if text else Markup("")


def stacked_bar(parts: Sequence[tuple[str, float]], title: str) -> Markup:
    """A bar of a table's cell: (class, share of its width) from the left."""
    return Markup('<svg class="bar" role="img" aria-label="{}">{}</svg>').format(
        title, Markup("").join(_bar_parts(parts))
    )


def _bar_parts(parts: Sequence[tuple[str, float]]) -> Iterator[Markup]:
    start = 0.0
    for style, share in parts:
        if share > 0:
            yield Markup('<rect class="{}" x="{:.2f}%" width="{:.2f}%" height="100%"/>').format(
                style, 100 * start, 100 * share
            )
        start += share
