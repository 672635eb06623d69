"""Parameter types for times and durations on the command line.

A time is in milliseconds or ISO 8601; a duration is like `90s`, `5m`, `1h30m` or `7d`, or in ISO
8601, like `P7DT3H`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import click

TIME_FORMS = "milliseconds since 1970, or ISO 8601 (in UTC unless it names a zone)"
"""The forms of a `Time`, for the help of options."""

_NUMBER = "([0-9]{1,19})"
_FORM = re.compile(f"(?:{_NUMBER}d)?t?(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?")
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000)


class Time(click.ParamType):  # type: ignore[type-arg]  # generic as of click 8.3
    """Milliseconds since the epoch, or ISO 8601; UTC where it names no zone."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        text = str(value)
        try:
            time_ms = int(text) if text.isascii() and text.isdigit() else _from_iso(text)
        except ValueError:
            self.fail(f"{text!r} is neither milliseconds nor ISO 8601.", param, ctx)
        if not 0 <= time_ms < 1 << 63:
            self.fail(f"{text!r} is before 1970, or does not fit in 64 bits.", param, ctx)
        return time_ms


def _from_iso(text: str) -> int:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic as of click 8.3
    """An amount of time in milliseconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        found = _FORM.fullmatch(str(value).lower().removeprefix("p"))
        if found is None or not any(found.groups()):
            self.fail(f"{value!r} is not a duration like 90s, 5m, 1h30m or 7d.", param, ctx)
        return sum(
            int(number or 0) * unit for number, unit in zip(found.groups(), _UNITS_MS, strict=True)
        )
