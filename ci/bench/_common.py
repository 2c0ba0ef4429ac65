"""What every benchmark does first and last.

First, `import _common`: the benchmark continues in the repository's `.venv`, which `ci/setup`
makes if it is missing; without one, a Python that has InferX already is taken as it is. Last,
`_common.end(...)`: one line `ok …` or `short …`, and the exit status.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

REPOSITORY = Path(__file__).resolve().parent.parent.parent
_ENVIRONMENT = REPOSITORY / ".venv"


def _continue_in_environment() -> None:
    if Path(sys.prefix).resolve() == _ENVIRONMENT.resolve():
        return
    if not _ENVIRONMENT.exists() and importlib.util.find_spec("inferx"):
        return
    subprocess.run([REPOSITORY / "ci" / "setup"], check=True, stdout=sys.stderr)
    python = str(_ENVIRONMENT / "bin" / "python")
    os.execv(python, [python, *sys.argv])


def takes_no_options() -> None:
    """Shows what the benchmark is for `--help`, and refuses other arguments."""
    parser = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()


def report(**figures: object) -> None:
    """One JSON line."""
    print(json.dumps(figures), flush=True)


def end(missed: Iterable[str], summary: str) -> NoReturn:
    """`missed` are the bars that were not reached, a phrase each."""
    missed = list(missed)
    print(f"short {summary}: {'; '.join(missed)}" if missed else f"ok {summary}", flush=True)
    sys.exit(1 if missed else 0)


_continue_in_environment()
