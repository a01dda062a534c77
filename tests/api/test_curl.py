"""curl against the whole server: libcurl itself, which the `test` extra brings, since no `curl` command is assumed."""

from __future__ import annotations

import io
import json
from typing import Any

import pycurl

from .conftest import KEY, MODEL, Api


def curl(url: str, *headers: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """Status and text of `curl URL [-H HEADER]... [-d BODY]`."""
    answer = io.BytesIO()
    handle = pycurl.Curl()
    handle.setopt(pycurl.URL, url)
    handle.setopt(pycurl.HTTPHEADER, list(headers))
    handle.setopt(pycurl.WRITEDATA, answer)
    handle.setopt(pycurl.TIMEOUT, 30)
    if body is not None:
        handle.setopt(pycurl.POSTFIELDS, json.dumps(body))
    handle.perform()
    status = int(handle.getinfo(pycurl.RESPONSE_CODE))
    handle.close()
    return status, answer.getvalue().decode()


BEARER = f"Authorization: Bearer {KEY}"
JSON = "Content-Type: application/json"


def test_the_lines_of_the_readme(api: Api) -> None:
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 8, "temperature": 0}
    status, text = curl(f"{api.base_url}/chat/completions", BEARER, JSON, body=body)
    answer = json.loads(text)
    assert (status, answer["object"], answer["model"]) == (200, "chat.completion", MODEL)
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["usage"]["completion_tokens"] <= 8


def test_a_stream_says_what_the_whole_answer_says(api: Api) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    whole = json.loads(curl(f"{api.base_url}/completions", BEARER, JSON, body=body)[1])["choices"][0]["text"]
    status, text = curl(f"{api.base_url}/completions", BEARER, JSON, body=body | {"stream": True})
    events = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert (status, events[-1]) == (200, "[DONE]")
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]) == whole


def test_curls_own_content_type_is_taken_and_a_bad_field_is_named(api: Api) -> None:
    """`curl -d` without -H says that it sends a form; the body is read as the JSON it is."""
    assert curl(f"{api.base_url}/completions", BEARER, body={"prompt": "x", "max_tokens": 1})[0] == 200
    status, text = curl(f"{api.base_url}/completions", BEARER, body={"prompt": "x", "max_tokens": -1})
    assert (status, json.loads(text)["error"]["param"]) == (400, "max_tokens")


def test_routes_without_a_body(api: Api) -> None:
    assert curl(f"http://{api.http}/health")[0] == 200
    assert curl(f"http://{api.http}/ready", BEARER)[0] == 200
    assert json.loads(curl(f"{api.base_url}/models", BEARER)[1])["data"][0]["id"] == MODEL
    assert "paceline_ready 1" in curl(f"http://{api.http}/metrics", BEARER)[1]
    assert curl(f"{api.base_url}/models")[0] == 401
