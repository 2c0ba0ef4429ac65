"""The operations that models and the runner call, for tensors of any device.

Each is the PyTorch reference, which is also the oracle of the kernel in `inferx_kernels.triton`.
Kernels fuse several operations and depend on how many tokens a step has, so the models that they
serve on a GPU call them directly.
"""

from __future__ import annotations

from inferx_kernels.activation import silu_mul
from inferx_kernels.attention import paged_attention
from inferx_kernels.attention_plan import AttentionPlan, plan_attention
from inferx_kernels.fp8 import concatenate, quantize_weight, requantize_weight
from inferx_kernels.invariance import use_batch_invariant
from inferx_kernels.kv_cache import copy_pages, write_kv
from inferx_kernels.linear import PackedLinear, column_norms, linear, pack_linear
from inferx_kernels.norm import add_rms_norm, rms_norm
from inferx_kernels.philox import uniform
from inferx_kernels.rope import Rotation, apply_rope, plan_rope
from inferx_kernels.sampling import (
    LogprobsTensors,
    apply_penalties,
    chosen_logprobs,
    draw,
    filter_min_p,
    filter_top_k,
    filter_top_p,
)

__all__ = [
    "AttentionPlan",
    "LogprobsTensors",
    "PackedLinear",
    "Rotation",
    "add_rms_norm",
    "apply_penalties",
    "apply_rope",
    "chosen_logprobs",
    "column_norms",
    "concatenate",
    "copy_pages",
    "draw",
    "filter_min_p",
    "filter_top_k",
    "filter_top_p",
    "linear",
    "pack_linear",
    "paged_attention",
    "plan_attention",
    "plan_rope",
    "quantize_weight",
    "requantize_weight",
    "rms_norm",
    "silu_mul",
    "uniform",
    "use_batch_invariant",
    "write_kv",
]
