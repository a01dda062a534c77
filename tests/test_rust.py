"""The Rust side, as pytest cases: tests package by package, formatting, lints.

The workspace is built once; the cases then run the built programs themselves, since `cargo test -p` would choose
features anew and build heavy crates twice.
"""

import re

import pytest

from support.cargo import BUILD_LIMIT_S, WORKSPACE, Build, package_folders
from support.processes import run_limited

PROGRAM_LIMIT_S = 600
COUNTS = re.compile(r"^test result: \w+\. (\d+) passed; \d+ failed; (\d+) ignored", re.MULTILINE)


@pytest.mark.timeout(BUILD_LIMIT_S + 60)
def test_build(rust_build: Build) -> None:
    assert sorted(rust_build.tests) == sorted(package_folders())


@pytest.mark.timeout(BUILD_LIMIT_S + PROGRAM_LIMIT_S + 60)
@pytest.mark.parametrize("package", package_folders())
def test_package(package: str, rust_build: Build, rust_counts: dict[str, int]) -> None:
    folder = package_folders()[package]
    passed = 0
    failures = []
    for program in sorted(rust_build.tests[package]):
        result = run_limited([program], limit_s=PROGRAM_LIMIT_S, cwd=folder, environment={"CARGO_MANIFEST_DIR": str(folder)})
        counts = COUNTS.findall(result.output)
        passed += sum(int(count) for count, _ in counts)
        ignored = sum(int(count) for _, count in counts)
        if result.returncode != 0 or not counts or ignored:
            failures.append(f"{program.name}: exit status {result.returncode}, {ignored} ignored\n{result.tail(80)}")
    print(f"{package}: {passed} passed")
    rust_counts[package.removeprefix("paceline-")] = passed
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)


@pytest.mark.timeout(BUILD_LIMIT_S + PROGRAM_LIMIT_S + 60)
@pytest.mark.usefixtures("rust_build")
def test_documentation_examples(rust_counts: dict[str, int]) -> None:
    result = run_limited(["cargo", "test", *WORKSPACE, "--doc"], limit_s=PROGRAM_LIMIT_S)
    rust_counts["documentation"] = sum(int(count) for count, _ in COUNTS.findall(result.output))
    result.check()


def test_formatting() -> None:
    result = run_limited(["cargo", "fmt", "--all", "--check", "--", "--color", "never"], limit_s=120)
    result.check()


@pytest.mark.timeout(BUILD_LIMIT_S + 60)
def test_lints() -> None:
    command = ["cargo", "clippy", "--release", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"]
    result = run_limited(command, limit_s=BUILD_LIMIT_S)
    result.check()
