"""The `openai` client against the whole server: daemon, scheduler, two ranks."""

import concurrent.futures
import http.client
import json
from collections.abc import Iterator

import openai
import pytest

from .conftest import KEY, MODEL, Api


@pytest.fixture(scope="module")
def client(api: Api) -> Iterator[openai.OpenAI]:
    """A client with the server's key."""
    with openai.OpenAI(base_url=api.base_url, api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


def metric(api: Api, series: str) -> float:
    """The value of one line of `/metrics`."""
    connection = http.client.HTTPConnection(api.http, timeout=10)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {KEY}"})
    text = connection.getresponse().read().decode()
    connection.close()
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{series} "))


def running(api: Api) -> float:
    """Requests that some rank runs."""
    return sum(metric(api, f'paceline_requests_running{{dp_rank="{dp_rank}"}}') for dp_rank in range(2))


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "paceline"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/other")


def test_a_stream_says_what_a_whole_answer_says(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "prompt": "First Citizen:", "max_tokens": 24, "temperature": 0}
    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 24
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason


def test_a_chat_streams_role_text_and_usage(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Name one colour."}], "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    usage = chunks[-1].usage
    assert whole.usage is not None
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    # The second time the prompt's whole blocks come from the cache, and nothing else of the usage differs.
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16 > 0
    assert usage == whole.usage.model_copy(update={"prompt_tokens_details": usage.prompt_tokens_details})


def test_choices_batches_and_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt=["speak", "hear"],
        n=2,
        max_tokens=6,
        logprobs=2,
        temperature=0.9,
        seed=5,
        extra_body={"ignore_eos": True},
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert len(choice.logprobs.tokens or []) == 6
        assert len(choice.logprobs.top_logprobs or []) == 6
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "x"}], logprobs=True, top_logprobs=3, max_tokens=4, temperature=0
    )
    content = chat.choices[0].logprobs.content if chat.choices[0].logprobs else None
    assert content is not None
    assert chat.usage is not None
    assert len(content) == chat.usage.completion_tokens
    assert all(len(token.top_logprobs) == 3 for token in content)
    assert content[0].top_logprobs[0].token == content[0].token


def test_a_text_is_the_same_on_any_rank(client: openai.OpenAI) -> None:
    def ask(dp_rank: int) -> str:
        headers = {"X-data-parallel-rank": str(dp_rank)}
        answer = client.completions.create(
            model=MODEL, prompt="speak", max_tokens=16, temperature=0.8, seed=7, extra_headers=headers
        )
        return answer.choices[0].text

    assert ask(0) == ask(1)


def test_e14_many_calls_at_once_are_all_answered(client: openai.OpenAI) -> None:
    def ask(index: int) -> int:
        answer = client.completions.create(
            model=MODEL, prompt=[index + 300], max_tokens=8, temperature=0, extra_body={"ignore_eos": True}
        )
        assert answer.usage is not None
        return answer.usage.completion_tokens

    with concurrent.futures.ThreadPoolExecutor(48) as pool:
        assert list(pool.map(ask, range(48))) == [8] * 48


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("top_p", 1.5),
        ("n", 0),
        ("max_tokens", 100_000),
        ("seed", "x"),
        ("stop", ["s"] * 5_000),
        ("nothing", 1),
    ],
)
def test_e11_a_bad_value_names_its_field(client: openai.OpenAI, field: str, value: object) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="x", extra_body={field: value})
    assert refused.value.param == field


def test_other_refusals_are_the_clients_own_exceptions(client: openai.OpenAI, api: Api) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="nope", prompt="x")
    with pytest.raises(openai.AuthenticationError), openai.OpenAI(base_url=api.base_url, api_key="wrong", max_retries=0) as other:
        other.completions.create(model=MODEL, prompt="x")
    for bad_rank in ("2", "-1", "x"):
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model=MODEL, prompt="x", extra_headers={"X-data-parallel-rank": bad_rank})


def test_e13_a_client_that_leaves_frees_its_request(client: openai.OpenAI, api: Api) -> None:
    before = metric(api, 'paceline_request_abort_total{cause="disconnect"}')
    stream = client.completions.create(
        model=MODEL, prompt="x", n=2, max_tokens=200, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    assert running(api) == 2
    stream.close()
    # Each look is a call of its own; the test's time limit ends a leak.
    while running(api) > 0:
        pass
    assert metric(api, 'paceline_request_abort_total{cause="disconnect"}') == before + 1
    assert client.completions.create(model=MODEL, prompt="x", max_tokens=1).choices[0].finish_reason in ("length", "stop")


def test_plain_http_gets_events_and_error_objects(api: Api) -> None:
    connection = http.client.HTTPConnection(api.http, timeout=30)
    headers = {"Authorization": f"Bearer {KEY}", "X-Request-Id": "mine"}
    body = json.dumps({"prompt": "x", "max_tokens": 3, "stream": True, "temperature": 0})
    connection.request("POST", "/v1/completions", body, headers)
    response = connection.getresponse()
    lines = response.read().decode().splitlines()
    assert response.getheader("x-request-id") == "mine"
    assert response.getheader("content-type") == "text/event-stream"
    assert lines[-2:] == ["data: [DONE]", ""]
    assert json.loads(lines[0].removeprefix("data: "))["id"] == "cmpl-mine"
    connection.request("POST", "/v1/completions", "{", headers)
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["error"]["code"]) == (400, 400)
    connection.request("GET", "/health")
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())) == (200, {"status": "alive"})
    connection.close()
