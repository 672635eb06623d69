"""Parameter types for times and durations on the command line; `kdist.config.times` reads them."""

from __future__ import annotations

import click

from kdist.errors import UserError

TIME_FORMS = "milliseconds since 1970, or ISO 8601 (in UTC unless it names a zone)"
"""The forms of a `Time`, for the help of options."""


class Time(click.ParamType):  # type: ignore[type-arg]  # generic as of click 8.3
    """A moment, in milliseconds since the epoch."""

    name = "time"

    def parse(self, text: str) -> int:
        from kdist.config.times import parse_time

        return parse_time(text)

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            return self.parse(str(value))
        except UserError as error:
            self.fail(f"{error}.", param, ctx)


class Duration(Time):
    """An amount of time in milliseconds."""

    name = "duration"

    def parse(self, text: str) -> int:
        from kdist.config.times import parse_duration

        return parse_duration(text)
