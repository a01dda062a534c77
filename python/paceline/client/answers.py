"""What comes back: pieces as they are produced, and whole answers gathered from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from paceline.v1 import generation_pb2
from paceline.v1.generation_pb2 import GenerateResponse


class FinishReason(Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


_REASONS = {
    generation_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    generation_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    generation_pb2.FINISH_REASON_ABORT: FinishReason.ABORT,
}


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log-probability, and the likeliest tokens in its place, likeliest first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call, all choices together; the prompt is counted once."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Of the prompt tokens, those read from the prefix cache."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What became certain of one choice since its last piece. The last piece of a call has `usage`."""

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    usage: Usage | None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """With the first piece, when asked for: one entry for each prompt token from the second on."""


@dataclass(slots=True)
class Completion:
    """One choice, whole."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    """Of the whole call."""
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)


def _logprobs(entries: Iterable[generation_pb2.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(entry.token_id, entry.logprob, tuple((top.token_id, top.logprob) for top in entry.top)) for entry in entries
    )


def piece_of(response: GenerateResponse) -> Piece:
    """A message of the stream as a piece."""
    reason = _REASONS.get(response.finish_reason) if response.HasField("finish_reason") else None
    stop_field = response.WhichOneof("stop_reason")
    usage = response.usage
    return Piece(
        request_id=response.request_id,
        index=response.index,
        text=response.text,
        token_ids=tuple(response.token_ids),
        logprobs=_logprobs(response.logprobs),
        finish_reason=reason,
        stop_reason=None if stop_field is None else getattr(response, stop_field),
        usage=Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) if response.HasField("usage") else None,
        prompt_logprobs=_logprobs(response.prompt_logprobs),
    )


class Gathering:
    """Pieces of one call on their way to whole choices."""

    def __init__(self) -> None:
        """Begin without any."""
        self._choices: dict[int, Completion] = {}
        self._usage: Usage | None = None

    def add(self, piece: Piece) -> None:
        """Take the next piece."""
        choice = self._choices.setdefault(piece.index, Completion(piece.index))
        choice.text += piece.text
        choice.token_ids += piece.token_ids
        choice.logprobs += piece.logprobs
        choice.prompt_logprobs += piece.prompt_logprobs
        if piece.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = piece.finish_reason, piece.stop_reason
        self._usage = piece.usage or self._usage

    def whole(self) -> list[Completion]:
        """The choices, in order."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            choice.usage = self._usage
        return choices
