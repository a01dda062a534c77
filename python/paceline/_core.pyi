"""Types of the compiled extension."""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict, final

import numpy as np
import numpy.typing as npt

from paceline._core_launch import Arrays, Contract, Launch, LaunchLimits

__all__ = [
    "AttentionBlock",
    "CheckedLaunch",
    "CoreError",
    "FeedForwardBlock",
    "Int8Matrix",
    "InvalidSampling",
    "LaunchDesk",
    "LayerStack",
    "LinearWeight",
    "PagedAttention",
    "Pass",
    "PassBuffers",
    "PlanRefused",
    "PlanUndecodable",
    "Pulse",
    "Step",
    "StepOutOfOrder",
    "StreamLost",
    "UnusableLogits",
    "WorkerCore",
    "WorkerStream",
    "__version__",
    "check_launch",
    "decode_reply_for_test",
    "encode_masks_for_test",
    "encode_reply",
    "encode_step_for_test",
    "gate",
    "has_matrix_instructions",
    "linear",
    "philox_noise",
    "quantise_rows",
    "rms_norm",
    "rotate",
    "run_daemon",
    "sample_row",
    "sampling_bytes_for_test",
    "set_kernel_threads",
    "tp_share",
    "wire_thread_id",
]

__version__: str

# float32, or bfloat16 as its bits; all arrays of one call are of one type, contiguous.
_Array = npt.NDArray[np.uint16] | npt.NDArray[np.float32]

class CoreError(Exception):
    """Base of every error of this module."""

class PlanRefused(CoreError):  # noqa: N818
    """A plan that breaks a rule."""

    rule: str
    """"rule 4", or "decode"."""
    field: str
    expected: int
    got: int
    dp_rank: int
    step: int

class PlanUndecodable(PlanRefused):
    """Bytes that are no plan; rule is "decode"."""

class StreamLost(CoreError):  # noqa: N818
    """The daemon cannot be reached, or has closed or broken a stream."""

class InvalidSampling(CoreError):  # noqa: N818
    """Sampling parameters that cannot be used."""

    field: str | None
    """The parameter out of range; None where the bytes are broken."""

class UnusableLogits(CoreError):  # noqa: N818
    """A row of logits from which no token can be chosen."""

    row: int | None
    seat: int | None

class StepOutOfOrder(CoreError):  # noqa: N818
    """A call for a step that is not the current one, or not in its turn."""

@final
class Pass:
    """One forward of one network."""

    @property
    def index(self) -> int:
        """Place in the step's list of passes."""
    @property
    def kind(self) -> Literal["target", "extend", "single"]:
        """Which forward of the step this is."""
    @property
    def mode(self) -> Literal["full", "piecewise", "eager"]:
        """How it is run."""
    @property
    def q(self) -> int:
        """Tokens of every row in FULL; 0 elsewhere."""
    @property
    def rows(self) -> int:
        """Rows that this rank runs, real or dummy, without padding."""
    @property
    def tokens(self) -> int:
        """Tokens that this rank runs, real or dummy, without padding."""
    @property
    def rows_padded(self) -> int:
        """Rows that kernels and collectives are given."""
    @property
    def tokens_padded(self) -> int:
        """Tokens that kernels and collectives are given."""
    @property
    def tokens_per_rank(self) -> list[int]:
        """Tokens that each rank of the group runs, dummies included."""

