"""Reading single fields of a `config.json`: each check ends in one line that names the field."""

from __future__ import annotations

from typing import Any

from paceline.errors import UsageError


class ConfigError(UsageError):
    """A `config.json` that is missing, broken, or asks for something Paceline does not run."""


def count_of(raw: dict[str, Any], field: str, default: int | None = None, *, least: int = 1) -> int:
    """A whole number of at least `least`; `default` where the field is absent or null. Raises `ConfigError`."""
    value = raw.get(field)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"config.json field {field} must be a whole number of at least {least}, got {value!r}")
    return value


def number_of(raw: dict[str, Any], field: str, default: float | None = None) -> float:
    """A number above 0; `default` where the field is absent or null. Raises `ConfigError`."""
    value = raw.get(field)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise ConfigError(f"config.json field {field} must be a number above 0, got {value!r}")
    return float(value)


def flag_of(raw: dict[str, Any], field: str, default: bool = False) -> bool:
    """A truth value; `default` where the field is absent or null. Raises `ConfigError`."""
    value = raw.get(field)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise ConfigError(f"config.json field {field} must be true or false, got {value!r}")
    return value
