"""Line charts as SVG text: axes with round numbers, a legend, nothing from outside."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 56, 48
COLORS = ("#2563a8", "#c2571a", "#2e7d4f", "#8a3fa0", "#a8323e", "#5d6670", "#0f7f8c", "#8c6d0f")
_INK, _QUIET, _GRID = "#1d2329", "#5d6670", "#e3e6ea"
_FONT = "font-family='system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif'"


@dataclass(frozen=True)
class Line:
    """`points`: (x, y) in the chart's units. `steps`: a value holds until the next one."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    steps: bool = False
    marks: bool = False
    color: int | None = None  # index into COLORS; the line's place if not given


@dataclass(frozen=True)
class Chart:
    title: str
    x: str  # what the axis shows, with its unit
    y: str
    lines: Sequence[Line]
    log_x: bool = False
    top: float | None = None  # the largest y; from the lines if not given

    def svg(self) -> str:
        return "\n".join(
            [
                f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' "
                f"width='{WIDTH}' height='{HEIGHT}' role='img' {_FONT}>",
                f"<title>{escape(self.title)}</title>",
                f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#ffffff'/>",
                f"<text x='{_LEFT}' y='20' font-size='14' font-weight='600' fill='{_INK}'>"
                f"{escape(self.title)}</text>",
                *self._legend(),
                *self._axes(),
                *(self._line(index, line) for index, line in enumerate(self.lines)),
                "</svg>",
            ]
        )

    def _legend(self) -> Iterator[str]:
        x = float(_LEFT)
        for index, line in enumerate(self.lines):
            dash = " stroke-dasharray='5 3'" if line.dashed else ""
            yield (
                f"<line x1='{x:.0f}' y1='37' x2='{x + 18:.0f}' y2='37' "
                f"stroke='{_color(index, line)}' stroke-width='2'{dash}/>"
            )
            yield (
                f"<text x='{x + 24:.0f}' y='41' font-size='12' fill='{_INK}'>"
                f"{escape(line.name)}</text>"
            )
            x += 24 + 6.6 * len(line.name) + 20

    def _axes(self) -> Iterator[str]:
        low, high, top = self._bounds()
        for value in _ticks(0.0, top):
            y = self._y(value)
            yield (
                f"<line x1='{_LEFT}' y1='{y:.1f}' x2='{WIDTH - _RIGHT}' y2='{y:.1f}' "
                f"stroke='{_GRID}'/>"
            )
            yield (
                f"<text x='{_LEFT - 8}' y='{y + 4:.1f}' font-size='11' text-anchor='end' "
                f"fill='{_QUIET}'>{_number(value)}</text>"
            )
        for value in _log_ticks(low, high) if self.log_x else _ticks(low, high):
            x = self._x(value)
            yield (
                f"<text x='{x:.1f}' y='{HEIGHT - _BOTTOM + 18}' font-size='11' "
                f"text-anchor='middle' fill='{_QUIET}'>{_number(value)}</text>"
            )
        yield (
            f"<text x='{(_LEFT + WIDTH - _RIGHT) / 2:.0f}' y='{HEIGHT - 10}' font-size='12' "
            f"text-anchor='middle' fill='{_QUIET}'>{escape(self.x)}</text>"
        )
        middle = (_TOP + HEIGHT - _BOTTOM) / 2
        yield (
            f"<text x='16' y='{middle:.0f}' font-size='12' text-anchor='middle' "
            f"fill='{_QUIET}' transform='rotate(-90 16 {middle:.0f})'>{escape(self.y)}</text>"
        )

    def _line(self, index: int, line: Line) -> str:
        color = _color(index, line)
        points = [(self._x(x), self._y(y)) for x, y in line.points]
        if line.steps:
            points = [
                corner
                for (x, y), (after, _) in zip(points, [*points[1:], points[-1:][0]], strict=True)
                for corner in ((x, y), (after, y))
            ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = " stroke-dasharray='5 3'" if line.dashed else ""
        drawn = f"<polyline points='{path}' fill='none' stroke='{color}' stroke-width='2'{dash}/>"
        if line.marks:
            drawn += "".join(
                f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{color}'/>" for x, y in points
            )
        return drawn

    def _bounds(self) -> tuple[float, float, float]:
        xs = [x for line in self.lines for x, _ in line.points]
        ys = [y for line in self.lines for _, y in line.points]
        low, high = (min(xs), max(xs)) if xs else (0.0, 1.0)
        if not self.log_x:
            low = min(0.0, low)
        if high <= low:
            high = low * 1.1 if low > 0 else low + 1.0
        top = self.top if self.top is not None else max(ys, default=1.0) * 1.08
        return low, high, top or 1.0

    def _x(self, value: float) -> float:
        low, high, _ = self._bounds()
        if self.log_x:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return _LEFT + (value - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def _y(self, value: float) -> float:
        *_, top = self._bounds()
        return HEIGHT - _BOTTOM - value / top * (HEIGHT - _TOP - _BOTTOM)


def _color(index: int, line: Line) -> str:
    return COLORS[(index if line.color is None else line.color) % len(COLORS)]


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers from `low` to `high`."""
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [count * step for count in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    found = [
        factor * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factor in (1, 2, 5)
    ]
    return [value for value in found if low * 0.999 <= value <= high * 1.001]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
