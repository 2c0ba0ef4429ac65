"""ProbeRing: what sparse steps show, kept on the model's device and copied out without a wait."""

from __future__ import annotations

from typing import NamedTuple

import torch
from inferx_kernels.sparse import FIGURES
from torch import Tensor

from inferx.model.upload import Download
from inferx.paths.probe import StepProbe

COPY_EVERY = 8  # steps


def figures(x: Tensor, dropped: Tensor) -> Tensor:
    """What sites of one width show: x and dropped: [num_sites, num_tokens, channels], dropped true
    where a channel is masked -> [num_sites, FIGURES] float32. The same as the kernels'
    `summarize_counts` of what their products count.
    """
    total, kept = (
        torch.linalg.vector_norm(tensor, dim=-1, dtype=torch.float32).square()
        for tensor in (x, x.masked_fill(dropped, 0))
    )
    is_sound = (total > 0) & total.isfinite()
    energy = torch.where(is_sound, 1 - kept / total, 0.0)
    columns = [
        dropped.mean((1, 2), dtype=torch.float32),
        1 - dropped.all(1).mean(1, dtype=torch.float32),
        energy.mean(1),
        (~is_sound).sum(1),
    ]
    return torch.stack(columns, 1)


class _Step(NamedTuple):
    step: int
    sparsity: float
    num_tokens: int


class ProbeCopy(NamedTuple):
    """On its way to the host."""

    download: Download  # [COPY_EVERY, num_sites, FIGURES]
    steps: list[_Step]

    def read(self) -> list[StepProbe]:
        """Waits for it."""
        [copied] = self.download.wait()
        found = []
        for step, figures in zip(self.steps, copied.numpy(), strict=True):
            shares, unions, energies, broken = figures.T
            found.append(StepProbe(*step, shares, unions, energies, int(broken.sum())))
        return found


class ProbeRing:
    """A forward pass writes to `current`: [num_sites, FIGURES] float32; then comes `push`.

    `take` comes before a step is launched, and its copies are read with that step's results. By
    then the stream has passed them, so that nobody waits, and which step's results they come with
    depends on the order of the steps alone: what is decided by them is so every time.
    """

    def __init__(self, num_sites: int, device: torch.device) -> None:
        self.current = torch.zeros(num_sites, FIGURES, device=device)
        # Filled again while a copy is under way: on the device that comes behind the copy
        self._ring = torch.zeros(COPY_EVERY, num_sites, FIGURES, device=device)
        self._steps: list[_Step] = []  # since the last copy
        self._copies: list[ProbeCopy] = []  # that nobody has taken

    def push(self, step: int, sparsity: float, num_tokens: int) -> None:
        """Keeps `current`, which is this step's; every COPY_EVERY steps leave the device."""
        self._ring[len(self._steps)].copy_(self.current)
        self._steps.append(_Step(step, sparsity, num_tokens))
        if len(self._steps) == COPY_EVERY:
            self._copies.append(ProbeCopy(Download([self._ring]), self._steps))
            self._steps = []

    def take(self) -> list[ProbeCopy]:
        """The copies that were made since the last call."""
        taken, self._copies = self._copies, []
        return taken
