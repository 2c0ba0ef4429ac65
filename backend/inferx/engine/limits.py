"""What a request may ask of the loaded engine, checked before it is sent there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from inferx.engine.messages import EngineInfo
from inferx.engine.sampling import SamplingParams
from inferx.errors import InvalidArgument


def check_request(
    prompt_token_ids: Sequence[int], params: Sequence[SamplingParams], info: EngineInfo
) -> None:
    """Raises InvalidArgument, with both numbers, where a choice goes beyond the engine's limits."""
    if not prompt_token_ids:
        raise InvalidArgument("the prompt is empty: it needs at least one token")
    for choice in params:
        _check_length(len(prompt_token_ids), choice.max_tokens, info)
    _check_ids("the prompt", prompt_token_ids, info)  # none of a prompt that is far too long
    for choice in params:
        _check_sparsity(choice.sparsity, info)
        _check_ids("stop_token_ids", choice.stop_token_ids, info)
        _check_ids("logit_bias", choice.logit_bias, info)
        _check_ids("bad_words", chain.from_iterable(choice.bad_words_token_ids), info)


def _check_length(num_prompt_tokens: int, max_tokens: int | None, info: EngineInfo) -> None:
    if max_tokens is None:
        if num_prompt_tokens >= info.max_model_len:
            raise InvalidArgument(
                f"the prompt has {num_prompt_tokens} tokens: the model takes at most "
                f"{info.max_model_len} tokens, of prompt and output together"
            )
        return
    if num_prompt_tokens + max_tokens > info.max_model_len:
        raise InvalidArgument(
            f"the prompt has {num_prompt_tokens} tokens and max_tokens is {max_tokens}: "
            f"together {num_prompt_tokens + max_tokens}, but the model takes at most "
            f"{info.max_model_len}"
        )


def _check_sparsity(sparsity: str | float | None, info: EngineInfo) -> None:
    """A ratio has to be one that the model is calibrated for; 0 leaves nothing out."""
    if sparsity is None or isinstance(sparsity, str) or sparsity == 0:
        return
    path = info.sparse_path
    if path is None:
        raise InvalidArgument(
            f"sparsity is {sparsity:g}: this model is served dense; leave it out, or set sparsity "
            "in the model's settings"
        )
    if path.index_of(sparsity) is None:
        known = ", ".join(f"{target:g}" for target in path.targets)
        raise InvalidArgument(
            f"sparsity is {sparsity:g}: this model is calibrated for {known}; name one of them, "
            "'auto' or 'off'"
        )


def _check_ids(where: str, token_ids: Iterable[int], info: EngineInfo) -> None:
    ids = list(token_ids)
    if not ids:
        return
    for token_id in (min(ids), max(ids)):
        if not 0 <= token_id < info.vocab_size:
            raise InvalidArgument(
                f"{where} holds the token id {token_id}: expected ids from 0 to "
                f"{info.vocab_size - 1}, as the vocabulary has {info.vocab_size} tokens"
            )
