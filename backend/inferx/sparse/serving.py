"""The sparse path as a runner holds it: thresholds on the device, masked inputs, their probe."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import torch
from torch import Tensor

from inferx.model.activations import PROJECTIONS, Projection, Site
from inferx.model.llama import LlamaForCausalLM
from inferx.paths.costs import CostTable
from inferx.paths.info import SparsePath, SparseRow
from inferx.sparse.calibration import Calibration
from inferx.sparse.masking import Scoring, sites
from inferx.sparse.probe import ProbeRing, figures
from inferx.sparse.products import weight_shares
from inferx.sparse.statistics import Summary

MAX_TOKENS = 4  # of a step: the union of more tokens' channels is nearly all of them
_NOTHING = Summary(0.0, 0.0)


class CalibratedRows:
    """The rows that a runner can mask by, and the probe of what the selected one does.

    The thresholds in use lie in one buffer, so that a CUDA graph serves all rows.
    """

    def __init__(
        self,
        calibrations: Sequence[Calibration],
        model: LlamaForCausalLM,
        device: torch.device,
        projections: Collection[Projection] = PROJECTIONS,
    ) -> None:
        """calibrations: of this model, by rising target; projections: those that are masked."""
        self._calibrations = calibrations
        self._projections = projections
        self._index = {site: index for index, site in enumerate(sites(model.config))}
        self._rows = {
            c.target: torch.tensor([c.thresholds[site] for site in self._index], device=device)
            for c in calibrations
        }
        self.thresholds = torch.zeros(len(self._index), device=device)
        self.probe = ProbeRing(len(self._index), device)
        self._site_weights = [
            weight_shares(model.config)[site.projection] / model.config.num_layers
            for site in self._index
        ]
        self._selected: float | None = None

    def select(self, target: float) -> None:
        """The row that masks from now on."""
        if target != self._selected:
            self.thresholds.copy_(self._rows[target])
            self._selected = target

    def select_all(self, threshold: float) -> None:
        """One threshold for every site, until a row is selected."""
        self.thresholds.fill_(threshold)
        self._selected = None

    @property
    def targets(self) -> list[float]:
        return [calibration.target for calibration in self._calibrations]

    @property
    def union_density(self) -> float:
        """The share of the layers' weights that the last forward pass read. Waits for it."""
        return float(self.probe.current[:, 1].cpu() @ torch.tensor(self._site_weights))

    def described(self, costs: CostTable) -> SparsePath:
        return SparsePath(
            rows=[_row(calibration, self._projections) for calibration in self._calibrations],
            site_weights=self._site_weights,
            sites_per_layer=len(PROJECTIONS),
            max_tokens=MAX_TOKENS,
            costs=costs,
        )


class MaskedInputs(CalibratedRows):
    """Activations without what the selected row masks; `record` tells the probe of them."""

    def __init__(
        self,
        calibrations: Sequence[Calibration],
        model: LlamaForCausalLM,
        device: torch.device,
    ) -> None:
        super().__init__(calibrations, model, device)
        scorings = {c.scores: Scoring(model, c.scores) for c in calibrations}
        self._scorings = {c.target: scorings[c.scores] for c in calibrations}
        self._scoring = self._scorings[calibrations[0].target]
        self._seen: list[tuple[Tensor, Tensor]] = []  # input and what is dropped of it, by site
        self.select(calibrations[0].target)

    def select(self, target: float) -> None:
        super().select(target)
        self._scoring = self._scorings[target]

    def __call__(self, site: Site, x: Tensor) -> Tensor:
        """What is not a number is kept, as the dense product would show it."""
        dropped = self._scoring(site, x) <= self.thresholds[self._index[site]]
        self._seen.append((x, dropped))
        return x.masked_fill(dropped, 0)

    def record(self) -> None:
        """After a forward pass. All layers at once: a site alone takes a dozen small operations,
        as long as its product."""
        num_projections = len(PROJECTIONS)
        for start in range(num_projections):
            x, dropped = (
                torch.stack(seen) for seen in zip(*self._seen[start::num_projections], strict=True)
            )
            self.probe.current[start::num_projections] = figures(x, dropped)
        self._seen.clear()


def _row(calibration: Calibration, projections: Collection[Projection]) -> SparseRow:
    found = [
        site
        if site.projection in projections
        else msgspec.structs.replace(site, masked_share=_NOTHING, masked_energy=_NOTHING)
        for site in calibration.sites
    ]
    return SparseRow(
        target=calibration.target,
        growth=calibration.quality.growth,
        share_means=[site.masked_share.mean for site in found],
        share_deviations=[site.masked_share.deviation for site in found],
        energy_means=[site.masked_energy.mean for site in found],
        energy_deviations=[site.masked_energy.deviation for site in found],
    )
