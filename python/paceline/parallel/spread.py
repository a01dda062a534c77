"""Expert parallelism: experts are shared out among all workers of a lockstep group, and tokens travel to them.

Every rank brings as many tokens as the plan says of the fullest one, so a layer is two collectives of a size that all
workers know, whatever the router chose, and a rank with nothing to send takes part like any other. Tensor-parallel
workers of a rank bring a share of its tokens each, and gather the results in a third.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from paceline import _core
from paceline.parallel.collectives import Collectives, ordered_sum
from paceline.parallel.exchange import Experts, PassTokens
from paceline.parallel.shard import Shard


class _SpreadExchange(ABC):
    """What both ways to exchange have in common: which tokens a worker brings, and how results get back to its rank."""

    def __init__(self, expert_count: int, world: Collectives, workers: Collectives) -> None:
        """Take all workers of the group, and those of this rank."""
        self._world = world
        self._workers = workers
        parts = [Shard(index, world.size).even_range_of(expert_count) for index in range(world.size)]
        self._held = parts[world.rank]
        # First expert of each worker but the first.
        self._boundaries = torch.tensor([part.start for part in parts[1:]])
        self._own = slice(0, 0)
        self._part = 0
        self._is_padding = torch.empty(0, 1, dtype=torch.bool)

    @property
    def held(self) -> range:
        """The experts held here."""
        return self._held

    def prepare(self, tokens: PassTokens) -> None:
        """Take the tokens of the next pass."""
        count, exchanged = tokens.is_request.shape[0], tokens.tokens_padded
        assert count <= exchanged, f"a pass of {count} tokens, where the largest rank has {exchanged}"
        self._part = _core.tp_share(exchanged, self._workers.size, 0)[1]
        first, length = _core.tp_share(exchanged, self._workers.size, self._workers.rank)
        self._own = slice(min(first, count), min(first + length, count))
        self._is_padding = ~self._brought(tokens.is_request.unsqueeze(1))

    def run(self, x: Tensor, expert_ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
        """Bring this worker's share of the tokens to their experts; see `ExpertExchange.run`."""
        own_ids = self._brought(expert_ids).masked_fill(self._is_padding, -1)
        own = self._visit(self._brought(x), own_ids, self._brought(weights), experts)
        return self._workers.all_gather(own)[: x.shape[0]]

    @abstractmethod
    def _visit(self, x: Tensor, expert_ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
        """Give each token of this worker's part its experts' sum: `[part, hidden]` to the same."""

    def _brought(self, rows: Tensor) -> Tensor:
        """This worker's share of `[tokens, ...]`, padded with zeros to the part that every worker brings."""
        share = rows[self._own]
        missing = self._part - share.shape[0]
        return functional.pad(share, (0, 0, 0, missing)) if missing else share


class GatheringExchange(_SpreadExchange):
    """All-gather and reduce-scatter: every worker sees all tokens, runs its experts, and results are summed on the way back."""

    def _visit(self, x: Tensor, expert_ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
        gathered = self._world.all_gather(_pack(x, expert_ids, weights))
        return self._world.reduce_scatter(experts(*_unpack(gathered, x, expert_ids)))


class AllToAllExchange(_SpreadExchange):
    """All-to-all there and back: each worker is sent the tokens that visit its experts.

    A worker's inbox has a place for every token of every peer, since all may choose it: the size is fixed, and a token
    that does not visit is a row of zeros.
    """

    def _visit(self, x: Tensor, expert_ids: Tensor, weights: Tensor, experts: Experts) -> Tensor:
        size = self._world.size
        # A token's experts by worker, [workers, part, top_k]; -1 finds no worker.
        owners = torch.bucketize(expert_ids, self._boundaries, right=True).masked_fill(expert_ids < 0, -1)
        is_owned = owners.unsqueeze(0) == torch.arange(size).view(-1, 1, 1)
        ids_by_worker = torch.where(is_owned, expert_ids, -1).flatten(0, 1)
        visits = is_owned.any(dim=-1, keepdim=True)
        x_by_worker = torch.where(visits, x, 0).flatten(0, 1)
        sent = _pack(x_by_worker, ids_by_worker, weights.expand(size, -1, -1).flatten(0, 1))
        received = self._world.all_to_all(sent)
        returned = self._world.all_to_all(experts(*_unpack(received, x, expert_ids)))
        return ordered_sum(returned, size)


def _pack(x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
    """Lay tokens, ids and weights side by side as bytes, so that they travel in one collective."""
    parts = (x, expert_ids.to(torch.int32), weights)
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1)


def _unpack(packed: Tensor, x: Tensor, expert_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Undo `_pack`; `x` and `expert_ids` say types and widths."""
    ids_size = expert_ids.shape[1] * torch.int32.itemsize
    widths = (x.shape[1] * x.dtype.itemsize, ids_size, ids_size)
    tokens, ids, weights = (part.contiguous() for part in torch.split_with_sizes(packed, widths, dim=1))
    return tokens.view(x.dtype), ids.view(torch.int32).long(), weights.view(torch.float32)
