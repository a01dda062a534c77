"""How far the model thread has come: written by it, read by the heartbeat thread.

Plain attributes: each is one assignment, and a heartbeat that is one field behind does no harm.
"""

from __future__ import annotations


class Pulse:
    """What a heartbeat reports. Phases: idle, received, launched, sampled, replied."""

    __slots__ = ("collectives", "pass_index", "phase", "step")

    def __init__(self) -> None:
        self.step = 0
        self.pass_index = 0
        self.phase = "idle"
        self.collectives = 0
