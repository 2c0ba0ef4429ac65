"""A command's help in a narrow terminal: plain text, where typer's table would cut the names."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from typer.core import TyperCommand

_TABLE_WIDTH = 120  # columns that the table of the engine settings needs


class PlainHelp(TyperCommand):
    """A command with long options. With fewer columns than they need, or into a pipe, its help is
    a list, in which every name is whole."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if Console().width < _TABLE_WIDTH:
            self.rich_markup_mode = None
        super().format_help(ctx, formatter)
