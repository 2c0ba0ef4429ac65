"""TritonPythonModel: what Triton's Python backend calls. Everything else happens in the stages:

execute -> admission -> EngineClient -> outbox -> responder; beside them cancellation, lifecycle
and metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferx.triton.instance import Instance
from inferx.triton.interface import complete_config
from inferx.triton.orphan import end_with_server


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        return complete_config(auto_complete_model_config)

    def initialize(self, args: Mapping[str, str]) -> None:
        """Returns when the model is loaded. Raises ConfigError or ModelLoadError."""
        end_with_server()
        instance = Instance.from_args(args)
        instance.require_first()
        # Not above: auto-completion imports this module too, in a process of its own.
        from inferx.triton.service import Service

        self._decoupled = instance.decoupled
        self._service = Service.start(instance)

    def execute(self, requests: Sequence[Any]) -> list[None] | None:
        """Takes the requests over and returns at once; their responses follow from the senders."""
        for request in requests:
            self._service.admission.admit(request)
        return None if self._decoupled else [None] * len(requests)

    def is_ready(self) -> bool:
        return self._service.is_ready

    def finalize(self) -> None:
        self._service.close()
