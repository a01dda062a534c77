"""The `openai` client's tools, structured answers and their streams, against workers whose model says nothing in particular.

Whatever the client parses came about because it was forced: the model's own words are noise.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from support.cargo import Build

from .conftest import KEY, MODEL, Api, serve

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Weather in Bern?"}]


class Weather(BaseModel):
    """What a tool is called with."""

    city: Annotated[str, Field(max_length=6)]
    unit: Literal["celsius", "kelvin"]
    hourly: bool


class Answer(BaseModel):
    """What an answer has to be."""

    colour: Literal["red", "blue"]
    is_sure: bool
    note: Annotated[str, Field(max_length=4)] | None


@pytest.fixture(scope="module")
def tools_api(rust_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server that reads calls as Hermes and Qwen write them."""
    yield from serve(rust_build, tmp_path_factory.mktemp("tools"), ["--tool-call-parser", "hermes"])


@pytest.fixture(scope="module")
def client(tools_api: Api) -> Iterator[openai.OpenAI]:
    """A client with the server's key."""
    with openai.OpenAI(base_url=tools_api.base_url, api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


def weather_tool() -> Any:
    """The tool as the client describes it: strict."""
    return openai.pydantic_function_tool(Weather, name="weather")


def plain_tool(name: str) -> Any:
    """A tool without parameters."""
    return {"type": "function", "function": {"name": name}}


def named(name: str) -> Any:
    """A choice of one tool."""
    return {"type": "function", "function": {"name": name}}


def test_a_required_call_is_parsed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, tools=[weather_tool()], tool_choice="required", parallel_tool_calls=False, temperature=0
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    [call] = choice.message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)
    assert len(call.function.parsed_arguments.city) <= 6


def test_a_named_call_ends_with_stop_and_none_calls_nothing(client: openai.OpenAI) -> None:
    tools = [weather_tool(), plain_tool("now")]
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=tools, tool_choice=named("now"))
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    [call] = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("now", {})
    free = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=tools, tool_choice="none", max_tokens=8)
    assert free.choices[0].message.tool_calls is None
    with pytest.raises(openai.BadRequestError, match="there are: weather, now") as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=tools, tool_choice=named("later"))
    assert refused.value.param == "tool_choice.function.name"


def test_a_forced_call_streams(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, tools=[weather_tool()], tool_choice="required", parallel_tool_calls=False, temperature=0
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    [call] = final.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)
    assert final.choices[0].finish_reason == "tool_calls"


def test_a_call_and_its_result_go_back_into_the_chat(client: openai.OpenAI) -> None:
    tools = [weather_tool()]
    first = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=tools, tool_choice="required", temperature=0)
    [call, *_] = first.choices[0].message.tool_calls or []
    conversation: list[Any] = [
        *MESSAGES,
        first.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    second = client.chat.completions.create(model=MODEL, messages=conversation, tools=tools, tool_choice="none", max_tokens=4)
    assert second.usage is not None
    assert second.usage.completion_tokens <= 4


def test_an_answer_is_parsed_by_its_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Answer, temperature=0)
    assert isinstance(answer.choices[0].message.parsed, Answer)
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, response_format=Answer, temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == answer.choices[0].message.parsed == Answer.model_validate_json(text)
    tool_beside = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Answer, tools=[weather_tool()], seed=3, parallel_tool_calls=False
    )
    message = tool_beside.choices[0].message
    calls = [call.function.parsed_arguments for call in message.tool_calls or []]
    assert isinstance(message.parsed, Answer) or all(isinstance(call, Weather) for call in calls)


def test_a_response_is_parsed_and_calls_functions(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model=MODEL, input="Which colour?", text_format=Answer, temperature=0)
    assert isinstance(parsed.output_parsed, Answer)
    tool: Any = openai.pydantic_function_tool(Weather, name="weather")["function"]
    asked: dict[str, Any] = {
        "model": MODEL,
        "input": "Weather?",
        "tools": [{"type": "function", **tool}],
        "tool_choice": {"type": "function", "name": "weather"},
        "temperature": 0,
    }
    [call] = client.responses.create(**asked).output
    assert call.type == "function_call"
    Weather.model_validate_json(call.arguments)
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert "response.function_call_arguments.done" in kinds
    [streamed] = final.output
    assert streamed.type == "function_call"
    assert streamed.arguments == call.arguments


def test_the_asynchronous_client_has_the_same_paths(tools_api: Api) -> None:
    async def text(stream: AsyncIterator[Any]) -> str:
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=tools_api.base_url, api_key=KEY, max_retries=0, timeout=60) as client:
            asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
            whole, stream = await asyncio.gather(
                client.chat.completions.create(**asked), client.chat.completions.create(**asked, stream=True)
            )
            assert await text(stream) == whole.choices[0].message.content
            parsed = await client.chat.completions.parse(
                model=MODEL, messages=MESSAGES, tools=[weather_tool()], tool_choice=named("weather")
            )
            [call] = parsed.choices[0].message.tool_calls or []
            assert isinstance(call.function.parsed_arguments, Weather)
            answers = await asyncio.gather(
                *(
                    client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Answer, seed=seed)
                    for seed in range(8)
                )
            )
            assert all(isinstance(answer.choices[0].message.parsed, Answer) for answer in answers)
            pieces = [
                chunk async for chunk in await client.completions.create(model=MODEL, prompt="speak", max_tokens=4, stream=True)
            ]
            assert pieces[-1].choices[0].finish_reason in ("length", "stop")
            # A stream that is left ends the request, not the client.
            left = await client.chat.completions.create(**{**asked, "max_tokens": 150}, stream=True)
            await anext(aiter(left))
            await left.close()
            assert (await client.models.list()).data[0].id == MODEL

    asyncio.run(run())


def test_streamed_log_probabilities_are_those_of_the_whole_answer(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": MESSAGES,
        "logprobs": True,
        "top_logprobs": 2,
        "max_tokens": 8,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**asked).choices[0].logprobs
    assert whole is not None
    chunks = list(client.chat.completions.create(**asked, stream=True))
    held = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices]
    streamed = [token for logprobs in held if logprobs is not None for token in logprobs.content or []]
    assert streamed == whole.content
    assert all(len(token.top_logprobs) == 2 for token in streamed)
    constrained = client.chat.completions.create(**{**asked, "max_tokens": 100}, extra_body={"guided_choice": ["yes", "no"]})
    assert constrained.choices[0].message.content in ("yes", "no")
    content = constrained.choices[0].logprobs.content if constrained.choices[0].logprobs else None
    assert content
