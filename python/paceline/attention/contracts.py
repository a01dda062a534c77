"""What each attention backend can take, as data.

The scheduler plans within the contract that workers report at join; `worker/checks.py` has every launch held against it.
The numbers come from reading the kernels' sources; each has its reason beside it. Holds no code that launches anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Contract:
    """Limits of one backend. Zero and empty tuples mean "no limit"."""

    name: str
    # False: the rows of a FULL launch share one query length. Other launches go to the backend's context kernel.
    ragged_query_lens: bool
    # Largest uniform query length.
    uniform_query_len_max: int
    # Tokens per KV block.
    block_sizes: tuple[int, ...]
    # Elements per attention head.
    head_sizes: tuple[int, ...]
    # Heads are a multiple of this wide.
    head_size_multiple: int
    # Block table columns are a multiple of this.
    table_alignment: int
    # KV positions past max_model_len that a placeholder row may reach; -1: any.
    kv_overhang_max: int
    # Where KV lengths must be known: "device", "host bound" or "host exact".
    lengths_known: str
    # Rows of one launch.
    row_capacity: int = 0


class UnknownContractError(ValueError):
    """A contract or backend name that is not in the table."""


REFERENCE = Contract(
    name="reference",
    ragged_query_lens=True,
    uniform_query_len_max=0,
    block_sizes=(),
    head_sizes=(),
    head_size_multiple=2,
    table_alignment=1,
    kv_overhang_max=-1,
    lengths_known="host exact",
)

# The kernels of `_core` read the block table, of any width and block size.
CPU = replace(REFERENCE, name="cpu")

# The paged decode and prefill wrappers (FA2/FA3). Their plan() runs on the host and compares every row's KV length
# with the query length, so exact lengths must be on the host before the launch.
FLASHINFER = Contract(
    name="flashinfer",
    ragged_query_lens=True,
    uniform_query_len_max=0,
    block_sizes=(),
    head_sizes=(64, 128, 256, 512),
    head_size_multiple=64,
    table_alignment=1,
    kv_overhang_max=-1,
    lengths_known="host exact",
)

# trtllm_batch_decode_with_kv_cache: batch = tokens // q_len, a floor that nothing checks. Lengths stay on the device,
# but max_seq_len is a host number baked into graphs: an under-estimate is silently wrong. Page sizes are those that
# both of its kernels take (XQA: 16..128; trtllm-gen: powers of two). 32 query rows fill one word of XQA's draft mask,
# the widest form with a single mask word per query row.
TRTLLM = Contract(
    name="trtllm",
    ragged_query_lens=False,
    uniform_query_len_max=32,
    block_sizes=(16, 32, 64),
    head_sizes=(),
    head_size_multiple=16,
    table_alignment=1,
    kv_overhang_max=-1,
    lengths_known="host bound",
)

# BatchMLAPagedAttentionWrapper: like the wrappers above, plus at most 16384 work items in one plan.
FLASHINFER_MLA = replace(FLASHINFER, name="flashinfer-mla", head_sizes=(576,), row_capacity=16384)

# trtllm_batch_decode_with_kv_cache_mla: query is 4-D [rows, q, heads, 576]; the table's width is a multiple of
# 128 / page, which 4 covers for both page sizes.
TRTLLM_MLA = replace(TRTLLM, name="trtllm-mla", block_sizes=(32, 64), head_sizes=(576,), table_alignment=4)

CONTRACTS: dict[str, Contract] = {
    contract.name: contract for contract in (REFERENCE, CPU, FLASHINFER, TRTLLM, FLASHINFER_MLA, TRTLLM_MLA)
}
# Backends that are built; a contract may be declared by any of them.
BACKENDS = (CPU.name, REFERENCE.name)


def find_contract(name: str) -> Contract:
    """Look a contract up by name. Raises `UnknownContractError` listing the known ones."""
    contract = CONTRACTS.get(name)
    if contract is None:
        raise UnknownContractError(f"unknown attention contract {name!r}; known are {', '.join(CONTRACTS)}")
    return contract


def check_backend(name: str) -> None:
    """Raise `UnknownContractError` unless `name` is a backend that is built."""
    if name not in BACKENDS:
        raise UnknownContractError(f"unknown attention backend {name!r}; known are {', '.join(BACKENDS)}")


def static_faults(contract: Contract, *, block_size: int, table_width: int, head_size: int, query_len_max: int) -> list[str]:
    """What in a configuration lies outside `contract`, one line each, known before anything is loaded.

    `head_size` is that of the real model. A backend that impersonates a contract keeps its own kernels, so callers
    leave head sizes out by passing 0.
    """
    faults = []
    if contract.block_sizes and block_size not in contract.block_sizes:
        faults.append(f"block_size {block_size} is not one of {contract.block_sizes}")
    if table_width % contract.table_alignment:
        faults.append(f"block table width {table_width} is no multiple of {contract.table_alignment}")
    if head_size and contract.head_sizes and head_size not in contract.head_sizes:
        faults.append(f"head size {head_size} is not one of {contract.head_sizes}")
    if head_size % contract.head_size_multiple:
        faults.append(f"head size {head_size} is no multiple of {contract.head_size_multiple}")
    if contract.uniform_query_len_max and query_len_max > contract.uniform_query_len_max:
        faults.append(f"query length {query_len_max} passes {contract.uniform_query_len_max}")
    return [f"attention contract {contract.name}: {fault}" for fault in faults]
