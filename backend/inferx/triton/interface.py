"""The tensor interface that every InferX model has, and the configuration completed with it.

Names, types and shapes are those of the existing Triton backend for vLLM, so that its clients work
unchanged; `input_ids` and `num_cached_tokens` are ours.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from inferx.errors import ConfigError

TEXT_INPUT = "text_input"
INPUT_IDS = "input_ids"
SAMPLING_PARAMETERS = "sampling_parameters"

TEXT_OUTPUT = "text_output"
FINISH_REASON = "finish_reason"
CUMULATIVE_LOGPROB = "cumulative_logprob"
LOGPROBS = "logprobs"
NUM_INPUT_TOKENS = "num_input_tokens"
NUM_OUTPUT_TOKENS = "num_output_tokens"
NUM_CACHED_TOKENS = "num_cached_tokens"


class _Tensor(NamedTuple):
    name: str
    data_type: str
    dims: list[int]
    optional: bool = True


_INPUTS = (
    # Optional for Triton, since input_ids may stand in for it.
    _Tensor(TEXT_INPUT, "TYPE_STRING", [1]),
    _Tensor(INPUT_IDS, "TYPE_INT32", [-1]),
    _Tensor("stream", "TYPE_BOOL", [1]),
    _Tensor(SAMPLING_PARAMETERS, "TYPE_STRING", [1]),
    _Tensor("exclude_input_in_output", "TYPE_BOOL", [1]),
    _Tensor("return_finish_reason", "TYPE_BOOL", [1]),
    _Tensor("return_cumulative_logprob", "TYPE_BOOL", [1]),
    _Tensor("return_logprobs", "TYPE_BOOL", [1]),
    _Tensor("return_num_input_tokens", "TYPE_BOOL", [1]),
    _Tensor("return_num_output_tokens", "TYPE_BOOL", [1]),
    _Tensor("return_num_cached_tokens", "TYPE_BOOL", [1]),
)
_OUTPUTS = (
    _Tensor(TEXT_OUTPUT, "TYPE_STRING", [-1]),
    _Tensor(FINISH_REASON, "TYPE_STRING", [-1]),
    _Tensor(CUMULATIVE_LOGPROB, "TYPE_FP32", [-1]),
    _Tensor(LOGPROBS, "TYPE_STRING", [-1]),
    _Tensor(NUM_INPUT_TOKENS, "TYPE_UINT32", [1]),
    _Tensor(NUM_OUTPUT_TOKENS, "TYPE_UINT32", [-1]),
    _Tensor(NUM_CACHED_TOKENS, "TYPE_UINT32", [1]),
)


def complete_config(config: Any) -> Any:
    """Fills `config`, a pb_utils.ModelConfig, and returns it.

    Models stream (decoupled) unless config.pbtxt says otherwise. Raises ConfigError.
    """
    given = config.as_dict()
    if given["max_batch_size"]:
        raise ConfigError(
            f"config.pbtxt: max_batch_size is {given['max_batch_size']}: InferX batches requests "
            "by itself, token by token; remove the line or set it to 0"
        )
    config.set_max_batch_size(0)
    for tensor in _INPUTS:
        config.add_input(tensor._asdict())
    for tensor in _OUTPUTS:
        config.add_output({key: value for key, value in tensor._asdict().items() if key in _BASIC})
    policy = given.get("model_transaction_policy", {"decoupled": True})
    config.set_model_transaction_policy({"decoupled": policy.get("decoupled", False)})
    return config


_BASIC = ("name", "data_type", "dims")
