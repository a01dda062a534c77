"""The Rust side, as pytest cases: tests package by package, formatting, lints.

One `cargo test --no-run` builds every test of the workspace with one set of features; the cases then run the built
programs themselves, since `cargo test -p` would choose features anew and build heavy crates twice. The extension crate
cannot link outside Python and is tested by `tests/unit`.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest

from support.processes import ROOT, run_limited

BUILD_LIMIT_S = 1500
PROGRAM_LIMIT_S = 600
EXTENSION = "paceline-bindings"
WORKSPACE = ("--release", "--locked", "--workspace", "--exclude", EXTENSION)

PASSED = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)


def package_names() -> list[str]:
    """The workspace's packages without the extension; by folder, since cargo has no part in collecting tests."""
    excluded = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"].get("exclude", [])
    folders = [path.parent for path in sorted(ROOT.glob("crates/*/Cargo.toml"))]
    names = [package_of(folder / "Cargo.toml") for folder in folders if str(folder.relative_to(ROOT)) not in excluded]
    return [name for name in names if name != EXTENSION]


def package_of(manifest: Path) -> str:
    return tomllib.loads(manifest.read_text())["package"]["name"]


@pytest.fixture(scope="session")
def test_programs() -> dict[str, list[tuple[Path, Path]]]:
    """Built test programs with their working directories, by package."""
    built = run_limited(["cargo", "test", *WORKSPACE, "--no-run", "--message-format=json"], limit_s=BUILD_LIMIT_S)
    messages = [json.loads(line) for line in built.output.splitlines() if line.startswith("{")]
    if built.returncode != 0:
        rendered = [message["message"]["rendered"] for message in messages if message["reason"] == "compiler-message"]
        pytest.fail("the Rust tests do not build:\n" + "".join(rendered)[-8000:] + built.tail(5)[-2000:], pytrace=False)
    programs: dict[str, list[tuple[Path, Path]]] = {}
    for message in messages:
        if message["reason"] == "compiler-artifact" and message["executable"] and message["profile"]["test"]:
            manifest = Path(message["manifest_path"])
            programs.setdefault(package_of(manifest), []).append((Path(message["executable"]), manifest.parent))
    return programs


@pytest.mark.timeout(BUILD_LIMIT_S + 60)
def test_build(test_programs: dict[str, list[tuple[Path, Path]]]) -> None:
    assert sorted(test_programs) == package_names()


@pytest.mark.timeout(BUILD_LIMIT_S + PROGRAM_LIMIT_S + 60)
@pytest.mark.parametrize("package", package_names())
def test_package(package: str, test_programs: dict[str, list[tuple[Path, Path]]], rust_counts: dict[str, int]) -> None:
    passed = 0
    failures = []
    for program, directory in sorted(test_programs[package]):
        environment = {"CARGO_MANIFEST_DIR": str(directory)}
        result = run_limited([program], limit_s=PROGRAM_LIMIT_S, cwd=directory, environment=environment)
        counts = PASSED.findall(result.output)
        passed += sum(int(count) for count, _, _ in counts)
        ignored = sum(int(count) for _, _, count in counts)
        if result.returncode != 0 or not counts or ignored:
            failures.append(f"{program.name}: exit status {result.returncode}, {ignored} ignored\n{result.tail(80)}")
    print(f"{package}: {passed} passed")
    rust_counts[package.removeprefix("paceline-")] = passed
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)


@pytest.mark.timeout(PROGRAM_LIMIT_S + 60)
def test_documentation_examples(test_programs: dict[str, list[tuple[Path, Path]]], rust_counts: dict[str, int]) -> None:
    result = run_limited(["cargo", "test", *WORKSPACE, "--doc"], limit_s=PROGRAM_LIMIT_S)
    rust_counts["documentation"] = sum(int(count) for count, _, _ in PASSED.findall(result.output))
    assert result.returncode == 0, result.tail()


def test_formatting() -> None:
    result = run_limited(["cargo", "fmt", "--all", "--check"], limit_s=120)
    assert result.returncode == 0, result.tail()


@pytest.mark.timeout(BUILD_LIMIT_S + 60)
def test_lints() -> None:
    command = ["cargo", "clippy", "--release", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"]
    result = run_limited(command, limit_s=BUILD_LIMIT_S)
    assert result.returncode == 0, result.tail()
