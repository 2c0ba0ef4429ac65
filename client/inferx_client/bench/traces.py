"""Recorded traffic: when requests came and how long they were.

Mooncake  JSONL: timestamp (ms), input_length, output_length, hash_ids (a block of 512 each)
BurstGPT  CSV: Timestamp (s), Request tokens, Response tokens, …
Azure     CSV: TIMESTAMP (date and time), ContextTokens, GeneratedTokens
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from inferx_client.bench.errors import BenchError

Format = Literal["mooncake", "burstgpt", "azure"]

_COLUMNS: dict[Format, tuple[str, str, str]] = {
    "burstgpt": ("Timestamp", "Request tokens", "Response tokens"),
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
}
# What a line can make its reader raise: numbers beyond a float and deep nesting too
_UNREADABLE = (ValueError, KeyError, TypeError, OverflowError, RecursionError, csv.Error)
# Azure writes seven digits of a second; Python 3.10 reads three or six.
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)?")


@dataclass(frozen=True)
class Recorded:
    """One request of a trace. `at`: seconds after the trace's first request."""

    at: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()  # equal ids at equal places are equal text


def read_trace(path: Path) -> list[Recorded]:
    """The requests in order of time; those without an answer (0 output tokens) are left out.

    Raises BenchError, which names the line, for a file of another form and for a damaged line.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            found = list(_parsed(lines, path.name))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BenchError(f"trace {path.name}: {reason}") from None
    answered = sorted((one for one in found if one.output_tokens), key=lambda one: one.at)
    if not answered:
        raise BenchError(f"trace {path.name}: there is no request with an answer in it")
    begin = answered[0].at
    return [
        Recorded(one.at - begin, one.input_tokens, one.output_tokens, one.blocks)
        for one in answered
    ]


def _parsed(lines: Iterable[str], name: str) -> Iterator[Recorded]:
    lines = iter(lines)
    first = next(lines, "")
    if first.lstrip().startswith("{"):
        yield from _numbered(itertools.chain([first], lines), _mooncake, name, first_number=1)
        return
    header = [column.strip().lstrip("\ufeff") for column in _cells(first, name)]
    for columns in _COLUMNS.values():
        if set(columns) <= set(header):
            places = [header.index(column) for column in columns]
            read = _csv_reader(columns, places)
            yield from _numbered(lines, read, name, first_number=2)
            return
    raise BenchError(
        f"trace {name}, line 1: neither an object of Mooncake's JSONL nor a CSV header with "
        + " or ".join(", ".join(columns) for columns in _COLUMNS.values())
    )


def _cells(line: str, name: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise BenchError(f"trace {name}, line 1: {error}") from None


def _numbered(
    lines: Iterable[str], read: Callable[[str], Recorded], name: str, first_number: int
) -> Iterator[Recorded]:
    for number, line in enumerate(lines, first_number):
        if not line.strip():
            continue
        try:
            yield read(line)
        except _UNREADABLE as error:
            raise BenchError(f"trace {name}, line {number}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"this is not JSON ({error.msg} at character {error.pos + 1})"
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error)


def _mooncake(line: str) -> Recorded:
    entry = json.loads(line)
    if not isinstance(entry, dict):
        raise ValueError("this is not a JSON object")
    blocks = entry.get("hash_ids", [])
    if not isinstance(blocks, list) or not all(isinstance(block, int) for block in blocks):
        raise ValueError("hash_ids is not a list of integers")
    return Recorded(
        _number("timestamp", entry["timestamp"]) / 1e3,
        _count("input_length", entry["input_length"]),
        _count("output_length", entry["output_length"]),
        tuple(blocks),
    )


def _csv_reader(columns: tuple[str, ...], places: list[int]) -> Callable[[str], Recorded]:
    moment = _number if columns == _COLUMNS["burstgpt"] else _date

    def read(line: str) -> Recorded:
        cells = next(csv.reader([line]))
        if len(cells) <= max(places):
            raise ValueError(f"{len(cells)} columns where {', '.join(columns)} are expected")
        at, inputs, outputs = (
            (name, cells[place]) for name, place in zip(columns, places, strict=True)
        )
        return Recorded(moment(*at), _count(*inputs), _count(*outputs))

    return read


def _number(name: str, value: object) -> float:
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}, not a number") from None
    if not 0 <= found < float("inf"):
        raise ValueError(f"{name} is {value!r}, not a number of 0 or more")
    return found


def _count(name: str, value: object) -> int:
    found = _number(name, value)
    if found != int(found):
        raise ValueError(f"{name} is {value!r}, not a whole number")
    return int(found)


def _date(name: str, value: str) -> float:
    found = _MOMENT.fullmatch(value.strip())
    if found is None:
        raise ValueError(f"{name} is {value!r}, not a date and time")
    whole, fraction, zone = found.groups()
    offset = (zone or "+00:00").replace("Z", "+00:00")
    moment = datetime.fromisoformat(whole + offset).astimezone(timezone.utc)
    return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
