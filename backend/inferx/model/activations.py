"""What a forward pass can show of the inputs of its linear layers, and let be changed."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, get_args

from torch import Tensor

Projection = Literal["qkv", "o", "gate_up", "down"]  # linear layers with one input are one
PROJECTIONS: tuple[Projection, ...] = get_args(Projection)


class Site(NamedTuple):
    """One of a model's products."""

    layer: int
    projection: Projection

    def __str__(self) -> str:
        return f"layer {self.layer}, {self.projection}"


class Activations(Protocol):
    """Is called with the input of every product, in the order in which they are computed."""

    def __call__(self, site: Site, x: Tensor) -> Tensor:
        """x: [num_tokens, in_features], not to be written to. Returns what is multiplied in its
        place: x itself, or another tensor of its shape and dtype."""
        ...
