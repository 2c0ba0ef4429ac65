"""The `inferx` command where packages are missing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

WITHOUT = "import sys; sys.modules[sys.argv[1]] = None; from inferx.command import main; main()"


@pytest.mark.parametrize("package", ["typer", "rich", "msgspec"])
def test_a_missing_package_is_named_in_a_sentence(package: str) -> None:
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT, package],
        env=paths,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith(f"inferx: the Python package {package} is not installed. ")
    assert ran.stderr.count("\n") == 1
