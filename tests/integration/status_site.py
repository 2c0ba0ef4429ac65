"""The status page with figures that a test makes up, over real HTTP."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

from inferx.entrypoints.openai.page import status_page

_BOUNDS = (0.1, 0.2, 0.4, None)


class StatusSite:
    """`status` is what /status.json says; None: its connections end without an answer."""

    def __init__(self) -> None:
        self.status: dict[str, Any] | None = made_up()
        self.num_asked = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[str]:
        """The page's address."""
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        site = self
        page = status_page(needs_key=False)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/":
                    self.answer(page.html, {"content-type": "text/html", **page.headers})
                    return
                site.num_asked += 1
                if site.status is not None:
                    self.answer(json.dumps(site.status).encode(), {})

            def answer(self, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(200)
                for name, value in {"content-length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        return Handler


def made_up(at: float = 1000.0, *, tokens: float = 0.0, **changed: Any) -> dict[str, Any]:
    """A status with one model. `changed` fields are the model's, or those of its values."""
    values = {
        "generation_tokens_total": tokens,
        "num_requests_running": 2.0,
        "num_requests_waiting": 1.0,
        "batch_size": 2.0,
        "kv_pages_free": 5.0,
        "kv_pages_cached": 3.0,
        "kv_pages_used": 2.0,
        "engine_up": 1.0,
        "engine_memory_resident_bytes": 3.0 * 2**30,
        "engine_memory_peak_bytes": 4.0 * 2**30,
    }
    model: dict[str, Any] = {
        "name": "made-up",
        "state": "ready",
        "settings": {"model": "org/made-up", "max_model_len": None},
        "values": values,
        "histograms": {
            "time_to_first_token_seconds": histogram(0, 0, 0, 0),
            "inter_token_latency_seconds": histogram(0, 0, 0, 0),
        },
    }
    for name, value in changed.items():
        (model if name in model else values)[name] = value
    return {"version": "0", "at": at, "problem": None, "models": [model], "errors": []}


def histogram(*counts: float) -> list[list[float | None]]:
    """Cumulative counts up to 0.1, 0.2, 0.4 seconds and without a bound."""
    return [[bound, count] for bound, count in zip(_BOUNDS, counts, strict=True)]
