"""Sampler: the next token of every row, each by its own request's settings.

What no row of a step asks for costs nothing. The order is vLLM's: bad words, logit_bias and
min_tokens, penalties; then, for rows that are not greedy, temperature, min_p, top_k, top_p and
the draw. Log-probabilities are those of the model's own logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntFlag, auto
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np
import torch
from inferx_kernels import ops
from torch import Tensor

from inferx.engine.plan import NewRow, TokenLogprobs
from inferx.engine.sampling import SamplingParams
from inferx.model.input_batch import Array, SamplingRows
from inferx.model.upload import upload

_BANNED = float("-inf")
_MOST_PENALIZED = 2**24  # logits at once: with their tokens they take some ten tensors of 64 MiB


class _Feature(IntFlag):
    RANDOM = auto()
    MIN_P = auto()
    TOP_K = auto()
    TOP_P = auto()
    BAD_WORDS = auto()
    LOGIT_BIAS = auto()
    MIN_TOKENS = auto()
    PENALTIES = auto()
    LOGPROBS = auto()

    @classmethod
    def of(cls, params: SamplingParams, vocab_size: int) -> _Feature:
        random = not params.greedy
        penalties = (params.presence_penalty, params.frequency_penalty)
        used = {
            cls.RANDOM: random,
            cls.MIN_P: random and params.min_p > 0,
            cls.TOP_K: random and 0 < params.top_k < vocab_size,
            cls.TOP_P: random and params.top_p < 1,
            cls.BAD_WORDS: bool(params.bad_words_token_ids),
            cls.LOGIT_BIAS: bool(params.logit_bias),
            cls.MIN_TOKENS: params.min_tokens > 0,
            cls.PENALTIES: params.repetition_penalty != 1 or penalties != (0, 0),
            cls.LOGPROBS: params.logprobs is not None,
        }
        return reduce(or_, (feature for feature, is_used in used.items() if is_used), cls(0))


_EDITS = _Feature.BAD_WORDS | _Feature.LOGIT_BIAS | _Feature.MIN_TOKENS | _Feature.PENALTIES
_FLOATS = (  # the sampling kernel takes the first three, and the first two integers
    "temperature", "min_p", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
_FILTERS = (
    (_Feature.MIN_P, "min_p", ops.filter_min_p),
    (_Feature.TOP_K, "top_k", ops.filter_top_k),
    (_Feature.TOP_P, "top_p", ops.filter_top_p),
)
_INTEGERS = ("top_k", "seed", "num_prompt_tokens")


class _BadWords(NamedTuple):
    """Token sequences: after the first tokens the last one is banned."""

    first: Tensor  # [num_words, longest - 1] int32, right-aligned, _ANY before shorter ones
    last: Tensor  # [num_words] int64


_ANY, _NONE = -1, -2  # what matches every token, and a place without one


class RowLogprobs(NamedTuple):
    """Log-probabilities of the rows that asked for them."""

    rows: Array
    counts: Array  # of likeliest tokens that a row asked for
    tensors: ops.LogprobsTensors


class Sampled(NamedTuple):
    token_ids: Tensor  # [num_rows] int64
    row_logprobs: RowLogprobs | None  # None: no row asked

    @property
    def logprobs(self) -> list[TokenLogprobs | None]:
        """An entry a row, read from the device."""
        entries: list[TokenLogprobs | None] = [None] * len(self.token_ids)
        if self.row_logprobs is not None:
            rows, counts, tensors = self.row_logprobs
            columns = (tensor.tolist() for tensor in tensors)
            for row, count, logprob, rank, ids, top in zip(rows, counts, *columns, strict=True):
                entries[row] = TokenLogprobs(logprob, rank, ids[:count], top[:count])
        return entries


class Sampler:
    """Keeps the settings of each slot's request, on the device where the rows are sampled."""

    def __init__(
        self, num_slots: int, *, vocab_size: int, eos_token_ids: Iterable[int], device: torch.device
    ) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._device = device
        self._features = np.zeros(num_slots, dtype=np.int64)
        self._output_at_least = np.zeros(num_slots, dtype=np.int64)  # a position
        self._num_logprobs = np.zeros(num_slots, dtype=np.int64)
        self._floats = torch.zeros(len(_FLOATS), num_slots, device=device)
        self._integers = torch.zeros(len(_INTEGERS), num_slots, dtype=torch.int64, device=device)
        self._settings = dict(zip(_FLOATS, self._floats, strict=True))
        self._settings |= zip(_INTEGERS, self._integers, strict=True)
        self._stop_ids: dict[int, Tensor] = {}
        self._biases: dict[int, tuple[Tensor, Tensor]] = {}
        self._bad_words: dict[int, _BadWords] = {}

    def add(self, rows: Sequence[NewRow]) -> None:
        """Requests take their slots. Token ids outside the vocabulary have no effect."""
        if not rows:
            return
        for row in rows:
            self._add(row)
        slots = self._upload(np.array([row.slot for row in rows]))
        floats = [[getattr(row.sampling, name) for row in rows] for name in _FLOATS]
        integers = [
            [max(0, min(row.sampling.top_k, self._vocab_size)) for row in rows],
            [_as_int64(row.seed) for row in rows],
            [row.num_prompt_tokens for row in rows],
        ]
        self._floats[:, slots] = self._upload(np.array(floats, dtype=np.float32))
        self._integers[:, slots] = self._upload(np.array(integers, dtype=np.int64))

    def _add(self, row: NewRow) -> None:
        slot, params = row.slot, row.sampling
        features = _Feature.of(params, self._vocab_size)
        self._features[slot] = features
        self._output_at_least[slot] = row.num_prompt_tokens + params.min_tokens
        self._num_logprobs[slot] = min(params.logprobs or 0, self._vocab_size)
        if features & _Feature.MIN_TOKENS:
            stop_ids = self._known({*self._eos_token_ids, *params.stop_token_ids})
            self._stop_ids[slot] = self._ids(stop_ids)
        if features & _Feature.LOGIT_BIAS:
            ids = self._known(params.logit_bias)
            values = [params.logit_bias[token] for token in ids]
            self._biases[slot] = self._ids(ids), self._upload(np.array(values, np.float32))
        if features & _Feature.BAD_WORDS:
            self._bad_words[slot] = self._padded(params.bad_words_token_ids)

    def _known(self, token_ids: Iterable[int]) -> list[int]:
        return [token for token in token_ids if 0 <= token < self._vocab_size]

    def _ids(self, token_ids: list[int]) -> Tensor:
        return self._upload(np.array(token_ids, np.int64))

    def _padded(self, words: Iterable[tuple[int, ...]]) -> _BadWords:
        known = [word for word in words if word and 0 <= word[-1] < self._vocab_size]
        width = max((len(word) for word in known), default=1) - 1
        first = [[_ANY] * (width - len(word) + 1) + list(word[:-1]) for word in known]
        return _BadWords(
            self._upload(np.array(first, np.int32).reshape(len(known), width)),
            self._ids([word[-1] for word in known]),
        )

    def sample(self, logits: Tensor, rows: SamplingRows, token_pool: Tensor) -> Sampled:
        """logits: [num_rows, vocab] float32, which it may change; token_pool: see InputBatch."""
        features = self._features[rows.slots]
        used = _Feature(int(np.bitwise_or.reduce(features)))
        if not used:
            return Sampled(logits.argmax(-1), None)

        wants_logprobs = np.flatnonzero(features & _Feature.LOGPROBS)
        model_logits = logits[self._upload(wants_logprobs)] if len(wants_logprobs) else logits
        if used & _EDITS:
            self._edit(logits, rows, features, token_pool)
        token_ids = self._choose(logits, *rows, features)
        if not len(wants_logprobs):
            return Sampled(token_ids, None)
        chosen = token_ids[self._upload(wants_logprobs)]
        counts = self._num_logprobs[rows.slots[wants_logprobs]]
        tensors = ops.chosen_logprobs(model_logits, chosen, int(counts.max()))
        return Sampled(token_ids, RowLogprobs(wants_logprobs, counts, tensors))

    def needs_reading(self, slots: Array) -> bool:
        """Whether any of the slots' requests edits its logits, or wants to be told of them."""
        return bool(np.any(self._features[slots] & (_EDITS | _Feature.LOGPROBS)))

    def _choose(self, logits: Tensor, slots: Array, positions: Array, features: Array) -> Tensor:
        """The likeliest token of greedy rows, a draw for the others: [num_rows] int64."""
        index = np.flatnonzero(features & _Feature.RANDOM)
        if len(index) == len(logits):
            return self._draw(logits, slots, positions, features)
        token_ids = logits.argmax(-1)
        if len(index):
            places = self._upload(index)
            token_ids[places] = self._draw(
                logits[places], slots[index], positions[index], features[index]
            )
        return token_ids

    def _edit(
        self, logits: Tensor, rows: SamplingRows, features: Array, token_pool: Tensor
    ) -> None:
        for row in np.flatnonzero(features & _Feature.BAD_WORDS):
            slot, position = rows.slots[row], rows.positions[row]
            words = self._bad_words[slot]
            width = words.first.shape[1]
            places = torch.arange(position - width, position, device=self._device)
            is_output = places >= self._settings["num_prompt_tokens"][slot]
            recent = torch.where(is_output, token_pool[slot, places.clamp(min=0)], _NONE)
            is_next = ((words.first == recent) | (words.first == _ANY)).all(-1)
            # Words that end alike are of one place: the lowest of their values stays
            values = torch.where(is_next, _BANNED, torch.inf).to(logits.dtype)
            logits[row].scatter_reduce_(0, words.last, values, "amin")
        for row in np.flatnonzero(features & _Feature.LOGIT_BIAS):
            ids, values = self._biases[rows.slots[row]]
            logits[row].index_add_(0, ids, values)
        too_short = rows.positions < self._output_at_least[rows.slots]
        for row in np.flatnonzero((features & _Feature.MIN_TOKENS > 0) & too_short):
            logits[row].index_fill_(0, self._stop_ids[rows.slots[row]], _BANNED)
        penalized = np.flatnonzero(features & _Feature.PENALTIES)
        at_once = max(1, _MOST_PENALIZED // max(self._vocab_size, token_pool.shape[1]))
        for start in range(0, len(penalized), at_once):
            index = penalized[start : start + at_once]
            some = self._take(logits, index)
            self._penalize(some, rows.slots[index], rows.positions[index], token_pool)
            self._put(logits, index, some)

    def _penalize(
        self, logits: Tensor, slots: Array, num_tokens: Array, token_pool: Tensor
    ) -> None:
        places = self._upload(slots)
        ops.apply_penalties(
            logits,
            token_pool[places, : int(num_tokens.max())].long(),
            self._settings["num_prompt_tokens"][places],
            self._upload(num_tokens),
            self._settings["repetition_penalty"][places],
            self._settings["presence_penalty"][places],
            self._settings["frequency_penalty"][places],
        )

    def _draw(self, logits: Tensor, slots: Array, positions: Array, features: Array) -> Tensor:
        """Tokens of rows that are not greedy: [num_rows] int64."""
        places = self._upload(slots)
        probs = (logits / self._settings["temperature"][places].unsqueeze(1)).softmax(-1)
        for feature, name, keep_likely in _FILTERS:
            index = np.flatnonzero(features & feature)
            if len(index):
                some = self._take(probs, index)
                keep_likely(some, self._settings[name][self._upload(slots[index])])
                self._put(probs, index, some)
        uniforms = ops.uniform(self._settings["seed"][places], self._upload(positions))
        return ops.draw(probs, uniforms)

    def _take(self, values: Tensor, index: Array) -> Tensor:
        """Rows to change: the tensor itself where they are all its rows, else copies."""
        return values if len(index) == len(values) else values[self._upload(index)]

    def _put(self, values: Tensor, index: Array, changed: Tensor) -> None:
        if changed is not values:
            values[self._upload(index)] = changed

    def _upload(self, values: Array) -> Tensor:
        return upload(values, self._device)


def _as_int64(seed: int) -> int:
    """The seed's low 64 bits as torch's int64 holds them."""
    return (seed + 2**63) % 2**64 - 2**63
