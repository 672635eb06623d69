"""A command's topic, given as the argument `TOPIC`, or by `--topic` as in Kafka's tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kdist.cli.shared.completing import complete_topics
from kdist.cli.shared.options import not_empty

F = TypeVar("F", bound=Callable[..., Any])

_BY_OPTION = "kdist.topic"


def topic_given(function: F) -> F:
    """Decorates a command, which gets one `topic`, given either way."""
    option = click.option(
        "--topic",
        "topic_option",
        metavar="TOPIC",
        shell_complete=complete_topics,
        callback=_keep,
        is_eager=True,  # parsed before the argument
        expose_value=False,
        help="The same as the argument TOPIC, as in Kafka's tools.",
    )
    argument = click.argument(
        "topic", metavar="TOPIC", required=False, shell_complete=complete_topics, callback=_choose
    )
    return argument(option(function))


def _keep(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    ctx.meta[_BY_OPTION] = value


def _choose(ctx: click.Context, argument: click.Parameter, value: str | None) -> str | None:
    by_option: str | None = ctx.meta[_BY_OPTION]
    if value is not None and by_option is not None:
        raise click.UsageError(f"Give one topic: {value}, or --topic {by_option}.", ctx)
    topic = by_option if value is None else value
    if topic is None and not ctx.resilient_parsing:  # completion parses incomplete commands
        raise click.MissingParameter(ctx=ctx, param=argument)
    return not_empty(ctx, argument, topic)
