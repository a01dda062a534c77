"""An OpenTelemetry collector for tests: a real gRPC server of the protocol's own schemas, which keeps what it is told."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceServicer, add_TraceServiceServicer_to_server

LIMIT_S = 30


@dataclass(frozen=True)
class Span:
    """A span as it came."""

    trace: str
    id: str
    parent: str
    name: str
    kind: int
    start_ns: int
    end_ns: int
    error: str
    attributes: dict[str, Any]
    service: str


@dataclass
class Collector(TraceServiceServicer):  # type: ignore[misc]
    """What came so far."""

    address: str = ""
    exports: int = 0
    spans: list[Span] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> ExportTraceServiceResponse:  # noqa: N802
        with self.changed:
            self.exports += 1
            for part in request.resource_spans:
                service = _attributes(part.resource.attributes)["service.name"]
                self.spans += [_span(span, service) for scope in part.scope_spans for span in scope.spans]
            self.changed.notify_all()
        return ExportTraceServiceResponse()

    def wait(self, done: Callable[[list[Span]], bool]) -> list[Span]:
        """All spans, once these are as wanted."""
        with self.changed:
            assert self.changed.wait_for(lambda: done(self.spans), LIMIT_S), [span.name for span in self.spans]
            return list(self.spans)


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def _span(span: Any, service: str) -> Span:
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    times = (span.start_time_unix_nano, span.end_time_unix_nano)
    error = span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else ""
    return Span(*ids, span.name, span.kind, *times, error, _attributes(span.attributes), service)


@contextmanager
def collector(port: int = 0) -> Iterator[Collector]:
    """A collector that runs until the block ends."""
    server = grpc.server(ThreadPoolExecutor(2))
    kept = Collector()
    add_TraceServiceServicer_to_server(kept, server)
    kept.address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    server.start()
    try:
        yield kept
    finally:
        server.stop(None).wait()
