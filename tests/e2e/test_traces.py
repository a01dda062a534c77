"""Spans of calls, as an OpenTelemetry collector gets them from a daemon that was given its address."""

import time

import pytest

from e2e.calls import body, complete, connect, send, text
from e2e.collector import Span, collector
from e2e.conftest import StartFleet
from paceline.client import Client

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SERVER_KIND = 2


def traceparent(flags: str = "01") -> str:
    return f"00-{TRACE}-{PARENT}-{flags}"


def parts(spans: list[Span], call: Span) -> dict[str, Span]:
    return {span.name: span for span in spans if span.parent == call.id}


def calls(spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.name == "llm_request"]


def test_a_call_is_told_with_its_parts_within_its_callers_trace(start_fleet: StartFleet) -> None:
    before_ns = time.time_ns()
    with collector() as kept:
        daemon = start_fleet("-dp", "2", "--otlp-traces-endpoint", f"http://{kept.address}", worker="--delay-ms 2")
        headers = {"traceparent": traceparent(), "X-Request-Id": "mine", "X-data-parallel-rank": "1"}
        assert complete(daemon, body([300, 301, 302], 6, top_p=0.5), headers)[0] == 200
        spans = kept.wait(lambda spans: len(spans) >= 4)
    (call,) = calls(spans)
    assert (call.trace, call.parent, call.kind, call.error, call.service) == (TRACE, PARENT, SERVER_KIND, "", "paceline")
    below = parts(spans, call)
    assert list(below) == ["queue", "prefill", "decode"]
    assert {span.trace for span in spans} == {TRACE}
    assert len({span.id for span in spans}) == 4

    queue, prefill, decode = below.values()
    times = [before_ns, call.start_ns, queue.start_ns, queue.end_ns, prefill.end_ns, decode.end_ns, call.end_ns, time.time_ns()]
    assert times == sorted(times)
    assert (queue.end_ns, prefill.end_ns) == (prefill.start_ns, decode.start_ns)
    assert decode.end_ns - decode.start_ns > 5 * 1_000_000, "five steps of two milliseconds and more"

    told = call.attributes
    assert told["gen_ai.request.id"] == "cmpl-mine"
    assert told["gen_ai.response.model"] == "tiny"
    assert (told["gen_ai.usage.prompt_tokens"], told["gen_ai.usage.completion_tokens"]) == (3, 6)
    assert (told["gen_ai.request.max_tokens"], told["gen_ai.request.n"], told["gen_ai.usage.num_sequences"]) == (6, 1, 1)
    assert (told["gen_ai.request.temperature"], told["gen_ai.request.top_p"]) == (0, 0.5)
    assert told["gen_ai.latency.e2e"] == pytest.approx((call.end_ns - call.start_ns) / 1e9, abs=1e-4)
    assert told["paceline.dp_rank"] == 1
    assert {span.attributes["paceline.dp_rank"] for span in below.values()} == {1}


def test_grpc_calls_choices_and_failures_are_told_too_and_a_caller_may_want_none(start_fleet: StartFleet) -> None:
    with collector() as kept:
        daemon = start_fleet("-dp", "2", "--otlp-traces-endpoint", f"grpc://{kept.address}")
        # Not sampled, so not told; nor is what is no traceparent gone on with.
        assert complete(daemon, body([1], 2), {"traceparent": traceparent("00")})[0] == 200
        assert complete(daemon, body([1], 2), {"traceparent": "00-nonsense", "X-Request-Id": "own"})[0] == 200
        assert complete(daemon, body([1], 2, n=2), {"X-Request-Id": "two"})[0] == 200
        assert complete(daemon, body([1], 100_000), {"X-Request-Id": "long"})[0] == 400
        with Client(daemon.address("grpc")) as client:
            client.generate([1, 2], max_tokens=3, temperature=0, ignore_eos=True, request_id="typed")
        by_id = {}
        for call in calls(kept.wait(lambda spans: len(calls(spans)) >= 4)):
            by_id[call.attributes["gen_ai.request.id"]] = call
        spans = list(kept.spans)
    assert set(by_id) == {"cmpl-own", "cmpl-two", "cmpl-long", "typed"}
    assert TRACE not in {span.trace for span in spans}
    assert all(call.parent == "" for call in by_id.values())
    assert len({call.trace for call in by_id.values()}) == 4
    two = [span for span in spans if span.parent == by_id["cmpl-two"].id]
    assert sorted((span.attributes["paceline.choice"], span.name) for span in two) == [
        (choice, name) for choice in (0, 1) for name in ("decode", "prefill", "queue")
    ]
    assert "exceed this model's context of 4096 tokens" in by_id["cmpl-long"].error
    assert parts(spans, by_id["cmpl-long"]) == {}
    assert by_id["typed"].attributes["gen_ai.usage.completion_tokens"] == 3


def test_spans_go_on_where_a_trace_came_over_grpc(start_fleet: StartFleet) -> None:
    import grpc

    from paceline.v1.generation_pb2 import GenerateRequest, Stopping, TokenIds
    from paceline.v1.generation_pb2_grpc import GenerationStub

    with collector() as kept:
        daemon = start_fleet("--otlp-traces-endpoint", f"http://{kept.address}")
        request = GenerateRequest(token_ids=TokenIds(ids=[5, 6]), stopping=Stopping(max_tokens=2, ignore_eos=True))
        with grpc.insecure_channel(daemon.address("grpc")) as channel:
            list(GenerationStub(channel).Generate(request, metadata=(("traceparent", traceparent()),), timeout=60))
        spans = kept.wait(lambda spans: len(spans) >= 4)
    (call,) = calls(spans)
    assert (call.trace, call.parent) == (TRACE, PARENT)


def test_spans_are_sent_in_batches_and_the_last_before_the_daemon_ends(start_fleet: StartFleet) -> None:
    with collector() as kept:
        daemon = start_fleet("--otlp-traces-endpoint", f"http://{kept.address}")
        connection = connect(daemon)
        for number in range(60):
            send(connection, body([number + 1], 1), {})
            response = connection.getresponse()
            response.read()
        connection.close()
        assert daemon.stop() == 0
        assert len(calls(kept.spans)) == 60
        assert kept.exports < 30


def test_a_collector_that_comes_late_gets_what_comes_after(start_fleet: StartFleet) -> None:
    with collector() as kept:
        port = int(kept.address.rsplit(":", 1)[1])
    daemon = start_fleet("--otlp-traces-endpoint", f"http://127.0.0.1:{port}")
    assert text(daemon, [1, 2], 2)
    daemon.wait_line(lambda line: "are dropped until they do" in line, limit_s=30, what="warning of the collector")
    with collector(port) as kept:
        assert text(daemon, [1, 2], 2)
        kept.wait(bool)
        daemon.wait_line(lambda line: "again" in line and "spans reach" in line, limit_s=30, what="end of the warning")
    assert sum("are dropped until they do" in line for line in daemon.lines) == 1


def test_an_address_that_is_none_is_bad_usage(start_fleet: StartFleet) -> None:
    daemon = start_fleet("--otlp-traces-endpoint", "https://127.0.0.1:4317", ready=False)
    assert daemon.wait(limit_s=20) == 64
    assert daemon.lines[-1].startswith("paceline: --otlp-traces-endpoint: spans cannot be sent to https://127.0.0.1:4317:")
