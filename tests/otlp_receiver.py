"""An OpenTelemetry collector as far as a test needs one: OTLP over HTTP, protobuf, gzip."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpReceiver:
    """Keeps the spans that are posted to it; `statuses` are answered first, one a request."""

    def __init__(self, statuses: tuple[int, ...] = ()) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self.encodings: set[str | None] = set()
        self.paths: set[str] = set()
        self._statuses = list(statuses)
        self._changed = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(receiver._take(self.path, self.headers, body))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def _take(self, path: str, headers: Any, body: bytes) -> int:
        with self._changed:
            if self._statuses:
                return self._statuses.pop(0)
            if headers["Content-Encoding"] != "gzip":  # Triton's own spans
                return 200
            self.paths.add(path)
            self.encodings.add(headers["Content-Encoding"])
            request = ExportTraceServiceRequest.FromString(gzip.decompress(body))
            for of_resource in request.resource_spans:
                self.services.add(attributes(of_resource.resource)["service.name"])
                for scope in of_resource.scope_spans:
                    self.spans += scope.spans
            self._changed.notify_all()
        return 200

    def wait(self, condition: Callable[[list[Span]], bool]) -> list[Span]:
        with self._changed:
            arrived = self._changed.wait_for(lambda: condition(self.spans), 30)
            assert arrived, [span.name for span in self.spans]
            return list(self.spans)

    def __enter__(self) -> OtlpReceiver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def attributes(holder: Any) -> dict[str, Any]:
    """Of a span or a resource, as Python values."""
    return {pair.key: _value(pair.value) for pair in holder.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)
