"""Topics on a command line: TOPIC or `--topic TOPIC`; `TOPIC:0,2` for some of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from kdist.cli.shared.completing import complete_topics
from kdist.cli.shared.options import not_empty
from kdist.model import TopicPartition, read_digits

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster


F = TypeVar("F", bound=Callable[..., Any])

_BY_OPTION = "kdist.topic"


def topic_argument(function: F) -> F:
    """Decorates a command, which gets one `topic`, given either way."""
    option = _topic_option("topic_option", "The same as the argument TOPIC, as in Kafka's tools.")
    argument = click.argument(
        "topic", metavar="TOPIC", required=False, shell_complete=complete_topics, callback=_choose
    )
    return argument(option(function))


def topics_argument(function: F) -> F:
    """As `topic_argument`, for any number of `topics`, of which there may be none."""
    told = "The same as an argument TOPIC, as in Kafka's tools; may be repeated."
    option = _topic_option("topics_option", told, multiple=True)
    argument = click.argument(
        "topics", metavar="TOPIC...", nargs=-1, shell_complete=complete_topics, callback=_join
    )
    return argument(option(function))


def _topic_option(name: str, help_text: str, *, multiple: bool = False) -> Callable[[F], F]:
    return click.option(
        "--topic",
        name,
        metavar="TOPIC",
        multiple=multiple,
        shell_complete=complete_topics,
        callback=_keep,
        is_eager=True,  # parsed before the argument
        expose_value=False,
        help=help_text,
    )


def _join(ctx: click.Context, argument: click.Parameter, values: tuple[str, ...]) -> Any:
    return not_empty(ctx, argument, (*values, *ctx.meta[_BY_OPTION]))


def _keep(ctx: click.Context, _: click.Parameter, value: Any) -> None:
    ctx.meta[_BY_OPTION] = value


def _choose(ctx: click.Context, argument: click.Parameter, value: str | None) -> str | None:
    by_option: str | None = ctx.meta[_BY_OPTION]
    if value is not None and by_option is not None:
        raise click.UsageError(f"Give one topic: {value}, or --topic {by_option}.", ctx)
    topic = by_option if value is None else value
    if topic is None and not ctx.resilient_parsing:  # completion parses incomplete commands
        raise click.MissingParameter(ctx=ctx, param=argument)
    return not_empty(ctx, argument, topic)


class TopicPartitions(NamedTuple):
    """A topic, and numbers of its partitions; None for all of them."""

    topic: str
    numbers: tuple[int, ...] | None


class PartitionsParam(click.ParamType):  # type: ignore[type-arg]  # generic as of click 8.3
    """`TOPIC[:P,...]`."""

    name = "partitions"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> TopicPartitions:
        topic, colon, numbers_text = str(value).partition(":")
        if not topic.strip():
            self.fail(f"{value!r} names no topic.", param, ctx)
        if not colon:
            return TopicPartitions(topic, None)
        numbers: set[int] = set()
        for word in numbers_text.split(","):
            number = read_digits(word)
            if number is None:
                self.fail(f"{value!r} is not TOPIC or TOPIC:0,1,...", param, ctx)
            numbers.add(number)
        return TopicPartitions(topic, tuple(sorted(numbers)))


def partitions_option(help_text: str, *, required: bool = False) -> Callable[[F], F]:
    """`--topic TOPIC[:P,...]`, repeated, passed as `topics`."""
    return click.option(
        "--topic",
        "topics",
        type=PartitionsParam(),
        metavar="TOPIC[:P,...]",
        multiple=True,
        required=required,
        shell_complete=complete_topics,
        help=help_text,
    )


async def resolve_partitions(
    cluster: Cluster, given: Iterable[TopicPartitions]
) -> list[TopicPartition]:
    """Each partition once, in order; `ApiError` for one that does not exist."""
    from kdist.client.admin.topics import describe_topics, require_partitions

    wanted = list(given)
    topics = await describe_topics(cluster, dict.fromkeys(each.topic for each in wanted))
    found: set[TopicPartition] = set()
    for each in wanted:
        every = range(len(topics[each.topic].partitions))
        numbers = every if each.numbers is None else each.numbers
        found |= {TopicPartition(each.topic, number) for number in numbers}
    await require_partitions(cluster, found)
    return sorted(found)
