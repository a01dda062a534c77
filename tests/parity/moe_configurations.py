"""Ways to serve the mixture-of-experts demo that must all give the same text: a pairwise array.

Every value of every factor meets every value of every other one in some row (`test_serve_moe.py` checks that).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

FACTORS: dict[str, tuple[object, ...]] = {
    "dp": (1, 2, 4),
    "exchange": ("off", "allgather_reducescatter", "all_to_all"),
    "tp": (1, 2),
    "k": (0, 1, 2, 3),
    "load": ("one at a time", "busy", "preempting"),
    "chunk": (8, 256),
    "depth": (0, 1),
    "prefix": ("cold", "cached"),
}

# Requests at once, by load. One at a time leaves every other rank idle.
CONCURRENCY = {"one at a time": 1, "busy": 8, "preempting": 16}

# Tokens of prompt and output; what the cache of a preempting configuration holds, and a few blocks to grow into.
MODEL_LEN = 256
BLOCK_SIZE = 4


@dataclass(frozen=True, slots=True)
class Configuration:
    """One row of the array."""

    dp: int
    exchange: str
    tp: int
    k: int
    load: str
    chunk: int
    depth: int = 0
    prefix: str = "cold"

    @property
    def name(self) -> str:
        """Short words for test ids and tables."""
        return f"dp{self.dp} tp{self.tp} ep {self.exchange} k{self.k} chunk{self.chunk} depth{self.depth} {self.prefix} {self.load}"

    @property
    def concurrency(self) -> int:
        """Requests at once."""
        return CONCURRENCY[self.load]

    def arguments(self) -> list[str]:
        """What follows `paceline serve --demo moe`."""
        arguments = ["--dtype", "float32", "-dp", str(self.dp), "-tp", str(self.tp)]
        arguments += ["--max-model-len", str(MODEL_LEN), "--block-size", str(BLOCK_SIZE)]
        arguments += ["--max-num-batched-tokens", str(self.chunk), "--scheduling-depth", str(self.depth)]
        arguments += [f"--enable-prefix-caching={'true' if self.prefix == 'cached' else 'false'}"]
        if self.exchange == "off":
            arguments += ["--enable-expert-parallel=false"]
        else:
            arguments += ["--enable-expert-parallel", "--all2all-backend", self.exchange]
        method = {"method": "mtp", "num_speculative_tokens": self.k}
        arguments += ["--speculative-config", "none" if self.k == 0 else str(method).replace("'", '"')]
        if self.load == "preempting":
            arguments += ["--num-gpu-blocks-override", str(MODEL_LEN // BLOCK_SIZE + 2)]
        return arguments


AG, A2A = "allgather_reducescatter", "all_to_all"
CONFIGURATIONS = [
    Configuration(1, "off", 1, 0, "one at a time", 256, 0, "cold"),
    Configuration(2, AG, 1, 1, "busy", 256, 1, "cold"),
    Configuration(2, A2A, 2, 3, "busy", 8, 0, "cached"),
    Configuration(4, AG, 1, 2, "preempting", 256, 1, "cached"),
    Configuration(2, "off", 2, 1, "preempting", 8, 1, "cold"),
    Configuration(2, "off", 1, 0, "preempting", 256, 1, "cached"),
    Configuration(1, AG, 1, 1, "one at a time", 8, 1, "cached"),
    Configuration(4, "off", 2, 3, "one at a time", 8, 1, "cold"),
    Configuration(1, A2A, 2, 2, "preempting", 256, 1, "cached"),
    Configuration(2, A2A, 2, 0, "one at a time", 256, 1, "cached"),
    Configuration(4, AG, 1, 0, "busy", 256, 0, "cached"),
    Configuration(4, A2A, 2, 1, "preempting", 8, 0, "cold"),
    Configuration(2, AG, 2, 3, "preempting", 256, 1, "cold"),
    Configuration(4, "off", 1, 2, "busy", 8, 0, "cold"),
    Configuration(1, A2A, 1, 3, "one at a time", 256, 0, "cached"),
    Configuration(1, "off", 2, 0, "busy", 8, 1, "cold"),
    Configuration(2, "off", 1, 1, "one at a time", 256, 0, "cached"),
    Configuration(2, AG, 2, 2, "one at a time", 256, 1, "cached"),
    Configuration(4, A2A, 1, 3, "busy", 256, 0, "cold"),
    Configuration(1, AG, 2, 0, "preempting", 8, 0, "cached"),
]

# The five that every test run starts: the plainest first, then each exchange, two workers a rank, four ranks, one step
# ahead and prefixes from the cache.
IN_EVERY_RUN = CONFIGURATIONS[:5]


def missing_pairs() -> list[tuple[tuple[str, object], tuple[str, object]]]:
    """Pairs of values that no configuration has together."""
    missing = []
    for (first, firsts), (second, seconds) in combinations(FACTORS.items(), 2):
        for a in firsts:
            for b in seconds:
                if not any(getattr(row, first) == a and getattr(row, second) == b for row in CONFIGURATIONS):
                    missing.append(((first, a), (second, b)))
    return missing
