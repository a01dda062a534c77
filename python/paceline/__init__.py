"""Paceline: an LLM inference server whose every batch shape is decided once.

This package holds the worker (`paceline.worker`), the models it runs and the command line's entry point. Importing
it pulls in neither torch nor any GPU library: those are imported by the modules that need them.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
