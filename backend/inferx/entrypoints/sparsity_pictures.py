"""The sparsity commands' pictures: heat maps of S, and the curve of perplexity."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from inferx.errors import SparsityError
from inferx.model.activations import PROJECTIONS
from inferx.outputs import write_picture
from inferx.sparse.evaluating import Evaluation, Point
from inferx.sparse.measuring import Measurement

_KINDS = (".png", ".svg")
_DPI = 150


def check_picture(path: Path) -> None:
    """Raises SparsityError where no such picture can be drawn."""
    if path.suffix not in _KINDS:
        raise SparsityError(f"--picture is {path.name!r}, and ends in {' or '.join(_KINDS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise SparsityError(
            "--picture needs matplotlib, which is not installed: pip install -e '.[report]'"
        )


def draw_measurement(found: Measurement, path: Path) -> None:
    """A map for each threshold: a row a layer, a column a product, S as color and number."""
    thresholds = list(found.sites[0].sparsity)
    width = len(PROJECTIONS)
    num_layers = len(found.sites) // width
    figure = _figure(3.2 * len(thresholds) + 1.2, 0.26 * num_layers + 1.6)
    for panel, threshold in zip(_panels(figure, len(thresholds)), thresholds, strict=True):
        shares = [site.sparsity[threshold].mean for site in found.sites]
        rows = [
            shares[at : at + len(PROJECTIONS)] for at in range(0, len(shares), len(PROJECTIONS))
        ]
        image = panel.imshow(rows, aspect="auto", vmin=0, vmax=1, cmap="viridis")
        for layer, row in enumerate(rows):
            for column, share in enumerate(row):
                color = "black" if share > 0.6 else "white"
                panel.text(
                    column, layer, f"{share:.2f}", ha="center", va="center", color=color, fontsize=7
                )
        panel.set_xticks(range(len(PROJECTIONS)), PROJECTIONS)
        panel.set_title(f"share of |x| ≤ {threshold}", fontsize=9)
        panel.set_ylabel("layer")
    figure.colorbar(image, ax=figure.axes)
    figure.suptitle(f"{found.model}, {found.num_tokens} tokens", fontsize=10)
    write_picture("--picture", path, figure, dpi=_DPI)


def draw_evaluation(found: Evaluation, path: Path) -> None:
    """A line a way, with its confidence intervals."""
    figure = _figure(7, 4.5)
    [panel] = _panels(figure, 1)
    ways: dict[str, list[Point]] = {}
    for point in found.points:
        ways.setdefault(point.way, []).append(point)
    for way, points in ways.items():
        changes = [100 * point.change.mean for point in points]
        low = [100 * (point.change.mean - point.change.low) for point in points]
        high = [100 * (point.change.high - point.change.mean) for point in points]
        reached = [100 * point.reached for point in points]
        panel.errorbar(reached, changes, yerr=[low, high], label=way, marker="o", capsize=3)
    panel.set_yscale("symlog", linthresh=1)
    panel.grid(alpha=0.3)
    panel.set_xlabel("weights unread, %")
    panel.set_ylabel("perplexity, % more than dense")
    panel.set_title(f"{found.model}, {found.num_tokens} held-out tokens", fontsize=10)
    panel.legend()
    write_picture("--picture", path, figure, dpi=_DPI)


def _figure(width: float, height: float) -> Any:
    """Inches. Without pyplot, which would look for a screen."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _panels(figure: Any, count: int) -> list[Any]:
    return list(figure.subplots(1, count, squeeze=False)[0])
