"""Tracer: sends what happened to requests to an OpenTelemetry collector, and holds up nobody.

A request that has ended is put into a bounded queue as plain data. One thread makes spans of it
and sends them as OTLP over HTTP, gzip, with retries. When the collector cannot keep up, or is
away, the queue fills and requests are dropped from the traces, and counted.
"""

from __future__ import annotations

import importlib.util
import logging
import random
import threading
import time
from collections.abc import Callable
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from inferx.errors import ConfigError
from inferx.observe.request_trace import RequestTrace, TraceParent

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger(__name__)

CAPACITY = 2048  # requests
BATCH = 128  # requests an export
LINGER = 0.5  # seconds that a batch waits for more
RETRIES = 5
_PATH = "/v1/traces"
_NEEDED = "opentelemetry.exporter.otlp.proto.http"


class Tracer:
    def __init__(
        self, endpoint: str, sample_ratio: float, exporter: Callable[[str], SpanExporter]
    ) -> None:
        """`sample_ratio` is of the requests whose caller brings no trace of its own; of others the
        caller has decided. `exporter` is called in the tracer's thread."""
        self._sample_ratio = sample_ratio
        self._queue: Queue[RequestTrace | None] = Queue(CAPACITY)
        self._lost = 0  # by the thread
        self._refused = 0  # under the lock
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, args=(endpoint, exporter), name="inferx-traces", daemon=True
        )
        self._thread.start()

    @property
    def num_dropped(self) -> int:
        """Requests that were to be traced and are not."""
        return self._refused + self._lost

    def wants(self, parent: TraceParent | None) -> bool:
        """Whether a request is to be traced."""
        return random.random() < self._sample_ratio if parent is None else parent.sampled

    def record(self, trace: RequestTrace) -> None:
        """Takes a request that has ended. From any thread; never waits."""
        try:
            self._queue.put_nowait(trace)
        except Full:
            with self._lock:
                self._refused += 1

    def close(self, timeout: float) -> None:
        """Sends what there is, as far as it goes within `timeout` seconds; then logs no more."""
        try:
            self._queue.put(None, timeout=timeout)
        except Full:
            pass
        else:
            self._thread.join(timeout)
        with self._lock:
            self._closed = True

    def _run(self, endpoint: str, exporter: Callable[[str], SpanExporter]) -> None:
        from inferx.observe.spans import SpanBuilder

        builder, sender = SpanBuilder(), exporter(endpoint)
        going = True
        works = True
        while going:
            traces, going = self._batch()
            if not traces:
                continue
            failure = self._send(sender, [s for trace in traces for s in builder.build(trace)])
            if failure is not None:
                self._lost += len(traces)
                if works:
                    self._warn(failure)
            works = failure is None

    def _batch(self) -> tuple[list[RequestTrace], bool]:
        """What has come, and whether more may."""
        trace = self._queue.get()
        traces: list[RequestTrace] = []
        deadline = time.monotonic() + LINGER
        while trace is not None:
            traces.append(trace)
            if len(traces) == BATCH:
                return traces, True
            try:
                trace = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return traces, True
        return traces, False

    def _send(self, sender: SpanExporter, spans: list[Any]) -> str | None:
        """The name of the failure, if it failed."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = sender.export(spans)
        except Exception as error:
            return type(error).__name__
        return None if result is SpanExportResult.SUCCESS else "a refusal"

    def _warn(self, failure: str) -> None:
        with self._lock:
            if not self._closed:
                logger.warning(
                    "traces cannot be sent (%s), requests are served without; dropped so far: %d",
                    failure,
                    self._refused + self._lost,
                )


def check_tracing(endpoint: str, source: str) -> str:
    """The address that spans are sent to. Raises ConfigError."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{source}: otlp_traces_endpoint is {endpoint!r}: expected the HTTP address of an "
            "OpenTelemetry collector, as in http://127.0.0.1:4318/v1/traces"
        )
    try:
        found = importlib.util.find_spec(_NEEDED)
    except ModuleNotFoundError:
        found = None
    if found is None or importlib.util.find_spec("opentelemetry.sdk") is None:
        raise ConfigError(
            f"{source}: otlp_traces_endpoint is set, and OpenTelemetry's SDK is not installed: "
            "pip install 'inferx[traces]', or leave the setting out"
        )
    return endpoint if parts.path.strip("/") else endpoint.rstrip("/") + _PATH


def otlp_exporter(endpoint: str) -> SpanExporter:
    """Its own retries are for statuses of the server (5xx); ours for everything before those."""
    import requests
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    # A collector that is away is one line of our log, not one a try of theirs
    for name in ("urllib3.connectionpool", "opentelemetry.exporter.otlp.proto.http"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    retry = Retry(
        RETRIES,
        backoff_factor=0.2,
        status_forcelist=(429,),
        allowed_methods=None,
        raise_on_status=False,
    )
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    return OTLPSpanExporter(endpoint, compression=Compression.Gzip, session=session)
