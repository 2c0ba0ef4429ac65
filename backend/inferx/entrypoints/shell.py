"""How a command ends: an error is one sentence on standard error, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from inferx.errors import InferxError

INTERRUPTED = 130  # what shells report for SIGINT


def report_errors(command: Callable[[], Any]) -> None:
    """Runs a command; InferxError and interrupts become messages and exit statuses."""
    try:
        command()
    except InferxError as error:
        print(f"inferx: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
