"""The sparse path's products on a GPU: weights by input channel, thresholds, and their probe."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from inferx_kernels import ops
from inferx_kernels.linear import PackedLinear
from inferx_kernels.sparse import COUNTS, Counters, SparseLinear, Threshold, pack_sparse
from inferx_kernels.triton.sparse_linear import sparse_linear
from inferx_kernels.triton.sparse_summary import summarize_counts
from torch import Tensor

from inferx.model.activations import PROJECTIONS, Projection, Site
from inferx.model.layers import RMSNorm
from inferx.model.llama import Layer, LlamaForCausalLM
from inferx.sparse.calibration import Calibration
from inferx.sparse.products import itemsize, worthwhile
from inferx.sparse.serving import MAX_TOKENS, CalibratedRows

logger = logging.getLogger(__name__)


class MaskedProduct(NamedTuple):
    weight: SparseLinear
    threshold: Threshold
    counters: Counters

    def __call__(
        self, x: Tensor, *, norm: RMSNorm | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """Of x: [num_tokens, in_features], normed before, if a norm is given."""
        return sparse_linear(
            x,
            self.weight,
            self.threshold,
            norm_weight=None if norm is None else norm.weight,
            eps=0.0 if norm is None else norm.eps,
            residual=residual,
            counters=self.counters,
        )


Products = dict[Projection, MaskedProduct]  # of a layer: those that are masked


class GpuRows(CalibratedRows):
    """The rows of a GPU's runner: weights by input channel, and what their kernels count.

    Of the products that the calibrations mask, those stay dense that skipping half of the channels
    makes no faster, if that leaves any.
    """

    def __init__(
        self, calibrations: Sequence[Calibration], model: LlamaForCausalLM, device: torch.device
    ) -> None:
        """Raises ValueError where a product has no sparse kernel."""
        super().__init__(calibrations, model, device, _masked(calibrations, model))
        self._norms = ColumnNorms.of(calibrations, model, device)
        self._counts = torch.zeros(len(self._index), MAX_TOKENS, COUNTS, device=device)
        self._one_step = torch.zeros(1, dtype=torch.int32, device=device)
        self.layers = [self._products(index, layer) for index, layer in enumerate(model.layers)]
        masked = [product for layer in self.layers for product in layer.values()]
        self._masked = torch.tensor(
            [index for site, index in self._index.items() if site.projection in self._projections],
            device=device,
        )
        widths = [len(product.weight.weight) for product in masked]
        self._widths = torch.tensor(widths, dtype=torch.float32, device=device)
        self.probe.current[:, 1] = 1.0  # products that are not masked read all
        self.select(calibrations[0].target)

    def select(self, target: float) -> None:
        if self._norms is not None and target != self._selected:
            self._norms.select(target)
        super().select(target)

    def record(self, num_tokens: int) -> None:
        """Gives the probe what the last forward pass counted. Work of the device alone."""
        counts = self._counts[:, :num_tokens]
        summarize_counts(counts, self._widths, self._masked, self.probe.current)

    def _products(self, index: int, layer: Layer) -> Products:
        products = layer.products()
        return {
            name: self._masked_product(Site(index, name), products[name].packed)
            for name in PROJECTIONS
            if name in self._projections
        }

    def _masked_product(self, site: Site, packed: PackedLinear) -> MaskedProduct:
        own = slice(self._index[site], self._index[site] + 1)
        norms = None if self._norms is None else self._norms.in_use[site]
        return MaskedProduct(
            pack_sparse(packed, is_gated=site.projection == "gate_up"),
            Threshold(self.thresholds[own], norms),
            Counters(self._counts[own], self._one_step),
        )


def _masked(calibrations: Sequence[Calibration], model: LlamaForCausalLM) -> list[Projection]:
    calibrated = {name for one in calibrations for name in one.projections}
    faster = worthwhile(model.config, itemsize(model))
    masked = [name for name in PROJECTIONS if name in calibrated and name in faster]
    if not masked:
        return [name for name in PROJECTIONS if name in calibrated]
    for one in calibrations:
        dense = [name for name in one.projections if name not in masked]
        if dense:
            logger.warning(
                "sparsity %g was calibrated with %s masked too, which a GPU leaves dense: drift "
                "may be found where there is none; calibrate again with %s",
                one.target, " and ".join(dense), " ".join(f"--product {name}" for name in masked),
            )  # fmt: skip
    return masked


class ColumnNorms:
    """What weight-aware rows multiply magnitudes by; others, by ones. In one buffer, as graphs
    read them at the same addresses whatever the row."""

    def __init__(
        self, calibrations: Sequence[Calibration], model: LlamaForCausalLM, device: torch.device
    ) -> None:
        norms = {
            Site(index, name): ops.column_norms(product.packed).float()
            for index, layer in enumerate(model.layers)
            for name, product in layer.products().items()
        }
        aware = torch.cat(list(norms.values()))
        ones = torch.ones_like(aware)
        self._rows = {c.target: aware if c.scores == "weight-aware" else ones for c in calibrations}
        self._buffer = torch.empty_like(aware, device=device)
        pieces = self._buffer.split([len(norm) for norm in norms.values()])
        self.in_use = dict(zip(norms, pieces, strict=True))

    @classmethod
    def of(
        cls, calibrations: Sequence[Calibration], model: LlamaForCausalLM, device: torch.device
    ) -> ColumnNorms | None:
        """None where no row is weight-aware."""
        if all(calibration.scores == "magnitude" for calibration in calibrations):
            return None
        return cls(calibrations, model, device)

    def select(self, target: float) -> None:
        self._buffer.copy_(self._rows[target])
