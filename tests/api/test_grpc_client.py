"""gRPC clients against the whole server: generated stubs, reflection, health."""

from collections.abc import Iterator

import grpc
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from paceline.v1 import generation_pb2, generation_pb2_grpc

from .conftest import KEY, Api

METADATA = (("authorization", f"Bearer {KEY}"),)


class _WithKey(grpc.UnaryStreamClientInterceptor, grpc.StreamStreamClientInterceptor):  # type: ignore[misc]
    """Adds the key to every call, for clients that take no metadata."""

    def intercept_stream_stream(self, continuation, details, request):  # type: ignore[no-untyped-def]
        return continuation(details._replace(metadata=METADATA), request)

    def intercept_unary_stream(self, continuation, details, request):  # type: ignore[no-untyped-def]
        return continuation(details._replace(metadata=METADATA), request)


@pytest.fixture(scope="module")
def channel(api: Api) -> Iterator[grpc.Channel]:
    """A plain connection."""
    with grpc.insecure_channel(api.grpc) as channel:
        yield channel


def test_a_call_streams_tokens_and_ends_with_usage(channel: grpc.Channel) -> None:
    stub = generation_pb2_grpc.GenerationStub(channel)
    request = generation_pb2.GenerateRequest(
        token_ids=generation_pb2.TokenIds(ids=[300, 301, 302]),
        n=2,
        logprobs=1,
        sampling=generation_pb2.Sampling(temperature=0),
        stopping=generation_pb2.Stopping(max_tokens=6, ignore_eos=True),
    )
    responses = list(stub.Generate(request, metadata=METADATA, timeout=60))
    by_choice = [[token for response in responses if response.index == index for token in response.token_ids] for index in range(2)]
    assert [len(tokens) for tokens in by_choice] == [6, 6]
    assert by_choice[0] == by_choice[1]
    assert (responses[-1].usage.prompt_tokens, responses[-1].usage.completion_tokens) == (3, 12)
    assert all(len(response.logprobs) == len(response.token_ids) for response in responses)
    assert responses[-1].finish_reason == generation_pb2.FINISH_REASON_LENGTH


def test_e20_codes_tell_the_callers_fault_from_the_servers(channel: grpc.Channel) -> None:
    stub = generation_pb2_grpc.GenerationStub(channel)
    with pytest.raises(grpc.RpcError) as refused:
        list(stub.Generate(generation_pb2.GenerateRequest(text=""), metadata=METADATA, timeout=60))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as refused:
        list(stub.Generate(generation_pb2.GenerateRequest(text="x"), timeout=60))
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    request = generation_pb2.GenerateRequest(
        text="x", stopping=generation_pb2.Stopping(max_tokens=200, ignore_eos=True), sampling=generation_pb2.Sampling(temperature=0)
    )
    call = stub.Generate(request, metadata=METADATA, timeout=60)
    next(call)
    call.cancel()
    with pytest.raises(grpc.RpcError):
        list(call)
    assert call.code() == grpc.StatusCode.CANCELLED


def test_a_reflection_client_needs_no_generated_code(channel: grpc.Channel) -> None:
    keyed = grpc.intercept_channel(channel, _WithKey())
    database = ProtoReflectionDescriptorDatabase(keyed)
    assert {"paceline.v1.Generation", "grpc.health.v1.Health"} <= set(database.get_services())
    pool = descriptor_pool.DescriptorPool(database)
    method = pool.FindServiceByName("paceline.v1.Generation").FindMethodByName("Generate")
    request_class = message_factory.GetMessageClass(method.input_type)
    response_class = message_factory.GetMessageClass(method.output_type)
    request = json_format.ParseDict({"text": "speak", "stopping": {"max_tokens": 3, "ignore_eos": True}}, request_class())
    call = keyed.unary_stream(
        "/paceline.v1.Generation/Generate",
        request_serializer=request_class.SerializeToString,
        response_deserializer=response_class.FromString,
    )
    tokens = [token for response in call(request, timeout=60) for token in response.token_ids]
    assert len(tokens) == 3


def test_health_is_serving_without_a_key(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(service="paceline.v1.Generation"), timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as refused:
        stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=60)
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND
