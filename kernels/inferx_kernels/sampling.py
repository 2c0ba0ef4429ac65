"""From logits to tokens: penalties, filters, the draw, and log-probabilities.

Every row is treated alone: a row of NaN yields some token and leaves the others as they are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from inferx_kernels.invariance import by_tiles

_TOP_P_PREFIX = 256  # tokens looked at first; as a rule they hold the nucleus
_TOP_P_GROWTH = 16


def apply_penalties(
    logits: Tensor,
    token_ids: Tensor,
    num_prompt_tokens: Tensor,
    num_tokens: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Lowers in place the logits of tokens that occurred already.

    logits: [num_rows, vocab] float32; token_ids: [num_rows, max_tokens] int64, of which the first
    num_tokens[i] count. All others are [num_rows]. Repetition (arXiv 1909.05858) divides positive
    and multiplies negative logits of tokens in prompt or output; presence is subtracted once, and
    frequency once an occurrence, for tokens in the output.
    """
    places = torch.arange(token_ids.shape[1], device=logits.device)
    counted = (places < num_tokens.unsqueeze(1)).float()
    in_output = counted * (places >= num_prompt_tokens.unsqueeze(1))
    occurred = torch.zeros_like(logits).scatter_add_(1, token_ids, counted) > 0
    outputs = torch.zeros_like(logits).scatter_add_(1, token_ids, in_output)

    factor = repetition.unsqueeze(1)
    penalized = torch.where(logits > 0, logits / factor, logits * factor)
    logits.copy_(torch.where(occurred, penalized, logits))
    logits.sub_(outputs * frequency.unsqueeze(1)).sub_((outputs > 0) * presence.unsqueeze(1))


def filter_min_p(probs: Tensor, min_p: Tensor) -> None:
    """Zeroes in place what is less likely than min_p times the likeliest.

    probs: [num_rows, vocab] float32; min_p: [num_rows].
    """
    _drop_below(probs, probs.amax(-1) * min_p)


def filter_top_k(probs: Tensor, top_k: Tensor) -> None:
    """Zeroes in place all but the top_k likeliest tokens, and those that tie with the last.

    probs: [num_rows, vocab] float32; top_k: [num_rows] int64, at least 1; more than vocab is all.
    """
    top_k = top_k.clamp(max=probs.shape[1])
    likeliest = probs.topk(int(top_k.max())).values
    _drop_below(probs, likeliest.gather(1, top_k.unsqueeze(1) - 1).squeeze(1))


def filter_top_p(probs: Tensor, top_p: Tensor) -> None:
    """Keeps the fewest likeliest tokens that hold top_p of the mass (arXiv 1904.09751), and those
    that tie with the last; zeroes the others in place.

    probs: [num_rows, vocab] float32, any positive total; top_p: [num_rows] in (0, 1).
    """
    wanted = top_p * by_tiles(lambda rows: rows.sum(-1), probs)
    threshold = torch.zeros_like(wanted)
    open_rows = torch.arange(len(probs), device=probs.device)
    size = _TOP_P_PREFIX
    while len(open_rows):
        size = min(size, probs.shape[1])
        likeliest = probs[open_rows].topk(size).values
        mass = likeliest.cumsum(-1)
        goal = wanted[open_rows].unsqueeze(1)
        last_kept = (mass < goal).sum(-1, keepdim=True)
        found = (last_kept < size).squeeze(1)
        last_kept.clamp_(max=size - 1)
        threshold[open_rows] = likeliest.gather(1, last_kept).squeeze(1)
        if size == probs.shape[1]:
            break
        open_rows = open_rows[~found]
        size *= _TOP_P_GROWTH
    _drop_below(probs, threshold)


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """The first token at which the running sum of probabilities exceeds uniform * total.

    probs: [num_rows, vocab] float32, any positive total; uniforms: [num_rows] in [0, 1).
    Returns [num_rows] int64. A token of probability 0 is never drawn.
    """
    running = probs.cumsum(-1)
    target = running[:, -1:] * uniforms.unsqueeze(1)
    drawn = torch.searchsorted(running, target, right=True).squeeze(1)
    return drawn.clamp_(max=probs.shape[1] - 1)


class LogprobsTensors(NamedTuple):
    logprobs: Tensor  # [num_rows] float32, of the chosen tokens
    ranks: Tensor  # [num_rows] int64, of the chosen tokens, from 1
    top_ids: Tensor  # [num_rows, k] int64, likeliest first
    top_logprobs: Tensor  # [num_rows, k] float32


def chosen_logprobs(logits: Tensor, token_ids: Tensor, k: int) -> LogprobsTensors:
    """Log-probabilities of the chosen tokens and of the k likeliest (k up to vocab, or 0).

    logits: [num_rows, vocab] float32; token_ids: [num_rows] int64.
    """
    total = by_tiles(lambda rows: rows.logsumexp(-1, keepdim=True), logits)
    chosen = logits.gather(1, token_ids.unsqueeze(1))
    top_logits, top_ids = logits.topk(k)
    return LogprobsTensors(
        logprobs=(chosen - total).squeeze(1),
        ranks=(logits > chosen).sum(-1) + 1,
        top_ids=top_ids,
        top_logprobs=top_logits - total,
    )


def _drop_below(probs: Tensor, threshold: Tensor) -> None:
    probs.masked_fill_(probs < threshold.unsqueeze(1), 0.0)
