"""The client for programs without an event loop. Calls of several threads may share one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import grpc

from paceline.client.answers import Completion, Gathering, Piece, piece_of
from paceline.client.errors import error_of
from paceline.client.options import GenerationOptions, Prompt, metadata_of, request_of
from paceline.v1.generation_pb2_grpc import GenerationStub


class Client:
    """A connection to one server's gRPC port."""

    def __init__(self, address: str, *, api_key: str | None = None, timeout_s: float | None = None) -> None:
        """Connect to `address` (HOST:PORT) at the first call. Without `timeout_s` a call may take as long as it does."""
        self._channel = grpc.insecure_channel(address)
        self._stub = GenerationStub(self._channel)
        self._api_key = api_key
        self._timeout_s = timeout_s

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Piece]:
        """The pieces of all choices as they come; leaving the loop early aborts the request.

        `options` are the fields of `GenerationOptions`. Raises a `PacelineError`.
        """
        chosen = GenerationOptions(**options)
        request = request_of(prompt, chosen)
        call = self._stub.Generate(request, metadata=metadata_of(self._api_key, chosen), timeout=self._timeout_s)
        try:
            for response in call:
                yield piece_of(response)
        except grpc.RpcError as error:
            raise error_of(error) from None
        finally:
            call.cancel()

    def generate_all(self, prompt: Prompt, **options: Any) -> list[Completion]:
        """All `n` choices, whole. Raises a `PacelineError`."""
        gathering = Gathering()
        for piece in self.stream(prompt, **options):
            gathering.add(piece)
        return gathering.whole()

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """The first choice, whole. Raises a `PacelineError`."""
        return self.generate_all(prompt, **options)[0]

    def close(self) -> None:
        """Drop the connection and every call on it."""
        self._channel.close()

    def __enter__(self) -> Self:
        """Nothing is opened before the first call."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
