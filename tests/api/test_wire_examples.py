"""The lines of proto/README.md: each names what there is, sends what the schema takes, and is answered by a server."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2

from paceline.v1 import admin_pb2, generation_pb2
from support.cargo import Build
from support.processes import ROOT

from .conftest import KEY, Api, serve

README = (ROOT / "proto" / "README.md").read_text()
COMMAND = re.compile(r"^\$ (grpcurl .+(?:\n    .+)*)$", re.MULTILINE)
OURS = [service for file in (generation_pb2, admin_pb2) for service in file.DESCRIPTOR.services_by_name.values()]
KNOWN = {service.full_name: service for service in [*OURS, health_pb2.DESCRIPTOR.services_by_name["Health"]]}


@dataclass
class Line:
    """One command."""

    target: str = ""
    """`list`, `describe`, or SERVICE/METHOD."""
    subject: str = ""
    """What is described."""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: dict[str, Any] = field(default_factory=dict)


def read(command: str) -> Line:
    """Reads a command as grpcurl does, as far as it is used here."""
    words = iter(shlex.split(command.replace("\\\n", " "))[1:])
    line, rest = Line(), []
    for word in words:
        if word == "-H":
            name, value = next(words).split(": ", 1)
            line.headers.append((name, value))
        elif word == "-d":
            line.body = json.loads(next(words))
        elif word != "-plaintext":
            rest.append(word)
    address, line.target, *more = rest
    assert address == "127.0.0.1:8001", command
    line.subject = " ".join(more)
    return line


LINES = [read(command) for command in COMMAND.findall(README)]
CALLS = [line for line in LINES if "/" in line.target]


def method_of(line: Line) -> Any:
    service, method = line.target.split("/")
    return KNOWN[service].methods_by_name[method]


def test_every_line_is_read_and_every_method_has_one() -> None:
    assert len(LINES) == README.count("$ grpcurl")
    called = {line.target for line in CALLS}
    wanted = {f"{service.full_name}/{method}" for service in OURS for method in service.methods_by_name}
    assert called == wanted | {"grpc.health.v1.Health/Check"}


def test_services_of_the_table_are_those_there_are() -> None:
    told = set(re.findall(r"^\| `([\w.]+)` \|", README, re.MULTILINE))
    assert told == set(KNOWN)


@pytest.mark.parametrize("line", CALLS, ids=lambda line: line.target)
def test_bodies_are_what_the_schemas_take(line: Line) -> None:
    json_format.ParseDict(line.body, message_factory.GetMessageClass(method_of(line).input_type)())


@pytest.fixture(scope="module")
def channel(rust_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """A connection to a server that may be operated."""
    for api in serve(rust_build, tmp_path_factory.mktemp("examples"), ["--enable-admin", "--enable-prefix-caching"]):
        assert isinstance(api, Api)
        with grpc.insecure_channel(api.grpc) as channel:
            yield channel


def test_the_lines_run_from_top_to_bottom(channel: grpc.Channel) -> None:
    key = ("authorization", f"Bearer {KEY}")
    for line in CALLS:
        method = method_of(line)
        request = json_format.ParseDict(line.body, message_factory.GetMessageClass(method.input_type)())
        answer_class = message_factory.GetMessageClass(method.output_type)
        stub = channel.unary_stream if method.server_streaming else channel.unary_unary
        call = stub(
            f"/{line.target}", request_serializer=type(request).SerializeToString, response_deserializer=answer_class.FromString
        )
        answer = call(request, metadata=[*line.headers, key], timeout=30)
        if line.target.endswith("SubscribeCacheEvents"):
            answer.initial_metadata()
            answer.cancel()
        elif line.target.endswith("Generate"):
            pieces = list(answer)
            assert pieces[-1].usage.completion_tokens > 0
        else:
            assert isinstance(answer, answer_class)


def test_what_is_described_is_in_the_schemas() -> None:
    pool = descriptor_pool.Default()
    described = [line.subject for line in LINES if line.target == "describe"]
    assert described
    for subject in described:
        assert pool.FindMessageTypeByName(subject).full_name == subject
