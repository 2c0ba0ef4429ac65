"""Asks the server, from within, whether it still serves this model.

There are two questions, and each has a time at which it can end the stub or the server (seen with
tritonserver 2.51; python_backend's code is the same since):

- A request to the model itself that cannot be carried out: its refusal tells. It needs the
  instance's thread pool in the server, which is stopped shortly before `finalize`; a request that
  comes then stays there, and the server falls over it. So it is asked while requests are in
  flight, since they keep the instance.
- `is_model_ready`, which needs no pool. But once the server shuts down its answer is an error,
  whose text may be freed before the stub has read it. So it is asked, while nothing is in flight,
  only if the server's main thread has not run since the last time: it sleeps until a signal comes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from inferx.triton.interface import TEXT_OUTPUT


class Readiness:
    def __init__(self, model: str, version: str) -> None:
        self._model = model
        self._version = version
        self._server_pid = os.getppid()
        self._switches: str | None = None

    def is_served(self, *, busy: bool) -> bool:
        """`busy`: a request is in flight, and will be until this returns."""
        if busy or self._server_woke():
            return self._by_request()
        return pb_utils.is_model_ready(model_name=self._model, model_version=self._version)

    def _by_request(self) -> bool:
        request = pb_utils.InferenceRequest(
            model_name=self._model,
            model_version=int(self._version),
            inputs=[pb_utils.Tensor("inferx_readiness", np.zeros(1, np.int32))],
            requested_output_names=[TEXT_OUTPUT],
        )
        error = request.exec().error()
        return error is None or "not ready" not in error.message()

    def _server_woke(self) -> bool:
        """Whether the server's main thread may have run since the last call."""
        before, self._switches = self._switches, _context_switches(self._server_pid)
        return self._switches is None or self._switches != before


def _context_switches(pid: int) -> str | None:
    """Of a process's main thread; None where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/task/{pid}/status").read_text()
    except OSError:
        return None
    return " ".join(re.findall(r"ctxt_switches:\t(\d+)", status)) or None
