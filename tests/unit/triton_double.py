"""Stand-ins for what only exists inside Triton's stub process: pb_utils' C++ half, and requests.

They keep what they are given and check what the real ones check.
"""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import numpy as np


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError(Exception):
    INVALID_ARG, UNAVAILABLE, CANCELLED, INTERNAL = (
        "INVALID_ARG",
        "UNAVAILABLE",
        "CANCELLED",
        "INTERNAL",
    )

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class InferenceResponse:
    """(output_tensors, error)"""

    def __init__(self, output_tensors: list[Tensor] | None = None, error: Any = None) -> None:
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors or []}
        self.error = error


class Sender:
    def __init__(self) -> None:
        self.sent: list[InferenceResponse] = []
        self.closed = False

    def send(self, response: InferenceResponse, flags: int = 0) -> None:
        assert not self.closed, "Response sender has been closed"
        self.sent.append(response)
        self.closed = flags == FINAL

    def texts(self) -> list[list[str]]:
        """Of every response but an error, an element a choice."""
        return [
            [text.decode() for text in response.outputs["text_output"]]
            for response in self.sent
            if response.error is None
        ]

    @property
    def error(self) -> tuple[str, str] | None:
        """Status and message; the text that is sent begins with the status."""
        error = self.sent[-1].error
        if error is None:
            return None
        status, _, message = str(error).partition(": ")
        assert status == error.code
        return status, message


class Request:
    """Inputs are given as Python values, and typed as Triton types them."""

    def __init__(
        self,
        *,
        parameters: dict[str, Any] | None = None,
        timeout: int = 0,
        request_id: str = "",
        **inputs: Any,
    ) -> None:
        self._inputs = [Tensor(name, _array(value)) for name, value in inputs.items()]
        self._parameters = json.dumps(parameters) if parameters is not None else ""
        self._timeout = timeout
        self._id = request_id
        self.cancelled = False
        self.sender = Sender()

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def parameters(self) -> str:
        return self._parameters

    def timeout(self) -> int:
        return self._timeout

    def request_id(self) -> str:
        return self._id

    def get_response_sender(self) -> Sender:
        return self.sender

    def is_cancelled(self) -> bool:
        assert not self.sender.closed, "asked after the final response: Triton would crash"
        return self.cancelled


def _array(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, bool):
        return np.array([value])
    if isinstance(value, dict):
        value = json.dumps(value)
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return np.array([value], dtype=object)
    return np.array(value, np.int32)


FINAL = 1


def install() -> None:
    """Makes `import triton_python_backend_utils` find these."""
    module = types.ModuleType("triton_python_backend_utils")
    lines = types.SimpleNamespace(written=[])
    vars(module).update(
        Tensor=Tensor,
        TritonError=TritonError,
        InferenceResponse=InferenceResponse,
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
        Logger=types.SimpleNamespace(
            lines=lines.written,
            **{f"log_{k}": lines.written.append for k in ("error", "warn", "info", "verbose")},
        ),
    )
    sys.modules.setdefault("triton_python_backend_utils", module)
