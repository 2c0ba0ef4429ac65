"""Triton as the status and load tests see it: readiness over gRPC, a metrics page over HTTP."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc


class TritonPorts(service_pb2_grpc.GRPCInferenceServiceServicer):
    """`page` None: the metrics page fails. `scrapes` counts its readers. What is asked of
    readiness is answered while `answers` is set."""

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.answers = threading.Event()
        self.answers.set()
        self.page: str | None = None
        self.scrapes = 0
        self.grpc_url = ""
        self.metrics_url = ""

    def ModelReady(self, request: service_pb2.ModelReadyRequest, context: object):
        self.answers.wait()
        return service_pb2.ModelReadyResponse(ready=request.name in self.ready)

    def RepositoryIndex(self, request: service_pb2.RepositoryIndexRequest, context: object):
        self.answers.wait()
        of_versions = [name for name in self.ready for _ in range(2)]
        index = [service_pb2.RepositoryIndexResponse.ModelIndex(name=name) for name in of_versions]
        return service_pb2.RepositoryIndexResponse(models=index)

    @contextlib.contextmanager
    def listening(self) -> Iterator[TritonPorts]:
        server = grpc.server(ThreadPoolExecutor(2))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, server)
        self.grpc_url = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        metrics = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.metrics_url = f"127.0.0.1:{metrics.server_port}"
        thread = threading.Thread(target=metrics.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self.answers.set()
            metrics.shutdown()
            thread.join()
            metrics.server_close()
            server.stop(None).wait()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        ports = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                ports.scrapes += 1
                if ports.page is not None:  # else the connection closes without an answer
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(ports.page.encode())

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        return Handler
