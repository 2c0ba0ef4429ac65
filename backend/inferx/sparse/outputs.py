"""The files that the sparsity tools write: looked at before minutes of work, not after."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inferx.errors import SparsityError


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Raises SparsityError where the file of a command's option cannot be written."""
    try:
        yield
    except OSError as error:
        raise SparsityError(
            f"the file {str(path)!r} cannot be written ({error.strerror}): name another with "
            f"{option}"
        ) from None


def check_place(option: str, path: Path) -> None:
    """Raises SparsityError where no file can be of that name."""
    with writing(option, path):  # which a folder that cannot be looked into prevents, too
        is_place = path.parent.is_dir() and not path.is_dir()
    if not is_place:
        raise SparsityError(f"{option} is {str(path)!r}: give a file in a folder that exists")


def check_writable(option: str, path: Path) -> None:
    """A new file shows whether its folder takes one, which permissions alone do not say.

    Raises SparsityError.
    """
    with writing(option, path):
        if path.exists():
            os.close(os.open(path, os.O_WRONLY))
        else:
            tempfile.TemporaryFile(dir=path.parent).close()
