"""One build of the Rust workspace for all tests, and where its programs lie."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

from support.processes import ROOT, run_limited

BUILD_LIMIT_S = 1500
EXTENSION = "paceline-bindings"
"""The extension cannot link outside Python; `tests/unit` tests it."""

WORKSPACE = ("--release", "--locked", "--workspace", "--exclude", EXTENSION)
"""The same selection for every cargo call, since features are chosen per selection: another one builds heavy crates again."""


@dataclass(frozen=True)
class Build:
    """What was built."""

    tests: dict[str, list[Path]]
    """Test programs by package."""
    programs: dict[str, Path]
    """Ordinary programs by name."""


def package_folders() -> dict[str, Path]:
    """The workspace's packages without the extension; by folder, since cargo has no part in collecting tests."""
    excluded = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"].get("exclude", [])
    folders = [path.parent for path in sorted(ROOT.glob("crates/*/Cargo.toml"))]
    packages = {package_of(folder / "Cargo.toml"): folder for folder in folders if str(folder.relative_to(ROOT)) not in excluded}
    return {name: folder for name, folder in packages.items() if name != EXTENSION}


def package_of(manifest: Path) -> str:
    """The name of a package by its manifest."""
    return tomllib.loads(manifest.read_text())["package"]["name"]


def build() -> Build:
    """Builds every test and every program of the workspace.

    Raises:
        RuntimeError: It does not compile; the message holds the compiler's.
    """
    result = Build(tests={}, programs={})
    for command in (["test", *WORKSPACE, "--no-run"], ["build", *WORKSPACE, "--bins"]):
        built = run_limited(["cargo", *command, "--message-format=json"], limit_s=BUILD_LIMIT_S)
        messages = [json.loads(line) for line in built.output.splitlines() if line.startswith("{")]
        if built.returncode != 0:
            rendered = [message["message"]["rendered"] for message in messages if message["reason"] == "compiler-message"]
            raise RuntimeError("the Rust workspace does not build:\n" + "".join(rendered)[-8000:] + built.tail(5)[-2000:])
        for message in messages:
            if message["reason"] != "compiler-artifact" or not message["executable"]:
                continue
            program = Path(message["executable"])
            if message["profile"]["test"]:
                result.tests.setdefault(package_of(Path(message["manifest_path"])), []).append(program)
            else:
                result.programs[message["target"]["name"]] = program
    return result
