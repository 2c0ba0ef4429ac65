"""ProbeRing: what sparse steps show, kept on the model's device and copied out without a wait."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from inferx.paths.probe import StepProbe

STEPS = 64  # that the ring holds
COPY_EVERY = 8  # steps; divides STEPS
FIGURES = 4  # of a site: masked share, union density, masked energy, number of broken inputs


def figures(x: Tensor, dropped: Tensor) -> Tensor:
    """What sites of one width show: x and dropped: [num_sites, num_tokens, channels], dropped true
    where a channel is masked -> [num_sites, FIGURES] float32. The reference of the kernels' probe.
    """
    total, kept = (
        torch.linalg.vector_norm(tensor, dim=-1, dtype=torch.float32).square()
        for tensor in (x, x.masked_fill(dropped, 0))
    )
    energy = 1 - kept / total.clamp_min(torch.finfo(torch.float32).tiny)
    columns = [
        dropped.mean((1, 2), dtype=torch.float32),
        1 - dropped.all(1).mean(1, dtype=torch.float32),
        energy.mean(1),
        (~((total > 0) & total.isfinite())).sum(1),
    ]
    return torch.stack(columns, 1)


class _Step(NamedTuple):
    step: int
    sparsity: float
    num_tokens: int


class _Copy(NamedTuple):
    """On its way to the host."""

    figures: Tensor  # [COPY_EVERY, num_sites, FIGURES]
    steps: list[_Step]
    event: torch.cuda.Event | None

    @property
    def has_come(self) -> bool:
        return self.event is None or self.event.query()


class ProbeRing:
    """A forward pass writes to `current`: [num_sites, FIGURES] float32; then come `push`, which
    may be part of a CUDA graph, and `pushed`, which is the host's part."""

    def __init__(self, num_sites: int, device: torch.device) -> None:
        self.current = torch.zeros(num_sites, FIGURES, device=device)
        self._ring = torch.zeros(STEPS, num_sites, FIGURES, device=device)
        self._cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self._steps: list[_Step] = []  # since the last copy
        self._num_copies = 0
        self._copies: deque[_Copy] = deque()

    def push(self) -> None:
        """Puts `current` into the ring: work of the device alone, at addresses that stay."""
        self._ring.index_copy_(0, self._cursor, self.current.unsqueeze(0))
        self._cursor.add_(1).remainder_(STEPS)

    def pushed(self, step: int, sparsity: float, num_tokens: int) -> None:
        """Says which step `push` belonged to; every COPY_EVERY of them leave the device."""
        self._steps.append(_Step(step, sparsity, num_tokens))
        if len(self._steps) < COPY_EVERY:
            return
        start = COPY_EVERY * self._num_copies % STEPS
        self._copies.append(self._copy(self._ring[start : start + COPY_EVERY]))
        self._num_copies += 1
        self._steps = []

    def _copy(self, figures: Tensor) -> _Copy:
        if figures.device.type != "cuda":
            return _Copy(figures.clone(), self._steps, None)
        host = torch.empty(figures.shape, pin_memory=True)
        host.copy_(figures, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return _Copy(host, self._steps, event)

    def drain(self) -> list[StepProbe]:
        """What has come since the last call. Never waits."""
        found = []
        while self._copies and self._copies[0].has_come:
            copy = self._copies.popleft()
            for step, figures in zip(copy.steps, copy.figures.numpy(), strict=True):
                shares, unions, energies, broken = figures.T
                found.append(StepProbe(*step, shares, unions, energies, int(broken.sum())))
        return found
