"""Paceline: an LLM inference server whose every batch shape is decided once.

This package holds the worker (`paceline.worker`), the models it runs, clients (`paceline.client`, `LLM`) and the command
line's entry point. Importing it pulls in neither torch nor any GPU library nor gRPC: those are imported by what needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.llm import LLM

__all__ = ["LLM", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`LLM`, imported when it is asked for."""
    if name == "LLM":
        from paceline.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
