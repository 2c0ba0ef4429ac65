"""The sampler whose draw is a kernel: rows of any settings together, and nothing asks the host."""

from __future__ import annotations

from inferx_kernels.triton.sampling import sample
from torch import Tensor

from inferx.model.input_batch import Array
from inferx.model.sampler import Sampler


class GpuSampler(Sampler):
    def choose(self, logits: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """The next tokens: [num_rows] int64, of logits that need no edits.

        logits: [num_rows, vocab] float32; slots: [num_rows], a negative one for rows that nobody
        has; positions: [num_rows], of the tokens to choose. May be captured in a graph.
        """
        places = slots.long().clamp_(min=0)
        temperature, min_p, top_p = self._floats[:3].index_select(1, places)
        top_k, seeds = self._integers[:2].index_select(1, places)
        return sample(logits, temperature, top_k, top_p, min_p, seeds, positions.long())

    def _choose(self, logits: Tensor, slots: Array, positions: Array, features: Array) -> Tensor:
        return self.choose(logits, self._upload(slots), self._upload(positions))
