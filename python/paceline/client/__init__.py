"""Typed clients of a served model over gRPC: `Client`, and `AsyncClient` for asyncio.

    from paceline.client import Client

    with Client("127.0.0.1:8001") as client:
        print(client.generate("Once upon a time", max_tokens=32).text)
        for piece in client.stream([{"role": "user", "content": "Hello!"}]):
            print(piece.text, end="", flush=True)

Only grpcio and protobuf are imported; no torch.
"""

from __future__ import annotations

from paceline.client.admin import Admin
from paceline.client.answers import Completion, FinishReason, Piece, TokenLogprob, Usage
from paceline.client.async_admin import AsyncAdmin
from paceline.client.asynchronous import AsyncClient
from paceline.client.errors import (
    CancelledError,
    ForbiddenError,
    InvalidRequestError,
    OverloadedError,
    PacelineError,
    ServerError,
    UnauthorizedError,
    UnavailableError,
    UnknownModelError,
)
from paceline.client.operations import (
    BlockRemoved,
    BlockStored,
    CacheCleared,
    CacheEvent,
    CacheEvents,
    FleetState,
    Gate,
    PauseMode,
    RankLoad,
)
from paceline.client.options import GenerationOptions, Prompt, StructuredOutputs
from paceline.client.synchronous import Client

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncClient",
    "BlockRemoved",
    "BlockStored",
    "CacheCleared",
    "CacheEvent",
    "CacheEvents",
    "CancelledError",
    "Client",
    "Completion",
    "FinishReason",
    "FleetState",
    "ForbiddenError",
    "Gate",
    "GenerationOptions",
    "InvalidRequestError",
    "OverloadedError",
    "PacelineError",
    "PauseMode",
    "Piece",
    "Prompt",
    "RankLoad",
    "ServerError",
    "StructuredOutputs",
    "TokenLogprob",
    "UnauthorizedError",
    "UnavailableError",
    "UnknownModelError",
    "Usage",
]
