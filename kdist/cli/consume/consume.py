"""`kdist consume`: prints topics' records from a start to an end, alone or in a group."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kdist.cli.consume.output import Look, Output
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_groups
from kdist.cli.shared.connecting import ask_cluster, check_partition, require_in_range
from kdist.cli.shared.options import TIME_FORMS, Time, isolation_option, json_option, not_empty
from kdist.cli.shared.topic_arguments import topics_argument
from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.runtime.clock import SystemClock

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster
    from kdist.client.consumer.aio import Consumer

_LEADERS_S = 10.0  # far longer than it takes to elect leaders
_DEFAULTS: dict[str, Any] = {
    "auto_offset_reset": "none",  # starts are explicit: an offset that is gone is an error
    "default_api_timeout_ms": 30_000,  # half the default: a person is waiting
}


def _pattern(_: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        not_empty(_, option, value)
        try:
            re.compile(value)
        except (re.error, RecursionError, OverflowError) as error:
            raise click.BadParameter(
                f"{value!r} is no regular expression: {error}.", param=option
            ) from None
    return value


@click.command()
@topics_argument
@click.option(
    "--include",
    "pattern",
    metavar="REGEX",
    callback=_pattern,
    help="Read all topics whose whole names match, instead of named ones.",
)
@click.option("--partition", type=click.IntRange(min=0), help="Read this partition only.")
@click.option("--from-beginning", is_flag=True, help="Begin with the oldest record there is.")
@click.option("--offset", type=click.IntRange(min=0), help="Begin at this offset.")
@click.option(
    "--time",
    "time_ms",
    type=Time(),
    help=f"Begin with the first record of this time: {TIME_FORMS}.",
)
@click.option(
    "--last",
    type=click.IntRange(min=0),
    help="Begin so many offsets before the end of each partition.",
)
@click.option(
    "--group",
    metavar="NAME",
    callback=not_empty,
    shell_complete=complete_groups,
    help="Read as a member of this group, from its committed offsets, and commit for it.",
)
@click.option("--max", "limit", type=click.IntRange(min=0), help="Stop after this many records.")
@click.option(
    "--until-end", is_flag=True, help="Stop at the end that the topic has when the command starts."
)
@click.option(
    "--until-offset", type=click.IntRange(min=0), help="Stop before this offset in each partition."
)
@click.option(
    "--until-time",
    type=Time(),
    help="Stop before the first record of this time or later, in each partition; where there is "
    "none, at the end.",
)
@isolation_option
@click.option("--keys", is_flag=True, help="Put each record's key and a tab before its value.")
@click.option(
    "-f", "--format", "form", metavar="FORMAT", help="What to write for each record, as above."
)
@click.option("--null", metavar="TEXT", help="What to write for a null; by default nothing.")
@client_options("consumer")
@json_option
def consume(  # noqa: PLR0913 - one for each option
    topics: tuple[str, ...],
    pattern: str | None,
    partition: int | None,
    from_beginning: bool,
    offset: int | None,
    time_ms: int | None,
    last: int | None,
    group: str | None,
    limit: int | None,
    until_end: bool,
    until_offset: int | None,
    until_time: int | None,
    isolation: str | None,
    keys: bool,
    form: str | None,
    null: str | None,
    clients: Clients,
    as_json: bool,
) -> None:
    """Show records of one or more topics as they arrive, until an interrupt.

    Begins at the end unless told otherwise. Values are written as they are, one per line, a null as
    an empty line. --json also shows offset, time, key and headers, and distinguishes null from
    empty. Within a partition records are in order.

    A partition that has no leader is read once it has one. If an offset of it must be known first,
    for an end or for --time, --last and --offset, it is left out, and the command fails.

    FORMAT has kcat's tokens: %t topic, %p partition, %o offset, %T time (ms), %k key, %s value, %h
    headers, %K and %S the lengths of key and value (-1 for null), %R the latter as four bytes, %%.
    It ends without a line feed unless it has one: \\n, \\t, \\r, \\x00.

    With --group the command is a member like any other, and shares the partitions with them. They
    begin at the committed offsets; those without one at the end, or with --from-beginning at the
    beginning. Offsets are committed every 5 s and on exit.

    \b
    Examples:
      kdist consume clicks --last 10 -f '%p %o %T %k=%s\\n'
      kdist consume clicks --time 2026-11-20T11:40 --until-time 2026-11-20T11:45 --json
      kdist consume --include 'clicks-.*' --group audit --from-beginning --until-end
    """
    start = Start(from_beginning, offset, time_ms, last)
    end = End(until_end, until_offset, until_time)
    what = What(topics, pattern, partition, start, end)
    settings = clients.settings("consumer", isolation_level=isolation, group_id=group)
    null_bytes = None if null is None else null.encode(errors="surrogateescape")
    look = Look(as_json, keys, form, null_bytes)
    _check(what, look, settings.get("group_id"))
    output = Output(look.show(), limit)
    if limit != 0:
        ask_cluster(clients, lambda cluster: _consume(cluster, what, settings, output))


class What(NamedTuple):
    """What to read: topics, or those that match a pattern; of one topic perhaps one partition."""

    topics: tuple[str, ...]
    pattern: str | None
    partition: int | None
    start: Start
    end: End

    @property
    def is_endless(self) -> bool:
        """Whether it needs no offset to begin or end at, but for where a partition itself does."""
        return self.end == End() and self.start.given == self.start.from_beginning


def _check(what: What, look: Look, group: str | None) -> None:
    """`click.UsageError` for options that do not go together, or are wrong by themselves."""
    if bool(what.topics) == (what.pattern is not None):
        both = "Give topics, or --include." if what.topics else "Missing argument 'TOPIC...'."
        raise click.UsageError(both)
    if what.partition is not None and len(what.topics) != 1:
        raise click.UsageError("--partition is for one topic.")
    if look.as_json + look.keys + (look.format is not None) > 1:
        raise click.UsageError("Give one of --keys, --format and --json.")
    if look.as_json and look.null is not None:
        raise click.UsageError("--null is for text: --json has its own null.")
    start, end = what.start, what.end
    if start.given > 1:
        raise click.UsageError("Give one of --from-beginning, --offset, --time and --last.")
    for option, begin, until in (
        ("--until-offset", start.offset, end.offset),
        ("--until-time", start.time_ms, end.time_ms),
    ):
        if begin is not None and until is not None and until < begin:
            raise click.UsageError(f"{option} is before the start.")
    if end.time_ms is not None and end.time_ms > SystemClock().now_ms():
        raise click.BadParameter("it is still to come.", param_hint="'--until-time'")
    if group is not None and (what.partition is not None or start.given > start.from_beginning):
        raise click.UsageError(
            f"Group {group} decides where to begin, and in which partitions: leave out --partition,"
            " --offset, --time and --last; `kdist groups reset` changes its offsets."
        )


async def _consume(cluster: Cluster, what: What, settings: dict[str, Any], output: Output) -> None:
    from kdist.cli.consume.reading import Reading, ended_when_unread
    from kdist.client.consumer.aio import Consumer
    from kdist.client.consumer.settings import read_settings

    partitions = await _partitions(cluster, what)
    led = await cluster.led(partitions, 0 if what.is_endless else _LEADERS_S)
    leaderless = sorted(set(partitions) - set(led))
    every = {**_DEFAULTS, **settings}
    found = read_settings(every)
    is_member = found.group_id is not None
    is_partial = bool(leaderless) and not what.is_endless
    if is_partial:
        names = ", ".join(map(str, leaderless))
        click.echo(f"kdist: what is in {names} is left out: no broker leads it", err=True)
    async with Consumer(**every) as consumer:
        ends = await end_offsets(consumer, led, what.end)
        reset = settings.get("auto_offset_reset")
        begin = None if reset and not what.start.from_beginning else what.start.from_beginning
        reading = Reading(
            cluster, consumer, output, ends, from_beginning=begin, is_assigned=not is_member
        )
        if is_member:
            subscribed = [*what.topics] if what.pattern is None else re.compile(what.pattern)
            consumer.subscribe(subscribed, reading)
        else:
            start = _start(what.start, reset)
            offsets = await start_offsets(
                cluster,
                consumer,
                led,
                start,
                is_committed_only=found.is_committed_only,
            )
            later = leaderless if what.is_endless else ()
            _assign(consumer, offsets, later, from_beginning=start.from_beginning)
        with ended_when_unread():
            try:
                await reading.run()
            finally:
                if is_member and found.enable_auto_commit:
                    await consumer.commit()
    if is_partial:
        raise click.exceptions.Exit(1)


def _assign(
    consumer: Consumer,
    offsets: Mapping[TopicPartition, int],
    later: Collection[TopicPartition],
    *,
    from_beginning: bool,
) -> None:
    """Have it read from these offsets, and others from an end found once they have a leader."""
    consumer.assign([*offsets, *later])
    for each, at in offsets.items():
        consumer.seek(each, at)
    for each in later:
        seek = consumer.seek_to_beginning if from_beginning else consumer.seek_to_end
        seek(each)


def _start(start: Start, reset: str | None) -> Start:
    """Where to begin without a group; `auto.offset.reset`, if given, is for want of an option."""
    if start.given or reset is None:
        return start
    if reset == "none":
        raise UserError("auto.offset.reset is none: say where to begin, as with --from-beginning")
    return start._replace(from_beginning=reset == "earliest")


async def _partitions(cluster: Cluster, what: What) -> list[TopicPartition]:
    """The partitions that there are now; `UserError` for a topic that does not exist."""
    if what.pattern is None:
        names: Iterable[str] = dict.fromkeys(what.topics)
    else:
        from kdist.client.admin.topics import list_topics

        matches = re.compile(what.pattern).fullmatch
        topics = [each for each in await list_topics(cluster) if not each.is_internal]
        names = [each.name for each in topics if matches(each.name)]
        if not names:
            raise UserError(f"no topic's name matches {what.pattern}")
    found = []
    for name in names:
        count = len((await cluster.topic(name)).partitions)
        check_partition(name, what.partition, count)
        numbers = range(count) if what.partition is None else (what.partition,)
        found += [TopicPartition(name, number) for number in numbers]
    return found


Offsets = dict[TopicPartition, int]


class Start(NamedTuple):
    """The option that says where to begin; at most one is given. Times are in ms."""

    from_beginning: bool = False
    offset: int | None = None
    time_ms: int | None = None
    last: int | None = None

    @property
    def given(self) -> int:
        """How many of them are given."""
        return self.from_beginning + sum(each is not None for each in self[1:])


class End(NamedTuple):
    """The options that say where to end: at the first of them."""

    at_end: bool = False
    offset: int | None = None
    time_ms: int | None = None


async def start_offsets(
    cluster: Cluster,
    consumer: Consumer,
    partitions: Sequence[TopicPartition],
    start: Start,
    *,
    is_committed_only: bool,
) -> Offsets:
    """Where to begin; without an option at the end.

    `UserError` for an offset that a partition does not have.
    """
    if start.offset is not None:
        offsets = dict.fromkeys(partitions, start.offset)
        await require_in_range(cluster, offsets, is_committed_only=is_committed_only)
        return offsets
    if start.time_ms is not None:
        return await _offsets_at(consumer, partitions, start.time_ms)
    if start.from_beginning:
        return await consumer.beginning_offsets(partitions)
    ends = await consumer.end_offsets(partitions)
    if start.last is not None:
        starts = await consumer.beginning_offsets(partitions)
        return {each: max(starts[each], ends[each] - start.last) for each in partitions}
    return ends


async def end_offsets(
    consumer: Consumer, partitions: Sequence[TopicPartition], end: End
) -> Offsets | None:
    """Where to end; None for nowhere."""
    given: list[Offsets] = []
    if end.at_end:
        given.append(await consumer.end_offsets(partitions))
    if end.offset is not None:
        given.append(dict.fromkeys(partitions, end.offset))
    if end.time_ms is not None:
        given.append(await _offsets_at(consumer, partitions, end.time_ms))
    if not given:
        return None
    return {each: min(offsets[each] for offsets in given) for each in partitions}


async def _offsets_at(
    consumer: Consumer, partitions: Sequence[TopicPartition], time_ms: int
) -> Offsets:
    """The first record of that time or later in each partition, or its end if there is none."""
    found = await consumer.offsets_for_times(dict.fromkeys(partitions, time_ms))
    ends = await consumer.end_offsets([each for each, at in found.items() if at is None])
    return {each: ends[each] if at is None else at.offset for each, at in found.items()}
