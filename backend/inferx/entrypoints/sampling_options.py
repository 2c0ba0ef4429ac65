"""How tokens are drawn, as options of `inferx generate` and `inferx chat`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from inferx.entrypoints.added_options import with_options

# Name and type of SamplingParams' fields that are options, and what they mean. The seed is an
# engine setting that is an option already.
_OPTIONS: dict[str, tuple[Any, str]] = {
    "max_tokens": (int, "length of an answer at most"),
    "temperature": (float, "0 always takes the likeliest token"),
    "top_p": (float, "share of the likeliest tokens to draw from"),
    "top_k": (int, "number of the likeliest tokens to draw from; all if not given"),
    "min_p": (float, "leave out tokens below this share of the likeliest one's probability"),
    "repetition_penalty": (float, "above 1: tokens that were there already become less likely"),
    "presence_penalty": (float, "above 0: tokens that were generated already become less likely"),
    "frequency_penalty": (float, "the same, by how often they were"),
    "stop": (list[str], "ends the text; repeatable"),
}


def with_sampling(**defaults: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a typer command the sampling options; `defaults` are shown, the others left out.

    The command gets those that have a value as the mapping `sampling`, named as SamplingParams'.
    """

    options = [_option(name, defaults.get(name)) for name in _OPTIONS]
    return with_options("sampling", options)


def _option(name: str, default: Any) -> inspect.Parameter:
    kind, meaning = _OPTIONS[name]
    info = typer.Option(help=meaning, rich_help_panel="Sampling", show_default=default is not None)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind | None, info],
    )
