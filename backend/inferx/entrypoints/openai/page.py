"""The status page: one document without outside resources, put together from the folder `page`."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).with_name("page")
_SCRIPTS = ("figures.js", "drawing.js", "playground.js", "showing.js", "polling.js")


class Page(NamedTuple):
    html: bytes
    headers: dict[str, str]


def status_page(*, needs_key: bool) -> Page:
    """`needs_key`: whether it has to ask for the API key before it can show anything.

    Its style and its script are let in by their hashes. Nothing else is, and no text can become
    markup (trusted types).
    """
    style = _text("style.css")
    script = "\n".join(_text(name) for name in _SCRIPTS)
    html = (
        _text("page.html")
        .replace("{{key}}", "required" if needs_key else "none")
        .replace("{{style}}", style)
        .replace("{{script}}", script)
    )
    policy = (
        *("default-src 'none'", "connect-src 'self'", "img-src data:"),
        f"style-src {_hash(style)}",
        f"script-src {_hash(script)}",
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        "require-trusted-types-for 'script'",
    )
    headers = {
        "content-security-policy": "; ".join(policy),
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return Page(html.encode(), headers)


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """As a Content-Security-Policy names an inline element by its text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
