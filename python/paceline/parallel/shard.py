"""How a size is shared out among workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` equal parts; `index` counts from 0."""

    index: int
    count: int

    def range_of(self, size: int) -> range:
        """The part of `0 .. size - 1` that is this shard's: contiguous, all of one size but the last, which may be short."""
        width = -(-size // self.count)
        return range(min(self.index * width, size), min((self.index + 1) * width, size))

    def even_range_of(self, size: int) -> range:
        """As `range_of`, with sizes that differ by at most 1: no part is empty while another has two."""
        return range(self.index * size // self.count, (self.index + 1) * size // self.count)
