"""Options that a command gets together, and its function as one mapping."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any


def with_options(
    mapping: str, options: Sequence[inspect.Parameter]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a typer command the keyword-only parameters `options`.

    Its function gets those that have a value as the argument `mapping`, by their names.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [
            parameter
            for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
            if name != mapping
        ]

        @functools.wraps(command)
        def run(**values: Any) -> Any:
            given = {option.name: values.pop(option.name) for option in options}
            present = {name: value for name, value in given.items() if value is not None}
            return command(**{mapping: present}, **values)

        everything = [*own, *options]
        run.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in everything}
        del run.__wrapped__  # type: ignore[attr-defined]
        return run

    return decorate
