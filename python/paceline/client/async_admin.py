"""Operating a server: what `AsyncClient.admin` offers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc import aio

from paceline.client.errors import error_of
from paceline.client.operations import CacheEvents, FleetState, PauseMode, events_of, state_of
from paceline.client.options import key_metadata
from paceline.v1 import admin_pb2
from paceline.v1.admin_pb2_grpc import AdminStub


class AsyncAdmin:
    """Calls for operators. All but `status` need a server that was started with --enable-admin."""

    def __init__(self, channel: aio.Channel, api_key: str | None, timeout_s: float | None) -> None:
        """Use the channel of a client."""
        self._stub = AdminStub(channel)
        self._metadata = key_metadata(api_key)
        self._timeout_s = timeout_s

    async def status(self) -> FleetState:
        """State and load of the fleet and of each rank. Raises a `PacelineError`, as all calls here do."""
        return state_of(await self._call(self._stub.GetStatus, admin_pb2.GetStatusRequest()))

    async def pause(self, mode: PauseMode = PauseMode.KEEP, *, dp_rank: int | None = None, clear_cache: bool = False) -> FleetState:
        """Stop a rank, or all; returns when they have come to rest. New requests are taken and wait."""
        request = admin_pb2.PauseRequest(dp_rank=dp_rank, mode=mode.value, clear_cache=clear_cache)
        return state_of(await self._call(self._stub.Pause, request))

    async def resume(self, *, dp_rank: int | None = None) -> FleetState:
        """End a pause or a drain."""
        return state_of(await self._call(self._stub.Resume, admin_pb2.ResumeRequest(dp_rank=dp_rank)))

    async def drain(self, *, dp_rank: int | None = None, wait: bool = False) -> FleetState:
        """Take no new request; with `wait`, return when none is left."""
        return state_of(await self._call(self._stub.Drain, admin_pb2.DrainRequest(dp_rank=dp_rank, wait=wait)))

    async def abort(self, request_ids: Sequence[str]) -> int:
        """End the requests of these ids; how many there were, one for each choice."""
        return await self._abort(admin_pb2.AbortRequest(request_ids=request_ids))

    async def abort_all(self) -> int:
        """End every request; how many there were."""
        return await self._abort(admin_pb2.AbortRequest(all=True))

    async def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""
        await self._call(self._stub.ResetPrefixCache, admin_pb2.ResetPrefixCacheRequest())

    async def cache_events(self, *, dp_rank: int | None = None) -> AsyncIterator[CacheEvents]:
        """Changes of the prefix caches from this call on, until the iterator is closed or the server ends."""
        request = admin_pb2.SubscribeCacheEventsRequest(dp_rank=dp_rank)
        call = self._stub.SubscribeCacheEvents(request, metadata=self._metadata)
        # The server follows the caches once it has answered.
        try:
            await call.initial_metadata()
        except grpc.RpcError as error:
            raise error_of(error) from None
        return self._events(call)

    @staticmethod
    async def _events(call: Any) -> AsyncIterator[CacheEvents]:
        try:
            async for message in call:
                yield events_of(message)
        except grpc.RpcError as error:
            raise error_of(error) from None
        finally:
            call.cancel()

    async def _abort(self, request: admin_pb2.AbortRequest) -> int:
        aborted: int = (await self._call(self._stub.Abort, request)).aborted
        return aborted

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, metadata=self._metadata, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise error_of(error) from None
