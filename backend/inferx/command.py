"""The `inferx` command: it says what is missing where the client was installed alone."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from inferx.cli import main as run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "inferx"):
            raise
        sys.exit(
            f"inferx: the Python package {package} is not installed. Where InferX was installed "
            "without its dependencies there is the client alone (inferx_client): install it with "
            "them for this command"
        )
    run()
