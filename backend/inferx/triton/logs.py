"""The stub's logging goes to Triton's log. Neither prompts nor outputs ever do."""

from __future__ import annotations

import logging
import secrets
import traceback

import triton_python_backend_utils as pb_utils

from inferx.errors import RequestError

_LONGEST_ID = 128  # characters of a client's request id that a log line shows
logger = logging.getLogger(__name__)


class TritonHandler(logging.Handler):
    """Writes records through pb_utils.Logger, each on one line."""

    def emit(self, record: logging.LogRecord) -> None:
        text = one_line(self.format(record))
        if record.levelno >= logging.ERROR:
            pb_utils.Logger.log_error(text)
        elif record.levelno >= logging.WARNING:
            pb_utils.Logger.log_warn(text)
        elif record.levelno >= logging.INFO:
            pb_utils.Logger.log_info(text)
        else:
            pb_utils.Logger.log_verbose(text)


def log_to_triton(model: str, version: str) -> None:
    """From now on what `inferx` logs in this process goes to Triton's log."""
    handler = TritonHandler()
    handler.setFormatter(logging.Formatter(f"inferx {model}:{version} %(message)s"))
    package = logging.getLogger("inferx")
    package.handlers = [handler]
    package.propagate = False
    package.setLevel(logging.INFO)


def one_line(text: str) -> str:
    """Line breaks and other control characters escaped, so that nobody forges a line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown_id(request_id: str) -> str:
    """A client's request id as log lines and errors show it."""
    if len(request_id) > _LONGEST_ID:
        request_id = request_id[:_LONGEST_ID] + "..."
    return one_line(request_id)


def internal_error(error: BaseException, request_id: str) -> RequestError:
    """The error that a client gets for a failure of ours; its id leads to the log's line.

    The log gets the kind of `error` and where it arose, but not its text, which may quote a prompt.
    """
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    where = " < ".join(f"{f.filename}:{f.lineno} {f.name}" for f in reversed(frames))
    return _with_id(
        "the server failed on this request", request_id, f"{type(error).__name__} at {where}"
    )


def engine_error(message: str, request_id: str) -> RequestError:
    """The same for an internal error that the engine process reports."""
    return _with_id(message, request_id, message)


def _with_id(message: str, request_id: str, detail: str) -> RequestError:
    error_id = secrets.token_hex(4)
    logger.error("error %s, request %r: %s", error_id, shown_id(request_id), detail)
    return RequestError(f"{message} (error {error_id}, see the server's log)")
