"""Launching the kernels that run between matrix products, on whole rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from inferx_kernels.fp8 import Quantized
from inferx_kernels.rope import Rotation
from inferx_kernels.triton.device import use_pdl
from inferx_kernels.triton.rope import rope_write_kernel
from inferx_kernels.triton.row_ops import norm_kernel, silu_mul_kernel, silu_mul_quantize_kernel
from inferx_kernels.triton.sizes import cdiv, next_power_of_2
from inferx_kernels.triton.tuning import silu_mul_tile

_MANY_TOKENS = 1024  # from here on programs of several tokens leave enough of them to fill the chip


class LateScales(NamedTuple):
    """Scales that an fp8 product has yet to be multiplied with."""

    x: Tensor  # [num_tokens] fp32
    weight: Tensor  # [out_features] fp32


def _row_warps(width: int) -> int:
    return max(1, min(16, next_power_of_2(width) // 512))


def norm_rows(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
    late: LateScales | None = None,
    quantize: bool = False,
) -> Tensor | Quantized:
    """Adds the residual, if any, and norms; with `quantize`, to e4m3.

    x: [num_tokens, width]; residual: the same, updated in place; weight: [width], or None to
    quantize or scale alone. Returns [num_tokens, width] in x's dtype, or Quantized.
    """
    num_rows, width = x.shape
    out = torch.empty(
        num_rows, width, dtype=torch.float8_e4m3fn if quantize else x.dtype, device=x.device
    )
    scale = torch.empty(num_rows, dtype=torch.float32, device=x.device) if quantize else None
    pdl = use_pdl(x)
    norm_kernel[(num_rows,)](
        x,
        late.x if late else None,
        late.weight if late else None,
        residual,
        weight,
        out,
        scale,
        width,
        x.stride(0),
        eps,
        BLOCK=next_power_of_2(width),
        ADD=residual is not None,
        NORM=weight is not None,
        LATE=late is not None,
        QUANTIZE=quantize,
        PDL=pdl,
        num_warps=_row_warps(width),
        launch_pdl=pdl,
    )
    return out if scale is None else Quantized(out, scale)


def silu_mul_rows(
    gate_up: Tensor, *, late: LateScales | None = None, quantize: bool = False
) -> Tensor | Quantized:
    """silu(gate) * up of gate_up: [num_tokens, 2 * width], gate first; with `quantize`, to e4m3.

    Returns [num_tokens, width] in its dtype, or Quantized.
    """
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    block, num_warps = silu_mul_tile(width, quantize)
    num_blocks = cdiv(width, block)
    scales = (late.x, late.weight) if late else (None, None)
    pdl = use_pdl(gate_up)
    same = {"BLOCK": block, "LATE": late is not None, "PDL": pdl}
    launch = {"num_warps": num_warps, "launch_pdl": pdl}
    if not quantize:
        out = torch.empty(num_rows, width, dtype=gate_up.dtype, device=gate_up.device)
        silu_mul_kernel[(num_rows, num_blocks)](gate_up, *scales, out, width, **same, **launch)
        return out
    out = torch.empty(num_rows, width, dtype=torch.float8_e4m3fn, device=gate_up.device)
    scale = torch.empty(num_rows, dtype=torch.float32, device=gate_up.device)
    silu_mul_quantize_kernel[(num_rows,)](
        gate_up, *scales, out, scale, width, NUM_BLOCKS=num_blocks, **same, **launch
    )
    return Quantized(out, scale)


def rope_write(
    qkv: Tensor,
    rotation: Rotation,
    k_pages: Tensor,
    v_pages: Tensor,
    slot_mapping: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    late: LateScales | None = None,
) -> Tensor:
    """Norms and rotates q and k, writes k and v to their pages, and returns q.

    qkv: [num_tokens, num_heads + 2 * num_kv_heads, head_dim], any stride over tokens;
    slot_mapping: [num_tokens] int64, negative: nowhere; norm_weight:
    [num_heads + num_kv_heads, head_dim]. Returns [num_tokens, num_heads, head_dim].
    """
    num_tokens, all_heads, head_dim = qkv.shape
    num_kv_heads = k_pages.shape[2]
    num_heads = all_heads - 2 * num_kv_heads
    q = torch.empty(num_tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    block_h = min(16, next_power_of_2(all_heads))
    pdl = use_pdl(qkv)
    tokens = 4 if late is not None and num_tokens >= _MANY_TOKENS else 1
    rope_write_kernel[(cdiv(num_tokens, tokens), cdiv(all_heads, block_h))](
        qkv,
        late.x if late else None,
        late.weight if late else None,
        norm_weight,
        rotation.cos,
        rotation.sin,
        slot_mapping,
        q,
        k_pages,
        v_pages,
        num_tokens,
        qkv.stride(0),
        eps,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=next_power_of_2(head_dim),
        BLOCK_H=block_h,
        TOKENS=tokens,
        ROTARY_DIM=rotation.cos.shape[-1],
        NORM=norm_weight is not None,
        LATE=late is not None,
        FP8_PAGES=k_pages.dtype == torch.float8_e4m3fn,
        PDL=pdl,
        num_warps=4,
        launch_pdl=pdl,
    )
    return q
