"""`paceline chat`, `paceline bench` and `paceline batch` against a daemon with scripted workers, as people type them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from .conftest import StartFleet

LIMIT_S = 60


def paceline(*arguments: str | Path, said: str = "") -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    command = [sys.executable, "-m", "paceline", *map(str, arguments)]
    return subprocess.run(command, input=said, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_a_load_is_measured(start_fleet: StartFleet, tmp_path: Path) -> None:
    daemon = start_fleet("-dp", "2")
    result = tmp_path / "result.json"
    load = ("--num-prompts", "24", "--max-concurrency", "8", "--random-input-len", "16", "--random-output-len", "8")
    done = paceline("bench", "--url", daemon.url, *load, "--goodput", "ttft:60000", "--result-file", result)
    assert done.returncode == 0, done.stderr
    assert "time to first token" in done.stdout
    numbers = json.loads(result.read_text())
    assert (numbers["completed"], numbers["failed"]) == (24, 0)
    assert (numbers["total_input_tokens"], numbers["total_output_tokens"]) == (24 * 16, 24 * 8)
    assert numbers["request_goodput"] == numbers["request_throughput"]


def test_a_batch_goes_on_where_it_was_cut(start_fleet: StartFleet, tmp_path: Path) -> None:
    daemon = start_fleet("-dp", "2")
    requests, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bodies = [{"prompt": [300 + index], "max_tokens": 4, "temperature": 0} for index in range(5)]
    bodies.append({"prompt": [1], "max_tokens": -1})
    lines = [
        json.dumps({"custom_id": f"r{index}", "method": "POST", "url": "/v1/completions", "body": body})
        for index, body in enumerate(bodies)
    ]
    requests.write_text("\n".join(lines))
    done = paceline("batch", "--url", daemon.url, requests, answers)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, f"5 answered, 1 refused, 0 answered before: {answers}")
    whole = answers.read_text().splitlines()
    by_id = {record["custom_id"]: record["response"] for record in map(json.loads, whole)}
    assert [by_id[f"r{index}"]["status_code"] for index in range(6)] == [200] * 5 + [400]
    assert by_id["r0"]["body"]["usage"]["completion_tokens"] == 4
    assert "max_tokens" in by_id["r5"]["body"]["error"]["message"]

    answers.write_text("\n".join(whole[:4]) + "\n" + whole[4][:30])
    done = paceline("batch", "--url", daemon.url, requests, answers)
    assert done.returncode == 0
    assert "4 answered before" in done.stderr
    assert len(answers.read_text().splitlines()) == 6


def test_a_chat_is_held_in_the_terminal(start_fleet: StartFleet) -> None:
    daemon = start_fleet("-dp", "1")
    done = paceline("chat", "--url", daemon.url, "--max-tokens", "4", "--temperature", "0", said="hello\n/quit\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"tiny at {daemon.url}.")
    once = paceline("chat", "--url", daemon.url, "--max-tokens", "4", "--temperature", "0", "hello")
    assert once.returncode == 0
    assert once.stdout.strip()
    assert once.stdout.strip() in done.stdout


def test_no_server_is_one_line_and_no_traceback() -> None:
    for command in (["bench"], ["chat", "hello"]):
        done = paceline(*command, "--url", "http://127.0.0.1:1")
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
        assert "http://127.0.0.1:1" in done.stderr
