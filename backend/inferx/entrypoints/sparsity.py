"""inferx sparsity measure | calibrate | evaluate"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from inferx.entrypoints.shell import INTERRUPTED
from inferx.errors import SparsityError
from inferx.outputs import check_writable, write

if TYPE_CHECKING:  # these load torch
    from inferx.entrypoints.sparsity_tools import Loaded

app = typer.Typer(
    no_args_is_help=True,
    help="How sparse a model's activations are, and what leaving them out costs.",
)

Model = Annotated[
    str,
    typer.Argument(
        help="a folder, a .gguf file, a hub id, or package:NAME for one in a Python package",
        show_default=False,
    ),
]
TextFile = Annotated[
    Path | None, typer.Option("--text", help="UTF-8; Python's documentation if not given")
]
Tokens = Annotated[int, typer.Option(min=1, help="tokens to count, at least")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="where the model runs")]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16", "fp8"],
    typer.Option(help="of weights and activations; auto takes what is fast on the device"),
]
Json = Annotated[Path | None, typer.Option("--json", help="a file for all figures")]
Picture = Annotated[Path | None, typer.Option(help="a .png or .svg file")]
ScoresOption = Annotated[
    Literal["magnitude", "weight-aware"],
    typer.Option(help="what channels are ranked by: |x|, or |x| times their weights' norm"),
]


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """Ctrl-C is a way to end a command of minutes: it says what to expect of its files. It may also
    come between two of them."""

    @functools.wraps(command)
    def run(*arguments: object, **options: object) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt:
            typer.echo("inferx: interrupted before the end, when files are written", err=True)
            raise typer.Exit(INTERRUPTED) from None

    return run


@app.command("measure")
@_interruptible
def measure_command(
    model: Model,
    *,
    tau: Annotated[
        list[float] | None,
        typer.Option(help="count |x| up to this; repeatable; 1e-6 and 0.1 if not given"),
    ] = None,
    text: TextFile = None,
    tokens: Tokens = 10_000,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = None,
    picture: Picture = None,
) -> None:
    """Measure the inputs of every layer's products on a text."""
    thresholds = sorted(set(tau or (1e-6, 0.1)))
    if not all(0 <= threshold < float("inf") for threshold in thresholds):
        raise SparsityError("--tau is a magnitude: give a number that is at least 0")
    _check_outputs(json, picture)
    from inferx.entrypoints import sparsity_pictures, sparsity_tables
    from inferx.sparse.measuring import measure

    loaded = _load(model, text, device, dtype)
    texts = loaded.text.whole(tokens)
    with loaded.progress() as progress:
        found = measure(loaded.windowed, loaded.source.label, texts, thresholds, progress)
    sparsity_tables.show_measurement(found)
    _write_json(found, json)
    if picture is not None:
        sparsity_pictures.draw_measurement(found, picture)


@app.command("calibrate")
@_interruptible
def calibrate_command(
    model: Model,
    *,
    target: Annotated[
        float, typer.Option(help="share of the weights to leave unread: 0.25, 0.4 or 0.5")
    ],
    scores: ScoresOption = "magnitude",
    product: Annotated[
        list[str] | None,
        typer.Option(
            help="mask these alone: qkv, o, gate_up, down; repeatable; if not given those that a "
            "GPU computes faster so, or all of a model that has none such"
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="the calibration file; beside the model if not given")
    ] = None,
    text: TextFile = None,
    tokens: Tokens = 10_000,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Find the thresholds that leave a share of the weights unread.

    They are found on the first half of the text, and judged on the second.
    """
    from inferx.entrypoints import sparsity_tables
    from inferx.model.activations import PROJECTIONS
    from inferx.sparse.calibrating import TARGETS, calibrate
    from inferx.sparse.calibration import check_output, default_path, save_calibration
    from inferx.sparse.products import itemsize, worthwhile

    if target not in TARGETS:
        known = ", ".join(map(str, TARGETS))
        raise SparsityError(f"--target is {target:g}, and is one of {known}")
    for wrong in set(product or ()) - set(PROJECTIONS):
        raise SparsityError(f"--product is {wrong!r}, and is one of {', '.join(PROJECTIONS)}")
    if output is not None:
        check_output(output)  # before the model is loaded, which the default is beside
    loaded = _load(model, text, device, dtype)
    if output is None:
        output = default_path(loaded.source, target, scores)
        check_output(output)
    texts, held_out = loaded.text.calibration(tokens), loaded.text.held_out(tokens)
    windowed = loaded.windowed
    projections = [name for name in PROJECTIONS if name in (product or ())]
    with loaded.progress() as progress:
        found = calibrate(
            windowed,
            loaded.source,
            target=target,
            scores=scores,
            projections=projections or worthwhile(windowed.config, itemsize(windowed.model)),
            texts=texts,
            held_out=held_out,
            progress=progress,
        )
    save_calibration(found, output)
    sparsity_tables.show_calibration(found)
    typer.echo(f"wrote {output}")


@app.command("evaluate")
@_interruptible
def evaluate_command(
    model: Model,
    *,
    target: Annotated[
        list[float] | None,
        typer.Option(help="up to 0.65; repeatable; 0.25, 0.4, 0.5 and 0.65 if not given"),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="a calibration file to score beside the others")
    ] = None,
    text: TextFile = None,
    tokens: Tokens = 10_000,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = None,
    picture: Picture = None,
) -> None:
    """Draw perplexity against sparsity, for four ways to choose what is left out.

    Thresholds are found on the first half of the text; the second is scored.
    """
    _check_outputs(json, picture)
    from inferx.entrypoints import sparsity_pictures, sparsity_tables
    from inferx.sparse.calibration import load_calibration
    from inferx.sparse.evaluating import MAX_TARGET, TARGETS, Evaluator

    targets = sorted(set(target or TARGETS))
    for wrong in (target for target in targets if not 0 < target <= MAX_TARGET):
        raise SparsityError(f"--target is {wrong:g}, and is a share: above 0, up to {MAX_TARGET}")
    loaded = _load(model, text, device, dtype)
    given = (
        load_calibration(calibration, loaded.source, loaded.windowed.config)
        if calibration is not None
        else None
    )
    texts, held_out = loaded.text.calibration(tokens), loaded.text.held_out(tokens)
    with loaded.progress() as progress:
        evaluator = Evaluator(loaded.windowed, texts, held_out, progress)
        found = evaluator.curve(loaded.source.label, targets, given)
    sparsity_tables.show_evaluation(found)
    _write_json(found, json)
    if picture is not None:
        sparsity_pictures.draw_evaluation(found, picture)


def _load(model: str, text: Path | None, device: str, dtype: str) -> Loaded:
    from inferx.entrypoints.sparsity_tools import load

    return load(model, text, device=device, dtype=dtype)


def _check_outputs(json: Path | None, picture: Path | None) -> None:
    """Raises OutputError, SparsityError."""
    for option, path in (("--json", json), ("--picture", picture)):
        if path is not None:
            check_writable(option, path)
    if json is not None and picture is not None and json.absolute() == picture.absolute():
        raise SparsityError(f"--json and --picture are both {str(json)!r}: give two names")
    if picture is not None:
        from inferx.entrypoints.sparsity_pictures import check_picture

        check_picture(picture)


def _write_json(found: object, path: Path | None) -> None:
    if path is not None:
        write("--json", path, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
