"""Names of what the weights of a model may be turned into at load. Imports no torch."""

from __future__ import annotations

from enum import StrEnum


class Quantization(StrEnum):
    """What the weights of a model's linear layers are held as while it runs."""

    NONE = "none"
    INT8 = "int8"
