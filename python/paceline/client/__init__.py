"""Typed clients of a served model over gRPC: `Client`, and `AsyncClient` for asyncio.

    from paceline.client import Client

    with Client("127.0.0.1:8001") as client:
        print(client.generate("Once upon a time", max_tokens=32).text)
        for piece in client.stream([{"role": "user", "content": "Hello!"}]):
            print(piece.text, end="", flush=True)

Only grpcio and protobuf are imported; no torch.
"""

from __future__ import annotations

from paceline.client.answers import Completion, FinishReason, Piece, TokenLogprob, Usage
from paceline.client.asynchronous import AsyncClient
from paceline.client.errors import (
    CancelledError,
    InvalidRequestError,
    OverloadedError,
    PacelineError,
    ServerError,
    UnauthorizedError,
    UnavailableError,
    UnknownModelError,
)
from paceline.client.options import GenerationOptions, Prompt
from paceline.client.synchronous import Client

__all__ = [
    "AsyncClient",
    "CancelledError",
    "Client",
    "Completion",
    "FinishReason",
    "GenerationOptions",
    "InvalidRequestError",
    "OverloadedError",
    "PacelineError",
    "Piece",
    "Prompt",
    "ServerError",
    "TokenLogprob",
    "UnauthorizedError",
    "UnavailableError",
    "UnknownModelError",
    "Usage",
]
