"""The client for programs without an event loop. Calls of several threads may share one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import grpc

from paceline.client.admin import Admin
from paceline.client.answers import Completion, Gathering, Piece, piece_of
from paceline.client.errors import error_of
from paceline.client.options import GenerationOptions, Prompt, key_metadata, metadata_of, request_of, tokenize_request_of
from paceline.v1 import generation_pb2
from paceline.v1.generation_pb2_grpc import GenerationStub, ModelStub


class Client:
    """A connection to one server's gRPC port."""

    def __init__(
        self,
        address: str,
        *,
        api_key: str | None = None,
        timeout_s: float | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """Connect to `address` (HOST:PORT) at the first call. Without `timeout_s` a call may take as long as it does.

        `credentials`, as `grpc.ssl_channel_credentials` makes them, are for a server with a certificate; without them nothing
        is encrypted.
        """
        self._channel = grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)
        self._stub = GenerationStub(self._channel)
        self._model = ModelStub(self._channel)
        self.admin = Admin(self._channel, api_key, timeout_s)
        """Calls for operators."""
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

    def model_info(self) -> generation_pb2.ModelInfo:
        """What the server says of its model and ranks. Raises a `PacelineError`."""
        info: generation_pb2.ModelInfo = self._ask(self._model.GetModelInfo, generation_pb2.GetModelInfoRequest())
        return info

    def tokenize(self, prompt: str | Sequence[Mapping[str, str]], *, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids of a text or of a chat's messages. Raises a `PacelineError`."""
        answer = self._ask(self._model.Tokenize, tokenize_request_of(prompt, add_special_tokens))
        return list(answer.token_ids)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, special ones included. Raises a `PacelineError`."""
        answer = self._ask(self._model.Detokenize, generation_pb2.DetokenizeRequest(token_ids=token_ids))
        text: str = answer.text
        return text

    def _ask(self, method: Any, request: Any) -> Any:
        try:
            return method(request, metadata=key_metadata(self._api_key), timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise error_of(error) from None

    def close(self) -> None:
        """Drop the connection and every call on it."""
        self._channel.close()

    def __enter__(self) -> Self:
        """Nothing is opened before the first call."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
