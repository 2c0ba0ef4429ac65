"""The files that commands write: looked at before minutes of work, written after it at once."""

from __future__ import annotations

import os
import secrets
import shutil
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
        _refuse_special(option, path)
        if path.exists():
            os.close(os.open(path, os.O_WRONLY))
        else:  # a link may lead to a file that is not there, in another folder
            tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent).close()


def write(option: str, path: Path, content: bytes) -> None:
    """A file that is there stays as it is until the new one is whole: a full disk loses nothing.

    Raises OutputError where the file of a command's option cannot be written.
    """
    with _naming(option, path):
        _refuse_special(option, path)
        place = Path(os.path.realpath(path))
        if place.exists() and not _is_replaceable(place):
            place.write_bytes(content)
            return
        # A name that nobody can have put a link under, in a folder of everybody's
        unfinished = place.with_name(f".{secrets.token_hex(8)}.unfinished")
        file = unfinished.open("xb")
        try:
            with file:
                if place.exists():
                    shutil.copymode(place, unfinished)
                file.write(content)
            unfinished.replace(place)
        finally:
            unfinished.unlink(missing_ok=True)


def write_picture(option: str, path: Path, figure: Any, *, dpi: int) -> None:
    """A matplotlib figure, of the kind that the name ends in. Drawn first: it takes seconds, and an
    interrupt would leave a part of an .svg file.

    Raises OutputError.
    """
    drawn = BytesIO()
    figure.savefig(drawn, dpi=dpi, format=path.suffix.removeprefix("."))
    write(option, path, drawn.getvalue())


def _refuse_special(option: str, path: Path) -> None:
    """Opening a FIFO waits for its reader, maybe for ever. Devices, as /dev/null, take a report."""
    if path.exists() and not (path.is_file() or path.is_char_device()):
        raise OutputError(f"{option} is {str(path)!r}, a pipe or the like: give the name of a file")


def _is_replaceable(path: Path) -> bool:
    """A file of this user under one name, no device, in a folder that takes another file."""
    return (
        path.is_file()
        and path.stat().st_nlink == 1
        and path.stat().st_uid == os.geteuid()
        and os.access(path.parent, os.W_OK | os.X_OK)
    )


@contextmanager
def _naming(option: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"the file {str(path)!r} cannot be written ({error.strerror}): name another with "
            f"{option}"
        ) from None
