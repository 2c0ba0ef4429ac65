"""Random numbers that depend on nothing but (seed, position): Philox4x32-10.

A counter-based generator (Salmon et al., SC'11) keeps no state: a request draws the same numbers
whoever shares its batch, and again after a preemption. The key is the seed's 64 bits, low word
first; the counter's first word is the position of the token to sample, the others are 0; the
first of the four output words is the draw. Triton's `tl.philox(seed, position, 0, 0, 0)` is the
same function.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox(key: Tensor, counter: Tensor) -> Tensor:
    """Philox4x32-10. key: [2, n], counter: [4, n], words in int64; returns 4 words: [4, n]."""
    multipliers = key.new_tensor(_MULTIPLIERS).unsqueeze(1)
    key_steps = key.new_tensor(_KEY_STEPS).unsqueeze(1)
    even, odd = counter[0::2], counter[1::2]  # words (0, 2) and (1, 3)
    for _ in range(_ROUNDS):
        product = even * multipliers  # wraps around at 64 bits, all of which are used
        high = (product >> 32 & _MASK).flip(0)
        even, odd = high ^ odd ^ key, product.bitwise_and_(_MASK).flip(0)
        key = key + key_steps & _MASK
    return torch.stack((even, odd), dim=1).flatten(0, 1)


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """Uniform float32 numbers in [0, 1), multiples of 2^-23. seeds, positions: [n] int64.

    With 23 bits, the number times any positive fp32 total stays below the total.
    """
    key = torch.stack((seeds & _MASK, seeds >> 32 & _MASK))
    counter = torch.zeros(4, len(positions), dtype=torch.int64, device=positions.device)
    counter[0] = positions
    return (philox(key, counter)[0] >> 9).float().mul_(2.0**-23)
