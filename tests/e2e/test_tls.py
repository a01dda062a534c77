"""`--ssl-certfile` and `--ssl-keyfile`: HTTPS and gRPC over TLS with a certificate that the clients are told to trust."""

import json
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest

from e2e.conftest import StartFleet
from paceline.client import Client, UnavailableError
from support.daemon import Daemon
from support.processes import ROOT

FOLDER = ROOT / "tests" / "data" / "tls"
CERTIFICATE, KEY = FOLDER / "certificate.pem", FOLDER / "key.pem"
ENCRYPTED = ("--ssl-certfile", str(CERTIFICATE), "--ssl-keyfile", str(KEY))


@pytest.fixture
def encrypted(start_fleet: StartFleet) -> Daemon:
    daemon = start_fleet(*ENCRYPTED, ready=False)
    line = daemon.wait_line(lambda line: "paceline: ready " in line, limit_s=30, what="ready line")
    assert f"ready https://{daemon.address('http')} " in line
    return daemon


def test_https_answers_and_plain_http_is_told_where_it_is(encrypted: Daemon) -> None:
    address = encrypted.address("http")
    trusting = ssl.create_default_context(cafile=CERTIFICATE)
    with urllib.request.urlopen(f"https://{address}/ready", timeout=10, context=trusting) as answer:
        assert answer.status == 200
    body = json.dumps({"prompt": [1, 2], "max_tokens": 3, "ignore_eos": True}).encode()
    with urllib.request.urlopen(f"https://{address}/v1/completions", body, timeout=30, context=trusting) as answer:
        assert json.loads(answer.read())["usage"]["completion_tokens"] == 3

    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"https://{address}/ready", timeout=10, context=ssl.create_default_context())
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://{address}/v1/completions", body, timeout=10)
    with refused.value as answer:
        assert answer.status == 400
        assert b"speaks HTTPS" in answer.read()
    # What is neither ends without an answer to what it said, and holds up nobody.
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10), socket.create_connection((host, int(port)), timeout=10) as other:
        other.sendall(b"\x16\x03\x01 no handshake at all")
        with urllib.request.urlopen(f"https://{address}/health", timeout=10, context=trusting) as answer:
            assert answer.status == 200


def test_grpc_is_encrypted_too(encrypted: Daemon) -> None:
    credentials = grpc.ssl_channel_credentials(CERTIFICATE.read_bytes())
    with Client(encrypted.address("grpc"), credentials=credentials, timeout_s=30) as client:
        assert len(client.generate([1, 2], max_tokens=4, ignore_eos=True).token_ids) == 4
        assert client.model_info().model == "tiny"
    with Client(encrypted.address("grpc"), timeout_s=30) as client, pytest.raises(UnavailableError):
        client.generate([1, 2], max_tokens=4)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (ENCRYPTED[:2], "--ssl-certfile and --ssl-keyfile go together"),
        (("--ssl-certfile", str(KEY), "--ssl-keyfile", str(KEY)), f"{KEY} cannot be used for TLS"),
        ((*ENCRYPTED[:3], "nowhere.pem"), "nowhere.pem cannot be used for TLS"),
    ],
)
def test_files_that_do_not_fit_are_bad_usage(start_fleet: StartFleet, flags: tuple[str, ...], named: str) -> None:
    daemon = start_fleet(*flags, ready=False)
    assert daemon.wait(limit_s=20) == 64
    assert named in daemon.lines[-1]
    assert not [line for line in daemon.lines if "listening" in line]


def test_a_configuration_file_names_them_as_the_flags_do(start_fleet: StartFleet, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'ssl-certfile = "{CERTIFICATE}"\nssl-keyfile = "{KEY}"\n')
    daemon = start_fleet("--config", str(config), ready=False)
    daemon.wait_line(lambda line: "ready https://" in line, limit_s=30, what="ready line")
