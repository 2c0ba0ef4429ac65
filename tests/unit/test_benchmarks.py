"""The benchmarks as programs, without running one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "ci" / "bench"
PROGRAMS = [path for path in FOLDER.iterdir() if path.is_file() and os.access(path, os.X_OK)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_a_word_that_it_does_not_know_is_not_taken_for_the_order_to_run(program: Path) -> None:
    """`--help` in particular: some of them load the machine for minutes."""
    text = program.read_text()
    assert any(way in text for way in ("parse_args()", "takes_no_options()", '"--help"'))
