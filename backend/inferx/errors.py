"""Errors that reach a person: each is one sentence that says what is wrong, where, and what to do.

A request's error carries the Triton status that its client sees. None of them holds a path of
the server, a traceback or another request's text.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any, Literal

_LONGEST_NAME = 80  # characters of an unknown name that an error shows
_LONGEST_VALUE = 80  # likewise of a value
Status = Literal["INVALID_ARG", "UNAVAILABLE", "CANCELLED", "INTERNAL"]


class InferxError(Exception):
    """Base of everything that InferX raises on purpose."""


class ConfigError(InferxError):
    """A setting of the model's configuration is unknown, mistyped or out of range."""


class ModelLoadError(InferxError):
    """A model folder is missing, damaged, unsupported or too large."""


class SparsityError(InferxError):
    """A text or a calibration file that the sparsity tools cannot work with."""


class OutputError(InferxError):
    """A file that a command is to write cannot be written."""


class RequestError(InferxError):
    """Ends one request and nothing else. `status` is a Triton status name."""

    status: Status = "INTERNAL"


class InvalidArgument(RequestError):
    """The request asks for something that is wrong or impossible."""

    status = "INVALID_ARG"


class Unavailable(RequestError):
    """Nothing is wrong with the request: the queue is full, or the engine drains or restarts."""

    status = "UNAVAILABLE"


class Cancelled(RequestError):
    """The client cancelled, or its deadline passed."""

    status = "CANCELLED"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """The sentence for an unknown name, with the nearest known one when there is a near one."""
    if len(name) > _LONGEST_NAME:  # a client's: a gRPC status carries a few kB at most
        name = name[: _LONGEST_NAME - 3] + "..."
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {name!r}{hint}"


def shown(value: Any) -> str:
    """A client's value as an error shows it: its beginning, however long or deep it is."""
    text = _beginning.repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


# repr itself would write all of a value, and fail on one that the JSON parser barely took
_beginning = reprlib.Repr()
_beginning.maxlevel = 20
_beginning.maxlist = _beginning.maxtuple = _beginning.maxdict = _LONGEST_VALUE
_beginning.maxstring = _beginning.maxlong = _beginning.maxother = 3 * _LONGEST_VALUE
