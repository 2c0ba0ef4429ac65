"""Draws the curves of a memory report."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from inferx.errors import ConfigError
from inferx.observe.memory_curve import Point
from inferx.observe.stages import Stage
from inferx.outputs import check_writable, write_picture

_MIB = 1 << 20
_FORMATS = (".png", ".svg")
_NARROW = 0.03  # of the whole: a stage that is shorter gets no name


def check_pictures(paths: Sequence[Path]) -> None:
    """Raises ConfigError or OutputError for what could not be drawn, before there is anything."""
    for path in paths:
        if path.suffix not in _FORMATS:
            raise ConfigError(f"{path.name}: a picture's name ends in {' or '.join(_FORMATS)}")
        check_writable("--picture", path)
    if paths and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "pictures need matplotlib, which is not installed: "
            "pip install 'inferx[report]' or leave --picture out"
        )


def draw(
    points: Sequence[Point], stages: Sequence[Stage], title: str, paths: Sequence[Path]
) -> None:
    """Resident and peak over time, the stages as bands. Raises OutputError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    begin = points[0].at
    seconds = [point.at - begin for point in points]
    resident = [point.memory.resident / _MIB for point in points]
    peak = list(accumulate((point.memory.peak / _MIB for point in points), max))
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, stage in enumerate(stages):
        left, right = stage.begin - begin, stage.end - begin
        axes.axvspan(left, right, color="#4c78a8", alpha=0.05 + 0.09 * (number % 2), linewidth=0)
        if right - left > _NARROW * seconds[-1]:
            axes.text(
                (left + right) / 2,
                0.98,
                stage.name,
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="top",
                fontsize=8,
                rotation=90,
            )
    axes.plot(seconds, peak, color="#d62728", linewidth=1, linestyle="--", label="peak")
    axes.plot(seconds, resident, color="#1f4e79", linewidth=1.6, label="resident")
    axes.fill_between(seconds, resident, color="#1f4e79", alpha=0.12, linewidth=0)
    axes.annotate(
        f"{peak[-1]:,.0f} MiB", (seconds[-1], peak[-1]), (-4, 4), textcoords="offset points",
        ha="right", color="#d62728",
    )  # fmt: skip
    axes.annotate(
        f"{resident[-1]:,.0f} MiB", (seconds[-1], resident[-1]), (-4, -14),
        textcoords="offset points", ha="right", color="#1f4e79",
    )  # fmt: skip
    axes.set(title=title, xlabel="seconds", ylabel="MiB", xlim=(0, seconds[-1]))
    axes.set_ylim(0, 1.3 * peak[-1])
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    for path in paths:
        write_picture("--picture", path, figure, dpi=150)
