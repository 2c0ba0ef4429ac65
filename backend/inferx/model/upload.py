"""Copies between host and device that nobody waits for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def upload(values: np.ndarray, device: torch.device) -> Tensor:
    """A copy on the device, in stream order. PyTorch keeps the pinned memory until it has left."""
    return _pinned(torch.from_numpy(values), device).to(device, non_blocking=True)


def upload_int32(values: np.ndarray, device: torch.device) -> Tensor:
    return upload(values.astype(np.int32), device)


def upload_into(target: Tensor, values: np.ndarray) -> None:
    """Overwrites `target`, of the same shape and type."""
    target.copy_(_pinned(torch.from_numpy(values), target.device), non_blocking=True)


class Download:
    """Copies of tensors on their way to the host."""

    def __init__(self, tensors: list[Tensor]) -> None:
        """In stream order, after what the current stream has been given so far."""
        on_gpu = tensors[0].is_cuda
        self._tensors = [
            torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_gpu) for tensor in tensors
        ]
        for target, tensor in zip(self._tensors, tensors, strict=True):
            target.copy_(tensor, non_blocking=True)
        self._arrived = torch.cuda.Event() if on_gpu else None
        if self._arrived is not None:
            self._arrived.record()

    def wait(self) -> list[Tensor]:
        """The copies, once they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensors


def _pinned(values: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda":
        return values
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return pinned.copy_(values)
