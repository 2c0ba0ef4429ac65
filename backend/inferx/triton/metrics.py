"""Writes a model's Prometheus metrics, on the server's own metrics port.

Every call into pb_utils is a round trip to the server, and keeps the interpreter for it. So the
counts are kept in this process and written about once a second, those that changed, and of the
histograms a third each time. pb_utils' histograms take one observation a call: ours are families
of counters.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import triton_python_backend_utils as pb_utils

from inferx.observe.families import GAUGES, Sample, families

logger = logging.getLogger(__name__)

INTERVAL = 1.0  # seconds
# Between two values: a write keeps the interpreter for its round trip, in which no shard can send.
PAUSE = 0.005  # seconds


class MetricsWriter:
    """Writes what `read` yields, about once a second. It gets the turn, None for everything."""

    def __init__(
        self, model: str, version: str, read: Callable[[int | None], Iterator[Sample]]
    ) -> None:
        self._labels = {"model": model, "version": version}
        self._read = read
        kinds = {
            "counter": pb_utils.MetricFamily.COUNTER,
            "gauge": pb_utils.MetricFamily.GAUGE,
        }
        self._families = {
            name: _kept(pb_utils.MetricFamily(name=name, description=text, kind=kinds[kind]))
            for name, text, kind in families()
        }
        self._metrics: dict[tuple[str, tuple[str, str] | None], Any] = {}
        self._written: dict[tuple[str, tuple[str, str] | None], float] = {}
        self._stop = threading.Event()
        for sample in read(None):
            self._write(sample)
        self._thread = threading.Thread(target=self._run, name="inferx-metrics", daemon=True)
        self._thread.start()

    def close(self, timeout: float) -> bool:
        """Whether the thread ended within `timeout` seconds; the gauges then are 0."""
        self._stop.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        for (family, _), metric in self._metrics.items():
            if family in GAUGES:
                metric.set(0.0)
        return True

    def _run(self) -> None:
        for turn in count():
            if self._stop.wait(INTERVAL):
                return
            try:
                for sample in self._read(turn):
                    if self._write(sample) and self._stop.wait(PAUSE):
                        return
            except Exception as error:
                logger.error("writing metrics failed: %s", type(error).__name__)

    def _write(self, sample: Sample) -> bool:
        """Whether there was something to write."""
        key = (sample.family, sample.label)
        if key not in self._metrics:
            labels = {**self._labels, **dict([sample.label] if sample.label else [])}
            self._metrics[key] = self._families[sample.family].Metric(labels=labels)
        if sample.family in GAUGES:
            # Always: an instance that ends later than it should sets it to 0
            self._metrics[key].set(float(sample.value))
            return True
        before = self._written.get(key, 0.0)
        if sample.value == before:
            return False
        self._metrics[key].increment(float(sample.value - before))
        self._written[key] = sample.value
        return True


def _kept(family: Any) -> Any:
    """Keeps an object, and so its place in the server, beyond the end of this interpreter.

    When a model is loaded again while an old stub lingers, both have the same metrics. The server
    (core r24.10 and later) counts the users of a metric for each of them apart: the old stub's
    leaving would free what the new one writes to. A counter simply goes on after a reload.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(family))
    return family
