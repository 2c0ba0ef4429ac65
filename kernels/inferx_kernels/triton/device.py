"""What the kernels share: the device's traits, and programmatic dependent launch.

With programmatic dependent launch a kernel starts while the one before it still runs. Kernels that
are launched with it follow two rules (CUDA programming guide, "Programmatic Dependent Launch"):

- before `wait_previous` they read only what no kernel of the running step writes: weights, page
  numbers, work lists;
- every program reaches `wait_previous`, so that "the kernel before me is complete" holds for all
  kernels before, and writes global memory only after that.

A step has to begin with an ordinary kernel, as PyTorch's are: it waits for all that prepared the
step's inputs, and the chain starts behind it.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@functools.cache
def supports_pdl(device_index: int) -> bool:
    """True where the device has grid dependency control (compute capability 9.0 and later)."""
    return not INTERPRETED.value and torch.cuda.get_device_capability(device_index) >= (9, 0)


def use_pdl(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and supports_pdl(tensor.device.index)


@functools.cache
def num_multiprocessors(device: torch.device) -> int:
    """1 where there is no GPU: Triton's interpreter runs one program after the other."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
def matmul(a, b, acc):
    """acc + a @ b, accumulated in fp32."""
    if INTERPRETED:  # Triton's interpreter multiplies bf16 as if it were integers
        return acc + tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, acc)


@triton.jit
def to_e4m3(x):
    """fp32 to e4m3, to the nearest even, saturating: 448 is its largest number."""
    x = tl.clamp(x, -448.0, 448.0)
    if INTERPRETED:  # Triton's interpreter loses the carry of a mantissa that rounds up
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF
        x = bits.to(tl.float32, bitcast=True)
    return x.to(tl.float8e4nv)


@triton.jit
def launch_next(PDL: tl.constexpr):
    """Lets the next kernel of the stream start as programs of this one leave room."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_previous(PDL: tl.constexpr):
    """Returns once the previous kernel of the stream is complete and its writes are visible."""
    if PDL:
        gdc_wait()


@triton.jit
def load_pages(pages_ptr, first, end, BLOCK_SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The pages of tokens [first, first + BLOCK): one number where a page holds them all.

    Loops load a tile's pages an iteration ahead of its keys. Left to the compiler's pipelining,
    the pages would join the queue of the keys' asynchronous copies, which completes in order, and
    no key could be asked for before all keys ahead of it had come.
    """
    if BLOCK_SIZE % BLOCK == 0:
        page = tl.load(pages_ptr + first // BLOCK_SIZE, mask=first < end, other=0)
    else:
        tokens = first + tl.arange(0, BLOCK)
        page = tl.load(pages_ptr + tokens // BLOCK_SIZE, mask=tokens < end, other=0)
    return page
