"""Asks the server, from within, whether it still serves this model.

There are two questions, and each may be asked only at its time (python_backend r24.10 and later):

- A request to the model itself that cannot be carried out. Its refusal tells, on the way to a
  decoupled model or to an unknown input, whether the model and the server are ready. It needs the
  instance's thread pool in the server, which is stopped before `finalize`; a request that comes
  then stays there forever. So: only while a request is in flight, which keeps the instance.
- `is_model_ready`. Once the server shuts down its answer is an error, whose text the server may
  free before the stub has read it, which can end the stub. So: only while nothing is in flight that
  would be lost with it, and seldom.
"""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils

from inferx.triton.interface import TEXT_OUTPUT


class Readiness:
    def __init__(self, model: str, version: str) -> None:
        self._model = model
        self._version = version

    def is_served_while_busy(self) -> bool:
        request = pb_utils.InferenceRequest(
            model_name=self._model,
            model_version=int(self._version),
            inputs=[pb_utils.Tensor("inferx_readiness", np.zeros(1, np.int32))],
            requested_output_names=[TEXT_OUTPUT],
        )
        error = request.exec().error()
        return error is None or "not ready" not in error.message()

    def is_served_while_idle(self) -> bool:
        try:
            return pb_utils.is_model_ready(model_name=self._model, model_version=self._version)
        except pb_utils.TritonModelException:  # the server shuts down
            return False
