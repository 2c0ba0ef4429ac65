"""What the probe says of a sparse step, on the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Array = np.ndarray


class StepProbe(NamedTuple):
    """Arrays of [num_sites] float32, means over the step's tokens but for the union."""

    step: int
    sparsity: float  # the target of the row whose thresholds masked it
    num_tokens: int
    masked_shares: Array  # of channels
    union_densities: Array  # the share of channels that some token keeps
    masked_energies: Array  # rho
    num_broken: int  # inputs of a token, over all sites, that are not finite or zeros alone
