"""The sparsity commands' tables on standard output."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inferx.model.activations import PROJECTIONS
from inferx.sparse.calibration import Calibration
from inferx.sparse.evaluating import Change, Evaluation
from inferx.sparse.measuring import QUANTILES, Measurement
from inferx.sparse.statistics import Summary

_PIPE_WIDTH = 160  # characters, where there is no terminal to ask


def show_measurement(found: Measurement) -> None:
    columns = ["mean |x|", "deviation", *(f"{100 * q:g}%" for q in QUANTILES)]
    columns += [f"S({threshold})" for threshold in found.sites[0].sparsity]
    table = _table("layer", "product", *columns)
    for site in found.sites:
        table.add_row(
            str(site.layer),
            site.projection,
            f"{site.magnitude.mean:.4g}",
            f"{site.magnitude.deviation:.4g}",
            *(f"{value:.4g}" for value in site.quantiles.values()),
            *map(_share, site.sparsity.values()),
        )
    title = f"{found.model}, {found.dtype}, {found.num_tokens} tokens: |x| of the products' inputs"
    _print(table, title)


def show_calibration(found: Calibration) -> None:
    table = _table("layer", "product", "wanted", "masked", "energy masked", "threshold")
    for site in found.sites:
        table.add_row(
            str(site.layer),
            site.projection,
            f"{site.target:.3f}",
            _share(site.masked_share),
            _share(site.masked_energy),
            f"{site.threshold:.4g}",
        )
    _print(table, f"{found.model.name}, {found.dtype}, scores: {found.scores}")
    quality = found.quality
    _console().print(
        f"{found.reached:.1%} of {_weights(found)} unread (target {found.target:.0%}); "
        f"perplexity on {quality.num_tokens} held-out tokens {quality.perplexity_dense:.3f} -> "
        f"{quality.perplexity_sparse:.3f} ({quality.growth:+.2%}, standard error "
        f"{quality.standard_error:.2%})"
    )


def show_evaluation(found: Evaluation) -> None:
    table = _table(
        "way", "target", "reached", "perplexity", "from dense", "from uniform", "from top-k"
    )
    for point in found.points:
        table.add_row(
            point.way,
            f"{point.target:.0%}",
            f"{point.reached:.1%}",
            f"{point.perplexity:.3f}",
            _change(point.change),
            _change(point.from_uniform),
            _change(point.from_topk),
        )
    title = (
        f"{found.model}, {found.dtype}, {found.num_tokens} held-out tokens: dense perplexity "
        f"{found.perplexity:.3f}; in brackets 95% intervals"
    )
    _print(table, title)


def _weights(found: Calibration) -> str:
    if len(found.projections) == len(PROJECTIONS):
        return "the layers' weights"
    return f"the weights of {' and '.join(found.projections)}"


def _share(summary: Summary) -> str:
    return f"{summary.mean:.3f} ± {summary.deviation:.3f}"


def _change(change: Change | None) -> str:
    if change is None:
        return ""
    return f"{change.mean:+.2%} ({change.low:+.2%}, {change.high:+.2%})"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        is_text = name in ("product", "way")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    return table


def _print(table: Table, title: str) -> None:
    console = _console()
    console.print(escape(title), soft_wrap=True)
    console.print(table)


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
