"""The repository as a whole: Python lints and types, the package, and the maps from cases and behaviours to tests."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.processes import ROOT, run_limited

CASES = ROOT / "tests" / "field_cases.toml"
CASE_TEST = re.compile(r"\b(?:fn |def test_)(([a-g]\d\d)_\w+)")
BEHAVIOURS = ROOT / "tests" / "vllm_behaviours.toml"
ANY_TEST = re.compile(r"\b(?:fn |def test_)(\w+)\(")


def toml(path: Path) -> dict:
    return tomllib.loads(path.read_text())


def sources() -> list[Path]:
    """All files that tests are written in."""
    return [*ROOT.glob("crates/*/src/**/*.rs"), *ROOT.glob("crates/*/tests/**/*.rs"), *ROOT.glob("tests/**/*.py")]


def case_tests() -> dict[str, set[str]]:
    """Names of all tests in the sources that are named by a case's id, by id; Python's without `test_`."""
    found: dict[str, set[str]] = {}
    for source in sources():
        for name, case in CASE_TEST.findall(source.read_text()):
            found.setdefault(case.upper(), set()).add(name)
    return found


def test_every_field_case_has_its_test_or_a_reason() -> None:
    cases = toml(CASES)
    found = case_tests()
    problems = []
    for case, entry in cases.items():
        named = set(entry.get("tests", []))
        actual = found.pop(case, set())
        if set(entry) not in ({"tests"}, {"reason"}, {"tests", "reason"}):
            problems.append(f"{case}: has {sorted(entry)}, wants tests, a reason, or both (a part that is not built yet)")
        if "tests" in entry and not named:
            problems.append(f"{case}: names no test")
        problems += [f"{case}: no test {name} in the sources" for name in sorted(named - actual)]
        problems += [f"{case}: the test {name} is missing in the map" for name in sorted(actual - named)]
    problems += [f"{case}: tests {sorted(names)} but no entry" for case, names in found.items()]
    assert not problems, "\n".join(problems)


def test_every_behaviour_of_vllm_has_its_test_or_a_reason() -> None:
    behaviours = toml(BEHAVIOURS)
    names = {name for source in sources() for name in ANY_TEST.findall(source.read_text())}
    problems = []
    for number, entry in behaviours.items():
        if set(entry) not in ({"tests"}, {"reason"}, {"tests", "reason"}) or entry.get("tests") == []:
            problems.append(f"{number}: has {sorted(entry)}, wants tests, a reason, or both")
        problems += [f"{number}: no test {name} in the sources" for name in entry.get("tests", []) if name not in names]
    assert not problems, "\n".join(problems)
    assert list(behaviours) == [str(number) for number in (*range(1, 65), 68)]


def test_python_lints() -> None:
    result = run_limited([sys.executable, "-m", "ruff", "check", "--no-cache", "python", "tests"], limit_s=60)
    result.check()


def test_python_formatting() -> None:
    result = run_limited([sys.executable, "-m", "ruff", "format", "--no-cache", "--check", "python", "tests"], limit_s=60)
    result.check()


@pytest.mark.timeout(420)
def test_python_types(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "mypy"]
    result = run_limited(command, limit_s=400)
    result.check()


def test_package_import_is_light() -> None:
    code = (
        "import sys, paceline, paceline.cli\n"
        "heavy = {'torch', 'transformers', 'flashinfer', 'grpc', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = run_limited([sys.executable, "-W", "error", "-c", code], limit_s=60)
    result.check()


def test_command_is_installed() -> None:
    command = Path(sys.executable).with_name("paceline")
    result = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert toml(ROOT / "Cargo.toml")["workspace"]["package"]["version"] in result.stdout


def test_generated_python_can_be_imported_and_agrees() -> None:
    from paceline import v1
    from paceline.v1 import generation_pb2, generation_pb2_grpc, worker_pb2, worker_pb2_grpc

    assert re.fullmatch(r"[0-9a-f]{16}", v1.PROTOCOL_HASH)
    assert worker_pb2.DESCRIPTOR.package == generation_pb2.DESCRIPTOR.package == "paceline.v1"
    assert worker_pb2_grpc.WorkersStub
    assert generation_pb2_grpc.GenerationStub


def test_dependency_bounds_cover_the_generator() -> None:
    project = toml(ROOT / "pyproject.toml")["project"]
    generated = (ROOT / "python/paceline/v1/worker_pb2.py").read_text()
    major, minor, patch = re.findall(r"^    (\d+),$", generated, re.MULTILINE)[:3]
    stub = (ROOT / "python/paceline/v1/worker_pb2_grpc.py").read_text()
    (grpc,) = re.findall(r"GRPC_GENERATED_VERSION = '([\d.]+)'", stub)
    assert f"protobuf>={major}.{minor}.{patch},<{int(major) + 1}" in project["dependencies"]
    assert f"grpcio>={grpc},<2" in project["dependencies"]
    assert f"grpcio-tools=={grpc}" in project["optional-dependencies"]["codegen"]
