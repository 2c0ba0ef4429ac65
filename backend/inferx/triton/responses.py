"""What is unsent of a request, as a pb_utils.InferenceResponse.

Building responses is most of what the stub's interpreter does under load, so the usual one, a text
without further outputs, is one tensor and nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inferx.errors import RequestError
from inferx.triton.interface import (
    CUMULATIVE_LOGPROB,
    FINISH_REASON,
    LOGPROBS,
    NUM_CACHED_TOKENS,
    NUM_INPUT_TOKENS,
    NUM_OUTPUT_TOKENS,
    TEXT_OUTPUT,
)
from inferx.triton.outbox import Choice, Outbox

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(outbox: Outbox, shown: Sequence[Choice]) -> Any:
    """A response with what is unsent of the choices `shown`; the others' elements are empty.

    Every output has one element a choice, in their order, but num_input_tokens and
    num_cached_tokens, which the first response alone has.
    """
    choices = outbox.choices
    outputs = [_strings(TEXT_OUTPUT, [c.text if c in shown else "" for c in choices])]
    returns = outbox.request.returns  # type: ignore[union-attr]
    if any(returns):
        if returns.finish_reason:
            reasons = [str(c.finish_reason if c in shown else None) for c in choices]
            outputs.append(_strings(FINISH_REASON, reasons))
        if returns.cumulative_logprob:
            sums = [c.cumulative_logprob for c in choices]
            outputs.append(pb_utils.Tensor(CUMULATIVE_LOGPROB, np.array(sums, np.float32)))
        if returns.logprobs:
            entries = [c.logprobs if c in shown else () for c in choices]
            outputs.append(_tensor(LOGPROBS, [b"[" + b",".join(one) + b"]" for one in entries]))
        if returns.num_input_tokens:
            outputs.append(_counts(NUM_INPUT_TOKENS, [outbox.num_input_tokens]))
        if returns.num_output_tokens:
            counts = [c.num_tokens if c in shown else 0 for c in choices]
            outputs.append(_counts(NUM_OUTPUT_TOKENS, counts))
        if returns.num_cached_tokens and outbox.last_sent is None:
            outputs.append(_counts(NUM_CACHED_TOKENS, [outbox.num_cached_tokens]))
    if len(shown) == 1 < len(choices) and _responses_have_parameters():
        return pb_utils.InferenceResponse(outputs, parameters={"choice": shown[0].index})
    return pb_utils.InferenceResponse(outputs)


@functools.cache
def _responses_have_parameters() -> bool:
    """Those of tritonserver 2.51 have none; there the position alone tells the choice."""
    return "parameters" in (pb_utils.InferenceResponse.__init__.__doc__ or "")


def error_response(error: RequestError) -> Any:
    """The text begins with the status: a stream's error and HTTP's `generate` bring text alone."""
    code = getattr(pb_utils.TritonError, error.status)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{error.status}: {error}", code))


def _strings(name: str, values: Sequence[str]) -> Any:
    return _tensor(name, [value.encode() for value in values])


def _tensor(name: str, values: Sequence[bytes]) -> Any:
    return pb_utils.Tensor(name, np.array(values, dtype=object))


def _counts(name: str, values: Sequence[int]) -> Any:
    return pb_utils.Tensor(name, np.array(values, np.uint32))
