"""The console script `paceline`: hands the command line to the daemon, which is Rust and defines every flag.

The daemon starts workers and model preparation with the interpreter that runs this script, so that a virtual
environment serves itself.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the daemon; its exit code."""
    from paceline._core import run_daemon

    return run_daemon(sys.argv[1:], sys.executable)


if __name__ == "__main__":
    sys.exit(main())
