"""Values in human-readable form: '1 GiB', '7 days', 'no limit' (pure)."""

from __future__ import annotations

from typing import Any

from kdist.config.declare import Setting
from kdist.config.kinds import INT32_MAX, INT64_MAX, Kind, show_text

BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
DURATIONS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))


def show_human(row: Setting, value: Any) -> str:
    """A value of this setting in human-readable form; as `show_text` if there is no other."""
    if row.is_required and value is row.default:
        return "must be given"
    if value is None or value == ():
        return "not set"
    if row.shape.kind not in (Kind.INT, Kind.LONG):
        return show_text(value)
    if value in (INT32_MAX, INT64_MAX):
        return "no limit"
    if value <= 0:
        return show_text(value)
    return show_amount(value, row.unit)


def show_amount(value: int, unit: str) -> str:
    """An amount in the largest unit in which it is a whole number."""
    if unit == "bytes":
        return next(
            (f"{value // n} {word}" for n, word in BYTES if _fits(value, n)), f"{value} bytes"
        )
    if unit == "minutes":
        value, unit = value * 60_000, "ms"
    if unit == "ms":
        return next(
            (_counted(value // n, word) for n, word in DURATIONS if _fits(value, n)), f"{value} ms"
        )
    return str(value)


def _fits(value: int, size: int) -> bool:
    return value >= size and value % size == 0


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
