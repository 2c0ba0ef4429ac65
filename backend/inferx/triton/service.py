"""Service: the parts that serve one model, put together, and taken apart in the right order."""

from __future__ import annotations

import gc
import logging

import msgspec

from inferx.config import EngineConfig
from inferx.engine.client import EngineClient
from inferx.model_sources import model_and_tokenizer
from inferx.observe.families import samples
from inferx.source import model_roots
from inferx.text.tokenizer import Tokenizer
from inferx.triton.admission import Admission
from inferx.triton.cancellation import Canceller
from inferx.triton.inflight import InFlight
from inferx.triton.instance import Instance
from inferx.triton.lifecycle import Lifecycle
from inferx.triton.logs import log_to_triton
from inferx.triton.metrics import MetricsWriter
from inferx.triton.outbox import Outbox
from inferx.triton.pace import Pace
from inferx.triton.readiness import Readiness
from inferx.triton.responder import Responder
from inferx.triton.tracing import RequestTracing

JOIN_TIMEOUT = 2.0  # seconds for each kind of thread at the end
logger = logging.getLogger(__name__)


class Service:
    def __init__(
        self,
        instance: Instance,
        config: EngineConfig,
        engine: EngineClient,
        tokenizer: Tokenizer,
        tracing: RequestTracing | None,
    ) -> None:
        """`engine` is up."""
        self._engine = engine
        self._tracing = tracing
        self._in_flight = InFlight()
        self._responder = Responder(config.response_shards, engine.abort, self._on_closed)
        self._canceller = Canceller(engine.abort)
        self._metrics = MetricsWriter(
            instance.model,
            instance.version,
            lambda turn: samples(
                self._responder.stats(), engine, tracing.num_dropped if tracing else 0, turn
            ),
        )
        self._lifecycle = Lifecycle(
            engine,
            self._in_flight,
            Readiness(instance.model, instance.version),
            config.drain_timeout,
        )
        self.admission = Admission(
            config,
            engine,
            tokenizer,
            self._responder,
            self._in_flight,
            self._canceller,
            Pace(config.stream_interval),
            tracing,
            decoupled=instance.decoupled,
        )

    @classmethod
    def start(cls, instance: Instance) -> Service:
        """Loads the model. Raises ConfigError or ModelLoadError."""
        log_to_triton(instance.model, instance.version)
        instance.show_only_own_gpu()
        config = instance.engine_config()
        source, tokenizer_source = model_and_tokenizer(config, model_roots(instance.directory))
        tokenizer = Tokenizer.from_source(tokenizer_source)
        config = msgspec.structs.replace(
            config,
            model=str(source.path) if source else "",
            tokenizer=str(tokenizer_source.path),
        )
        tracing = RequestTracing.start(instance.model, config)
        engine = EngineClient(config)
        try:
            engine.start()
            service = cls(instance, config, engine, tokenizer, tracing)
        except BaseException:
            engine.close(JOIN_TIMEOUT)
            raise
        # What loading made stays: a full collection would walk it all, and every stream would wait.
        gc.collect()
        gc.freeze()
        return service

    @property
    def is_ready(self) -> bool:
        return self._engine.is_up and not self._lifecycle.draining

    def close(self) -> None:
        """Ends everything within a few seconds. No thread calls pb_utils when it returns: one that
        ended with the process, amid a call, would take the server down with it.
        """
        self._lifecycle.finish()
        self.admission.close()
        ended = [
            self._canceller.close(JOIN_TIMEOUT),
            self._responder.close(JOIN_TIMEOUT),
            self._metrics.close(JOIN_TIMEOUT),
        ]
        if self._tracing is not None:
            self._tracing.close(JOIN_TIMEOUT)
        if not all(ended):
            logger.error("some threads did not end within %g s", JOIN_TIMEOUT)

    def _on_closed(self, outbox: Outbox) -> None:
        if self._tracing is not None:
            self._tracing.end(outbox)
        self._in_flight.remove(outbox)