@final
class Step:
    """A plan that has passed every check and whose deltas are applied."""

    @property
    def group(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def dp_rank(self) -> int: ...
    @property
    def is_dummy(self) -> bool: ...
    @property
    def masked_rows(self) -> int:
        """Rows whose masks follow the plan."""
    @property
    def k_verify(self) -> int: ...
    @property
    def k_draft(self) -> int: ...
    @property
    def passes(self) -> list[Pass]: ...
    @property
    def pass_kinds(self) -> list[Literal["target", "extend", "single"]]:
        """Kinds of the passes, in order."""
    @property
    def block_zeroings(self) -> list[int]: ...
    @property
    def block_copies(self) -> list[tuple[int, int]]: ...

@final
class PassBuffers:
    """The arrays of a worker's passes, allocated once, as one object. Each pass rewrites what the one before it wrote."""

    def __new__(cls, arrays: Arrays) -> PassBuffers:
        """Takes the arrays, and that there may be anything in them."""
    def forget(self) -> None:
        """Says that others have written to the arrays: the next pass rewrites every entry."""

@final
class CheckedLaunch:
    """What `paceline.worker.checks.Launch` holds, of a pass whose arrays were looked at. Read only."""

    dp_rank: int
    step: int
    mode: Literal["full", "piecewise", "eager"]
    query_len: int
    rows: int
    tokens: int
    is_dummy: bool
    rows_padded: int
    tokens_padded: int
    logits: int
    ahead: int
    attention_rows: int
    attention_tokens: int
    input_tokens: int
    request_rows: int
    request_tokens: int
    fault: tuple[str, str, int, int] | None
    """The first rule that does not hold: rule, field, expected, got."""

@final
class LaunchDesk:
    """What every launch of a worker is held against: its arrays, its limits, its backend's contract."""

    def __new__(cls, buffers: PassBuffers, limits: LaunchLimits, contract: Contract) -> LaunchDesk: ...
    def launch(self, step: Step, index: int, logits: int, is_dummy: bool | None = None, ahead: int = 0) -> CheckedLaunch:
        """What the plan says of pass `index`, whose arrays are filled, and the first fault of these arrays."""

@final
class WorkerCore:
    """Seats and samplers of one rank: decodes and checks plans, fills buffers, samples, makes replies."""

    def __new__(
        cls,
        *,
        dp_rank: int,
        group_ranks: list[int],
        seats: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        block_size: int,
        num_blocks: int,
        table_width: int,
        row_capacity: int,
        token_capacity: int,
        k_max: int,
        vocab_size: int,
        drafter_layers: int = 0,
        scheduling_depth: int = 0,
    ) -> WorkerCore: ...
    @property
    def tokens_digest(self) -> int:
        """Digest of the last reply's tokens: equal on all tp workers of a rank. 0 before the first."""
    @property
    def seats_occupied(self) -> int:
        """Seats that hold a request."""
    def reset(self, epoch: int) -> None:
        """Starts an epoch: every seat is void, and steps count from 1 again."""
    def begin(self, group: int, epoch: int, step: int, digest: int, group_part: bytes, rank_part: bytes) -> Step:
        """Decodes a plan, checks it and applies its deltas; raises PlanRefused."""
    def fill_target(self, step: Step, buffers: PassBuffers) -> int:
        """Writes the target pass's arrays in place, padding included; returns the count of logits rows."""
    def fill_extend(self, step: Step, layer: int, buffers: PassBuffers) -> int:
        """Writes the extend pass's arrays for drafter layer `layer`, from 1, in place.

        Follows sampling. Tokens are those of the target pass moved on by `layer`; where one is not known, it is token
        0 with slot -1. Returns the count of logits rows: the last token that counts of each row that sampled, the
        same in every layer; none where the step plans no drafts.
        """
    def fill_single(self, step: Step, index: int, buffers: PassBuffers) -> int:
        """Writes the arrays of the single pass that gives draft `index`, from 2, in place.

        Follows the draft before it. One token for each row that sampled, in row order; returns how many these are.
        """
    def set_masks(self, step: Step, masked_epoch: int, masked_step: int, body: bytes) -> None:
        """Takes the masks that followed the plan; raises PlanRefused by rule 19 when they are not this step's."""
    def sample(self, step: Step, logits: npt.NDArray[np.float32]) -> None:
        """Samples, verifies drafts and takes log-probabilities from logits of [count, vocab_size]."""
    def propose_ngram(self, step: Step) -> None:
        """Proposes prompt-lookup drafts, at most k_draft a row; nothing when k_draft is 0."""
    def propose(self, step: Step, logits: npt.NDArray[np.float32]) -> None:
        """Appends one draft to each row that sampled, from a drafter's logits of [rows that sampled, vocab_size].

        Drafts are sampled with the row's own parameters and the noise of their places. Called `k_draft` times.
        """
    def reply(self, step: Step, timings_us: list[int], collectives: int = 0) -> bytes:
        """Commits the rows and gives the reply's bytes; timings are of decode, fill, forward, sample."""

def run_daemon(argv: list[str], python: str) -> int:
    """Runs the daemon until it ends, with default signal handlers and the interpreter lock released."""

def philox_noise(seed: int, index: int, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The noise of each token for one seed and index."""

def sample_row(logits: npt.NDArray[np.float32], params_bytes: bytes, index: int) -> int:
    """The token chosen at index from one row of logits."""

def check_launch(launch: Launch, arrays: Arrays, limits: LaunchLimits, contract: Contract) -> tuple[str, str, int, int] | None:
    """Hold a pass's arrays against what the plan says of it. Gives the first fault: rule, field, expected, got."""

def encode_reply(
    group: int, epoch: int, step: int, digest: int, body: bytes, tokens_digest: int, passes: int, collectives: int
) -> bytes:
    """A `StepFromWorker` with the reply to a step, as bytes for the Steps stream."""

def tp_share(tokens: int, tp_size: int, tp_rank: int) -> tuple[int, int]:
    """The (first, count) of a tp worker's part of its rank's tokens.

    Parts are contiguous and `ceil(tokens / tp_size)` long, the last ones shorter or empty: parts of that one size, side
    by side, are the tokens in order with padding at the end only.
    """

class _PassBase(TypedDict):
    mode: Literal["full", "piecewise", "eager"]
    loads: list[tuple[int, int]]

class _Pass(_PassBase, total=False):
    q: int
    rows_padded: int
    tokens_padded: int

class _RowBase(TypedDict):
    seat: int
    start: int
    query_len: int
    blocks: int
    logits: Literal["none", "last", "verify", "all"]

class _Row(_RowBase, total=False):
    generation: int
    drafts: int
    masked: bool

class _RowReply(TypedDict):
    seat: int
    generation: int
    known: int
    accepted: int
    emitted: list[int]
    proposed: int
    drafts: list[int]
    logprobs: list[list[tuple[int, float]]]

class _Reply(TypedDict):
    dp_rank: int
    rows: list[_RowReply]
    passes: int
    collectives: int
    timings_us: list[int]

def encode_step_for_test(
    *,
    epoch: int,
    step: int,
    dp_rank: int,
    dp_ranks: list[int],
    target: _Pass,
    rows: list[_Row] = ...,
    releases: list[tuple[int, int]] = ...,
    admissions: list[tuple[int, int, int, bytes]] = ...,
    feeds: list[tuple[int, int, list[int]]] = ...,
    block_appends: list[tuple[int, list[int]]] = ...,
    k_verify: int = 0,
    k_draft: int = 0,
    drafter_passes: list[_Pass] = ...,
) -> tuple[int, bytes, bytes]:
    """One rank's view of a step: digest, group part, rank part. Drafter passes are extend, then the single ones."""

def encode_masks_for_test(rows: list[tuple[int, int, list[list[int] | None]]]) -> bytes:
    """Masks of rows (seat, generation, masks); a mask is its words, or None where every token may be chosen."""

def decode_reply_for_test(body: bytes) -> _Reply:
    """A reply as plain values; logprobs are (token id, value) pairs."""

def sampling_bytes_for_test(
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    logprobs: int | None = None,
) -> bytes:
    """Sampling parameters as the bytes that a plan carries."""

@final
class Pulse:
    """How far the model thread has come; what heartbeats report."""

    step: int
    """The newest step that was received."""
    pass_index: int
    """The pass of the step that was launched last."""
    phase: str
    """"idle", "received", "launched", "sampled" or "replied"; another word raises `ValueError`."""
    collectives: int
    """Collectives entered so far."""

    def __new__(cls) -> Pulse: ...

@final
class WorkerStream:
    """A bidirectional gRPC stream to the daemon, over a connection of its own. Messages are bytes."""

    def __new__(cls, address: str, method: str) -> WorkerStream:
        """Dial HOST:PORT. Raises `StreamLost` when nobody answers in time, `ValueError`."""

    def send(self, message: bytes) -> None:
        """Send, from any thread. Dropped when the stream is broken."""

    def beat(self, pulse: Pulse) -> None:
        """Send a heartbeat of `pulse` now and at every interval, until the stream ends."""

    def receive(self) -> Any:
        """Wait for the next message, or for what was `put`. Raises `StreamLost` with the reason once the stream has ended."""

    def put(self, message: object) -> None:
        """Put what is no `bytes` behind what has been received. Raises `StreamLost` when so much waits that nobody receives."""

    def wait_end(self) -> str:
        """Wait until the stream has ended, whatever the thread that receives is doing; the reason."""

    def finish_sending(self) -> None:
        """Close this direction once everything that waits is sent."""

    def close(self) -> None:
        """Drop the connection, whatever is in flight."""

def wire_thread_id() -> int | None:
    """The system's number of the thread that drives every stream of this process; nothing where the system does not say."""

def set_kernel_threads(count: int) -> None:
    """Compute with `count` threads from now on, the calling one included. They run where the caller may run."""

def rms_norm(x: _Array, added: _Array | None, weight: _Array, epsilon: float, normed: _Array) -> None:
    """Add `added` to `x [rows, width]` in place, if given, and write `x / rms(x) * weight` to `normed`."""

_Half = npt.NDArray[np.uint16]

@final
class LinearWeight:
    """A weight of bfloat16 and its bias, which are read where they lie."""

    def __new__(cls, parts: Sequence[_Half], bias: _Half | None = None, *, compress: bool = False) -> LinearWeight:
        """Take parts `[outputs, inputs]`, `inputs` even, whose outputs follow each other, and `bias [outputs]`.

        With `compress`, keep each part once more in three quarters of its bytes, without loss, for `linear` to read: where it has
        matrix instructions for all of them, and their numbers allow it. Raises `ValueError` for shapes that do not fit each other,
        with both numbers.
        """

    @property
    def parts(self) -> list[_Half]:
        """The arrays given."""

    @property
    def compressed_bytes(self) -> int:
        """Memory of what is compressed; 0 if nothing is."""

def linear(x: _Half, weight: LinearWeight, product: _Half) -> None:
    """Write `x @ weight.T + bias` of bfloat16 to `product [rows, outputs]`, added up in fp32; `x` is `[rows, inputs]`.

    Without matrix instructions it is made for few rows. A row's result does not depend on the others.
    """

@final
class FeedForwardBlock:
    """The half of a decoder layer behind attention, in bfloat16: norm, gates, what they gate, the product behind them."""

    def __new__(cls, norm: _Half, epsilon: float, gate_up: LinearWeight, down: LinearWeight) -> FeedForwardBlock:
        """Take factors `norm [width]` and the weights, gates first.

        Raises `ValueError` for shapes that do not fit each other, with both numbers.
        """

    def __call__(self, x: _Half, added: _Half | None, output: _Half) -> None:
        """Add `added` to the residual stream `x [tokens, width]` in place, and write what the block makes of its norm."""

    @property
    def spent_ms(self) -> list[float]:
        """Milliseconds so far of products, attention (none), norms, rotation (none) and activation."""

@final
class AttentionBlock:
    """The half of a decoder layer with its self-attention, in bfloat16."""

    def __new__(
        cls,
        layer: int,
        head_count: int,
        kv_head_count: int,
        window: int,
        norm: _Half,
        epsilon: float,
        qkv: LinearWeight,
        output: LinearWeight,
        head_norm: tuple[_Half, float] | None,
    ) -> AttentionBlock:
        """Take the parts of `layer`, which is cached under that number.

        `qkv` gives `head_count` queries, then `kv_head_count` keys, then as many values; a query sees `window` keys, all if that
        is 0. `head_norm` has factors for each query and each key. Raises `ValueError` for shapes that do not fit each other.
        """

    def __call__(self, attention: PagedAttention, x: _Half, added: _Half | None, cos: _Half, sin: _Half, output: _Half) -> None:
        """Add `added` to the residual stream `x [tokens, width]` in place, and write what attention makes of its norm.

        `attention` was told the rows of the pass; all of them are attended for. `cos` and `sin` are as `rotate` takes them.
        """

    @property
    def spent_ms(self) -> list[float]:
        """Milliseconds so far of products, attention, norms, rotation and activation (none)."""

@final
class LayerStack:
    """Decoder layers one after another, in bfloat16."""

    def __new__(cls, layers: Sequence[tuple[AttentionBlock, FeedForwardBlock]]) -> LayerStack:
        """Take the layers in order. Raises `ValueError` if there are none or their widths differ."""

    def __call__(self, attention: PagedAttention, x: _Half, cos: _Half, sin: _Half, output: _Half) -> None:
        """Run the layers on the residual stream `x [tokens, width]`, in place; `output` is what is still to be added to it.

        The rest is as `AttentionBlock` takes it.
        """

def has_matrix_instructions() -> bool:
    """Whether `linear` uses matrix instructions here, for at least 16 outputs, and inputs in multiples of 32."""

def gate(gate_up: _Array, product: _Array) -> None:
    """Write `silu(gate) * up` to `product [rows, width]`, given `gate_up [rows, 2 * width]`, gates first."""

def rotate(
    heads: _Array,
    count: int,
    size: int,
    cos: _Array,
    sin: _Array,
    weight: _Array | None = None,
    epsilon: float = 0.0,
) -> None:
    """Rotate the first `count` heads, each `size` wide, of every row of `heads` in place.

    `cos` and `sin` are `[rows, rotated columns]`, the first half of `sin` negated. With `weight [count * size]`, each
    head is divided by its root mean square and multiplied by its factors before.
    """

def quantise_rows(x: _Array, quantised: npt.NDArray[np.int8], factors: npt.NDArray[np.float32]) -> None:
    """Write `x [rows, width]` as bytes, the largest of each row as 127, and `factors [rows]` to multiply them by.

    A row with a number that is not finite is all zeros, with a factor that is NaN.
    """

@final
class Int8Matrix:
    """A weight as bytes with a factor for each output, laid out for products with rows that are quantised when they come."""

    def __new__(
        cls,
        weights: npt.NDArray[np.int8],
        factors: npt.NDArray[np.float32],
        bias: npt.NDArray[np.float32] | None = None,
    ) -> Int8Matrix:
        """Take `weights [outputs, inputs]`, which are multiplied by `factors [outputs]`, and `bias [outputs]`.

        Raises ValueError for arrays that do not fit.
        """
    def multiply(self, x: _Array, product: _Array) -> None:
        """Write `x @ weight.T + bias` to `product [rows, outputs]`, for `x [rows, inputs]`.

        Every row is quantised, as `quantise_rows` does; its result follows from that row alone, bit for bit.
        """
    def finish(self, sums: npt.NDArray[np.float32], scales: npt.NDArray[np.float32], product: _Array) -> None:
        """Write to `product` what `multiply` makes of rows that were quantised with factors `scales [rows]`.

        `sums [rows, outputs]` are their products with the bytes of the weight, made elsewhere.
        """

@final
class PagedAttention:
    """Writes new keys and values into the paged cache and attends over it; rows of many queries may be the caller's."""

    def __new__(cls, keys: list[_Array], values: list[_Array], block_size: int) -> PagedAttention:
        """Take the pools `[kv heads, slots, size]` of every layer; no value pools where values are part of the keys."""
    @property
    def takes_long_rows(self) -> bool:
        """Whether rows of many queries are worth giving to it."""
    def prepare(
        self,
        query_start_loc: npt.NDArray[np.int32],
        kv_lens: npt.NDArray[np.int32],
        block_table: npt.NDArray[np.int32],
        slots: npt.NDArray[np.int64],
    ) -> None:
        """Take the arrays of the next pass. Raises ValueError for one that does not fit the cache or the others."""
    def attend(
        self,
        layer: int,
        heads: _Array,
        head_count: int,
        scale: float,
        window: int,
        query_len_max: int,
        output: _Array,
    ) -> None:
        """Write the keys and values in `heads [tokens, (head_count + 2 * kv heads) * size]`, queries first, and attend.

        Rows of at most `query_len_max` queries get their `output [tokens, head_count * size]`, tokens of no row zeros;
        longer rows are left as they are. A query sees `window` keys, all if that is 0.
        """
    def attend_latent(
        self,
        layer: int,
        queries: _Array,
        latents: _Array,
        head_count: int,
        scale: float,
        query_len_max: int,
        output: _Array,
    ) -> None:
        """As `attend`, for `queries [tokens, head_count * key size]` over cached latents, which are keys and values.

        `latents [tokens, key size]` are written; `output [tokens, head_count * value size]` sums their first columns.
        """
