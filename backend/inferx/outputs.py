"""The files that commands write: looked at before minutes of work, written after it at once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from inferx.errors import OutputError


def check_writable(option: str, path: Path) -> None:
    """A new file shows whether its folder takes one, which permissions alone do not say.

    Raises OutputError.
    """
    with _naming(option, path):  # which a folder that cannot be looked into prevents, too
        if path.is_dir() or not path.parent.is_dir():
            raise OutputError(f"{option} is {str(path)!r}: give a file in a folder that exists")
        if path.exists():
            os.close(os.open(path, os.O_WRONLY))
        else:  # a link may lead to a file that is not there, in another folder
            tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent).close()


def write(option: str, path: Path, content: bytes) -> None:
    """Raises OutputError where the file of a command's option cannot be written."""
    with _naming(option, path):
        path.write_bytes(content)


def write_picture(option: str, path: Path, figure: Any, *, dpi: int) -> None:
    """A matplotlib figure, of the kind that the name ends in. Drawn first: it takes seconds, and an
    interrupt would leave a part of an .svg file.

    Raises OutputError.
    """
    drawn = BytesIO()
    figure.savefig(drawn, dpi=dpi, format=path.suffix.removeprefix("."))
    write(option, path, drawn.getvalue())


@contextmanager
def _naming(option: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"the file {str(path)!r} cannot be written ({error.strerror}): name another with "
            f"{option}"
        ) from None
