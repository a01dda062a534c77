"""Many requests, some of them given up and some refused, leave nothing behind: neither in a map nor in memory."""

import json
from pathlib import Path

import pytest

from e2e.calls import metrics, total
from e2e.conftest import StartFleet
from e2e.test_requests import until_idle
from support.cargo import Build
from support.daemon import Daemon
from support.processes import run_limited

CONCURRENCY = 64
CANCEL_PERCENT, REFUSE_PERCENT = 10, 5
LOAD_LIMIT_S = 1500

LONG_REQUESTS = 320
"""So many of 450 tokens, so many at once, are more than 4,096 steps of two ranks, each with as many rows as there will be."""

SETTLING_REQUESTS = 60_000
"""So many make the allocator's pieces what they stay: memory goes on growing, ever slower, until about 100,000."""

BYTES_PER_REQUEST_MAX = 10
"""What a request may leave behind on average in a long run: below any entry of a map."""

NOISE_BYTES = 1 << 20
"""What an allocator gains or gives back between two looks, whatever was sent; beside it a short run's slope counts for little."""


def memory_bytes(pid: int) -> int:
    """Memory of a process that is its own or lies in swap."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return sum(int(sizes[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))


def send_load(program: Path, daemon: Daemon, requests: int, *more: str) -> dict[str, int]:
    """Sends so many requests; how many ended how."""
    command = [program, "--address", daemon.address("http"), "--requests", str(requests), "--concurrency", str(CONCURRENCY)]
    done = run_limited([*command, *more], limit_s=LOAD_LIMIT_S)
    done.check()
    ends: dict[str, int] = json.loads(done.output.splitlines()[-1])["ends"]
    return ends


@pytest.mark.timeout(1800)
def test_f10_memory_stays_flat_over_many_requests(
    start_fleet: StartFleet, rust_build: Build, request: pytest.FixtureRequest
) -> None:
    requests: int = request.config.getoption("--memory-requests")
    daemon = start_fleet("-dp", "2", worker="--num-blocks 20000")
    program = rust_build.programs["paceline-load"]
    # Buffers, thread pools and windows of samples reach their size first, and so do the explanations of the latest 4,096 steps.
    first = send_load(program, daemon, LONG_REQUESTS, "--max-tokens", "450")
    assert first == {"200": LONG_REQUESTS}
    shares = ["--cancel-percent", str(CANCEL_PERCENT), "--refuse-percent", str(REFUSE_PERCENT)]
    part = requests // 4
    settling = max(part, SETTLING_REQUESTS)
    send_load(program, daemon, settling, *shares)
    processes = {"daemon": daemon.process.pid, **{f"worker {pid}": pid for pid in daemon.children()}}
    assert len(processes) == 3

    def look() -> dict[str, int]:
        until_idle(daemon)
        return {name: memory_bytes(pid) for name, pid in processes.items()}

    looks = [look()]
    for _ in range(3):
        ends = send_load(program, daemon, part, *shares)
        refused, cancelled = part * REFUSE_PERCENT // 100, part * CANCEL_PERCENT // 100
        assert ends == {"200": part - refused - cancelled, "400": refused, "cancelled": cancelled}
        looks.append(look())
    for name in processes:
        sizes = [sample[name] for sample in looks]
        grown, limit = sizes[-1] - sizes[0], NOISE_BYTES + BYTES_PER_REQUEST_MAX * 3 * part
        print(f"{name}: {sizes} bytes, {grown / (3 * part):.2f} a request")
        assert grown < limit, f"{name} grew by {grown} bytes over {3 * part} requests: {sizes}"

    samples = metrics(daemon)
    for gauge in ("paceline_requests_known", "paceline_calls_open", "paceline_kv_blocks_used", "paceline_requests_waiting"):
        assert total(samples, gauge) == 0, gauge
    # No call is in two counts. Who leaves may have been answered already, or leave before the call has begun.
    sent = settling + 3 * part
    refused, cancelled = sent * REFUSE_PERCENT // 100, sent * CANCEL_PERCENT // 100
    answered = sent - refused - cancelled + LONG_REQUESTS
    succeeded, aborted = (total(samples, f"paceline_request_{end}_total") for end in ("success", "abort"))
    assert total(samples, "paceline_request_reject_total") == refused
    assert answered <= succeeded <= succeeded + aborted <= answered + cancelled
    assert aborted > 0
    assert total(samples, "paceline_request_error_total") == 0
