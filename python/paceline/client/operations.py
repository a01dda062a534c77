"""What operators ask of a server and what they are told: gates, loads, changes of the prefix caches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from paceline.v1 import admin_pb2


class Gate(Enum):
    """What a rank does with requests."""

    OPEN = admin_pb2.GATE_OPEN
    FINISHING = admin_pb2.GATE_FINISHING
    PAUSED = admin_pb2.GATE_PAUSED
    DRAINING = admin_pb2.GATE_DRAINING


class PauseMode(Enum):
    """What becomes of requests in a pause."""

    KEEP = admin_pb2.PAUSE_MODE_KEEP
    """They keep their seats and KV blocks and go on afterwards."""
    WAIT = admin_pb2.PAUSE_MODE_WAIT
    """Those that run go on to their end first."""
    ABORT = admin_pb2.PAUSE_MODE_ABORT
    """They end at once."""


@dataclass(frozen=True, slots=True)
class RankLoad:
    """One data-parallel rank. `load_tokens` is what placement balances: known tokens, and those of prompts to compute."""

    dp_rank: int
    state: str
    gate: Gate
    running: int
    load_tokens: int
    kv_blocks_used: int
    kv_blocks_cached: int
    kv_blocks: int
    restarts: int


@dataclass(frozen=True, slots=True)
class FleetState:
    """The whole fleet. `waiting` counts requests that no rank has started."""

    ready: bool
    draining: bool
    waiting: int
    waiting_tokens: int
    ranks: tuple[RankLoad, ...]


@dataclass(frozen=True, slots=True)
class BlockStored:
    """A full KV block can be read by others. Hashes are opaque and of no meaning after a restart of the server."""

    block_hash: bytes
    parent_block_hash: bytes | None
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A cached block's room was needed."""

    block_hash: bytes


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """Every block of the rank is gone."""


CacheEvent = BlockStored | BlockRemoved | CacheCleared


@dataclass(frozen=True, slots=True)
class CacheEvents:
    """Events of one rank, in order, numbered from `first_sequence`; `missed` of them were lost right before the first."""

    dp_rank: int
    first_sequence: int
    missed: int
    block_size: int
    events: tuple[CacheEvent, ...]


def state_of(message: admin_pb2.FleetState) -> FleetState:
    """The message as plain data."""
    ranks = (
        RankLoad(
            dp_rank=rank.dp_rank,
            state=rank.state,
            gate=Gate(rank.gate),
            running=rank.running,
            load_tokens=rank.load_tokens,
            kv_blocks_used=rank.kv_blocks_used,
            kv_blocks_cached=rank.kv_blocks_cached,
            kv_blocks=rank.kv_blocks,
            restarts=rank.restarts,
        )
        for rank in message.ranks
    )
    return FleetState(message.ready, message.draining, message.waiting, message.waiting_tokens, tuple(ranks))


def events_of(message: admin_pb2.CacheEvents) -> CacheEvents:
    """The message as plain data."""
    events = tuple(_event_of(event) for event in message.events)
    return CacheEvents(message.dp_rank, message.first_sequence, message.missed, message.block_size, events)


def _event_of(event: admin_pb2.CacheEvent) -> CacheEvent:
    match event.WhichOneof("event"):
        case "stored":
            stored = event.stored
            parent = stored.parent_block_hash if stored.HasField("parent_block_hash") else None
            return BlockStored(stored.block_hash, parent, tuple(stored.token_ids))
        case "removed":
            return BlockRemoved(event.removed.block_hash)
        case _:
            return CacheCleared()
