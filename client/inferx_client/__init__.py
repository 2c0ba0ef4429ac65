"""A small client for InferX over Triton's gRPC interface, and a load generator.

It needs tritonclient[grpc] and nothing of the server's side.
"""

from inferx_client.client import AsyncClient, Client
from inferx_client.wire import Completion, Delta, InferenceError

__all__ = ["AsyncClient", "Client", "Completion", "Delta", "InferenceError"]
