"""Sentences out of what tritonserver says when something has failed."""

from __future__ import annotations

import re


def taken_port(log: str) -> int | None:
    """The port that the server found taken, if that is what it says."""
    taken = re.search(r"Socket '\S+:(\d+)' already in use", log)
    return int(taken.group(1)) if taken else None


def last_words(log: str) -> str:
    """The log's last error, for the end of a sentence."""
    lines = log.strip().splitlines()
    errors = [line for line in lines if re.match(r"E\d{4} ", line)]
    line = (errors or lines or [""])[-1]
    message = re.sub(r"^[A-Z]\d{4} \S+ \d+ \S+\] ", "", line).strip('" ')
    return f": {message}" if message else ""


def load_failure(model: str, reason: str) -> str:
    """A model's own words out of Triton's report: without status, exception type and traceback."""
    text = reason.partition("\n\nAt:\n")[0]
    text = re.sub(r"^(Internal|Invalid argument|Unavailable|Unsupported|Not found): ", "", text)
    text = re.sub(r"^[A-Za-z_]*(Exception|Error): ", "", text)
    text = " ".join(text.split()) or "Triton gives no reason"
    return f"model {model!r} did not load: {text}"


def passed_over(model: str) -> str:
    """Of a model that Triton does not list: its log alone says why."""
    return (
        f"model {model!r} did not load: Triton passes it over, as its config.pbtxt cannot be read, "
        "has the name of another folder, or asks for versions that are not there: Triton's log "
        "says which"
    )
