"""How long a request may become, by the model's length and the pool's pages."""

from __future__ import annotations

import msgspec

from inferx.engine.messages import EngineRequest
from inferx.engine.request import Request
from inferx.errors import InvalidArgument
from inferx.memory.pool import PagePool


def with_max_tokens(request: EngineRequest, pool: PagePool, max_model_len: int) -> EngineRequest:
    """Without a limit of its own, a request may grow until the model or the pool is full."""
    if request.sampling.max_tokens is not None:
        return request
    in_pool = pool.num_blocks * pool.block_size + 1  # the last needs no page
    room = min(max_model_len, in_pool) - len(request.prompt_token_ids)
    sampling = msgspec.structs.replace(request.sampling, max_tokens=max(1, room))
    return msgspec.structs.replace(request, sampling=sampling)


def check_fits(request: Request, pool: PagePool, max_model_len: int) -> None:
    """Raises InvalidArgument for a request that could never be served to its end."""
    num_prompt, max_tokens = request.num_prompt_tokens, request.sampling.max_tokens
    if num_prompt == 0:
        raise InvalidArgument("the prompt is empty: expected at least one token")
    if num_prompt >= max_model_len:
        raise InvalidArgument(
            f"the prompt has {num_prompt} tokens and the model takes {max_model_len}, "
            f"output included: shorten the prompt"
        )
    num_pages = pool.pages_for(request.max_num_tokens - 1)  # the last is never computed
    if num_pages > pool.num_blocks:
        raise InvalidArgument(
            f"the prompt's {num_prompt} tokens with max_tokens {max_tokens} need {num_pages} "
            f"KV pages of {pool.block_size} tokens and there are {pool.num_blocks}: shorten the "
            "prompt or lower max_tokens"
        )
