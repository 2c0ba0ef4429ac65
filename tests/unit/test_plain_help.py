"""`--help` names every option whole, however wide the terminal."""

import re

import pytest
from inferx.cli import app
from inferx.config import EngineConfig
from inferx.entrypoints.settings import option_name
from typer.testing import CliRunner


@pytest.mark.parametrize("columns", [80, 119, 120])
@pytest.mark.parametrize("command", ["serve", "generate", "chat", "memory"])
def test_no_name_of_a_setting_is_cut(command: str, columns: int) -> None:
    shown = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, [command, "--help"]).output
    names = set(re.findall(r"--[a-z-]+", shown))
    assert {option_name(name) for name in EngineConfig.__struct_fields__} - names == {"--model"}
    assert "…" not in shown


def test_a_wide_terminal_has_the_settings_in_a_table_of_their_own() -> None:
    def panels(columns: int) -> int:
        runner = CliRunner(env={"COLUMNS": str(columns)})
        return runner.invoke(app, ["serve", "--help"]).output.count("─ Engine settings ─")

    assert (panels(119), panels(120)) == (0, 1)
