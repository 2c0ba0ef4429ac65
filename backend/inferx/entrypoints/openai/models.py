"""The models that the endpoint serves, each by its name in Triton."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from inferx_client import AsyncClient

from inferx.entrypoints.openai.errors import ApiError
from inferx.text.tokenizer import Tokenizer

_PING_INTERVAL = 5.0  # seconds; our tritonserver allows it


class ServedModel(NamedTuple):
    name: str
    tokenizer: Tokenizer
    client: AsyncClient


class Models:
    """All of them over one gRPC channel."""

    def __init__(self, grpc_url: str, tokenizers: Mapping[str, Tokenizer]) -> None:
        """For use within one event loop."""
        first, *others = tokenizers
        self._owner = AsyncClient(grpc_url, first, ping_interval=_PING_INTERVAL)
        clients = [self._owner, *(self._owner.for_model(name) for name in others)]
        self._models = {
            client.model: ServedModel(client.model, tokenizers[client.model], client)
            for client in clients
        }

    @property
    def names(self) -> list[str]:
        return list(self._models)

    def get(self, name: str) -> ServedModel:
        """Raises ApiError."""
        if name not in self._models:
            raise ApiError(
                404,
                f"there is no model {name[:80]!r}: this server has {', '.join(self._models)}",
                param="model",
                code="model_not_found",
            )
        return self._models[name]

    async def close(self) -> None:
        await self._owner.close()
