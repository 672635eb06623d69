"""`kdist reassign`: carries out plans of moves, shows how far they are, and takes them back.

And `refill`, which limits what a broker copies that nobody has planned. `plan.py` makes the plans.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from kdist.cli.gate.gate import zookeeper_option
from kdist.cli.reassign.plan import MIB, plan, throttle_option
from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.files import complete_files, readonly_files
from kdist.cli.shared.options import json_option, not_empty, say
from kdist.cli.shared.progress import progress
from kdist.cli.shared.show import show_count, show_size
from kdist.cli.shared.table import Field, print_rows
from kdist.errors import KdistError, UserError

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster
    from kdist.ops.reassignment.execution import Cancelled, Unthrottled
    from kdist.ops.reassignment.plan import Move
    from kdist.ops.reassignment.progress import Status, Statuses


@click.group(cls=CommandGroup)
def reassign() -> None:
    """Move partitions to other brokers: plan first, then execute, then verify.

    \b
    Examples:
      kdist reassign plan --output plan.json               level the disks
      kdist reassign plan --drain 103 --output plan.json   empty a broker
      kdist reassign execute plan.json                     again to go on after Ctrl-C
      kdist reassign execute plan.json --reverse           put all back
    """


reassign.add_command(plan)

_plan_argument = click.argument(
    "path", metavar="FILE", callback=not_empty, shell_complete=complete_files
)
_reverse_option = click.option(
    "--reverse", is_flag=True, help="The way back: to where the partitions were before the plan."
)


def _replicas(replicas: tuple[int, ...]) -> str:
    return ",".join(map(str, replicas))


_MOVES: tuple[Field[tuple[Move, Status]], ...] = (
    Field("TOPIC", lambda row: row[0].partition.topic, "topic"),
    Field("PARTITION", lambda row: row[0].partition.partition, "partition", is_number=True),
    Field("FROM", lambda row: row[0].before, "before", _replicas),
    Field("TO", lambda row: row[0].after, "after", _replicas),
    Field("COPIES", lambda row: row[0].moved_bytes, "bytes", show_size, is_number=True),
    Field("STATUS", lambda row: row[1].value, "status"),
)


@reassign.command()
@_plan_argument
@_reverse_option
@throttle_option
@click.option("--no-throttle", is_flag=True, help="Let brokers send and get as much as they can.")
@click.option(
    "--at-once",
    metavar="N",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Move so many partitions to, and from, any broker at a time.",
)
@click.option(
    "--beside-roll",
    is_flag=True,
    help="Begin though a roll or a disk's replacement is under way: its next stop waits for these"
    " moves.",
)
@zookeeper_option
@client_options()
@json_option
def execute(  # noqa: PLR0913 - a command's options
    path: str,
    reverse: bool,
    throttle: int,
    no_throttle: bool,
    at_once: int,
    beside_roll: bool,
    zookeeper: str | None,
    clients: Clients,
    as_json: bool,
) -> None:
    """Carry out a plan, and wait until it is done.

    Interrupted, it leaves what has begun to go on; the same command goes on with the rest.
    Partitions that somebody else has moved since the plan was made are not touched: nothing is.
    It does not begin while a roll restarts brokers; a roll that begins later waits for it. Whether
    there is one is asked in ZooKeeper, at the brokers' own address of it unless one is given.
    """
    _check_throttle(no_throttle=no_throttle)
    moves = _read(path, is_reversed=reverse)
    gone, done = 0, 0

    async def work(cluster: Cluster) -> list[int]:
        from kdist.ops.reassignment import execution

        with progress("Partitions moved", len(moves), is_wanted=not as_json) as advance:

            def on_look(statuses: Statuses) -> None:
                nonlocal done, gone
                before, gone = done, _count(statuses)["gone"]
                done = _count(statuses)["done"] + gone
                advance(done - before)

            rate = None if no_throttle else throttle * MIB
            async with _announced(
                cluster, zookeeper, moves, lambda: f"{done} of {len(moves)}", beside_roll
            ):
                return await execution.carry_out(cluster, moves, at_once, rate, on_look)

    try:
        _warn_of(ask_cluster(clients, work))
    except KeyboardInterrupt:
        click.echo(
            "Moves that have begun go on. The same command goes on with the rest;"
            f" `kdist reassign cancel {_words(path, reverse)}` takes back those under way.",
            err=True,
        )
        raise
    there = len(moves) - gone
    lost = f" {show_count(gone, 'other')} deleted since it was made." if gone else ""
    text = f"All done: {show_count(there, 'partition')} where the plan has them.{lost}"
    say(text, as_json, partitions=there, gone=gone)


@asynccontextmanager
async def _announced(
    cluster: Cluster,
    address: str | None,
    moves: Sequence[Move],
    progress: Callable[[], str],
    beside_roll: bool,
) -> AsyncIterator[None]:
    """Let rolls know of the moves for the block's time. `LockHeld` while one is under way."""
    import getpass
    import socket
    import zlib
    from contextlib import AsyncExitStack

    from kdist.client import zookeeper_session
    from kdist.ops.reassignment.execution import zookeeper_of
    from kdist.ops.roll_lock import LockHeld, moves_announced
    from kdist.runtime.clock import SystemClock

    where = address or await zookeeper_of(cluster)
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    # The same plan again is the same run: it goes on at once where an earlier one was killed.
    run = f"moves-{zlib.crc32(repr(sorted(moves)).encode()):08x}"
    async with AsyncExitStack() as stack:
        if where:  # else its brokers have none, and no roll of kdist's
            announced = moves_announced(
                lambda: zookeeper_session.zookeeper_at(where),
                lambda: f"{who} ({progress()} partitions are there)",
                run,
                SystemClock(),
                beside_roll=beside_roll,
            )
            try:
                await stack.enter_async_context(announced)
            except LockHeld:
                raise
            except KdistError as error:
                unseen = f"whether a roll is under way cannot be seen, as {error}"
                if not beside_roll:
                    raise UserError(f"{unseen}: give --zookeeper, or --beside-roll") from None
                click.echo(f"kdist: {unseen}", err=True)
        yield


@reassign.command()
@_plan_argument
@_reverse_option
@client_options()
@json_option
def verify(path: str, reverse: bool, clients: Clients, as_json: bool) -> int:
    """Show how far a plan has come. The exit status is 1 unless all of it is done.

    Partitions that were deleted since do not count, unless all were. Where no partition of the
    cluster is moving any more, the plan's throttles are removed.
    """
    moves = _read(path, is_reversed=reverse)

    async def work(cluster: Cluster) -> Statuses:
        from kdist.ops.reassignment import execution

        statuses = await execution.read_statuses(cluster, moves)
        execution.check_some_exist(statuses)
        _warn_of((await execution.unthrottle_if_idle(cluster, moves)).dead)
        return statuses

    statuses = ask_cluster(clients, work)
    print_rows(_MOVES, statuses.items(), as_json=as_json, if_none="The plan moves nothing.")
    counts = _count(statuses)
    if moves and not as_json:
        click.echo(", ".join(f"{counts[each]} {each}" for each in sorted(counts)) + ".")
    return 0 if counts["done"] + counts["gone"] == len(moves) else 1


@reassign.command()
@_plan_argument
@_reverse_option
@client_options()
@json_option
def cancel(path: str, reverse: bool, clients: Clients, as_json: bool) -> None:
    """Take back the moves of a plan that are under way; what is done stays.

    `kdist reassign execute FILE --reverse` takes back the rest. The way back itself is cancelled
    with --reverse. The plan's throttles are removed, unless partitions are moving still.
    """
    moves = _read(path, is_reversed=reverse)

    async def work(cluster: Cluster) -> tuple[Cancelled, Unthrottled]:
        from kdist.ops.reassignment import execution

        cancelled = await execution.cancel(cluster, moves)
        return cancelled, await execution.unthrottle_if_idle(cluster, moves)

    (cancelled, going_back, going_on), (dead, is_throttled) = ask_cluster(clients, work)
    _warn_of(dead)
    text = f"{show_count(len(cancelled), 'move')} cancelled."
    if going_back:
        here = _words(path, reverse)
        text += (
            f" {show_count(len(going_back), 'partition')} on the way back:"
            f" `kdist reassign verify {here}` shows how far,"
            f" `kdist reassign execute {here}` has them go on."
        )
    if going_on:
        text += (
            f" {show_count(len(going_on), 'partition')} still on the way, as that is back from a"
            " cancelled move:"
            f" `kdist reassign execute {_words(path, not reverse)}` goes on with it."
        )
    elif is_throttled and not going_back:
        text += " Other partitions are moving, so that the throttles stay."
    counts = {"going_back": len(going_back), "going_on": len(going_on)}
    say(text, as_json, cancelled=len(cancelled), **counts)


@reassign.command()
@click.argument("broker_id", metavar="BROKER", type=click.IntRange(min=0))
@throttle_option
@click.option("--no-throttle", is_flag=True, help="Take the limit back.")
@client_options()
@json_option
def refill(
    broker_id: int, throttle: int, no_throttle: bool, clients: Clients, as_json: bool
) -> int:
    """Limit how fast a broker fills a new disk from the others, or take that limit back.

    What is in sync is never limited. The exit status is 1 if the limit is not taken back, as
    partitions are moving, whose throttle it shares: try again once they have arrived.
    """
    from kdist.ops.reassignment import execution

    _check_throttle(no_throttle=no_throttle)
    if not no_throttle:
        ask_cluster(clients, lambda c: execution.throttle_refill(c, broker_id, throttle * MIB))
        text = f"Broker {broker_id} gets no more than {throttle} MiB/s until it is in sync."
        say(text, as_json, broker=broker_id, throttle_bytes=throttle * MIB)
        return 0
    is_free = ask_cluster(clients, lambda c: execution.unthrottle_refill(c, broker_id))
    text = f"Broker {broker_id} gets what it can."
    if not is_free:
        text = f"Partitions are moving: the throttle of broker {broker_id} stays."
    say(text, as_json, broker=broker_id, throttle_bytes=None, removed=is_free)
    return 0 if is_free else 1


def _check_throttle(*, no_throttle: bool) -> None:
    source = click.get_current_context().get_parameter_source("throttle")
    if no_throttle and source is ParameterSource.COMMANDLINE:
        raise click.UsageError("Give one of --throttle and --no-throttle.")


def _words(path: str, is_reversed: bool) -> str:
    """The plan as a command's arguments."""
    return shlex.quote(path) + " --reverse" * is_reversed


def _warn_of(dead: list[int]) -> None:
    for broker in dead:
        click.echo(
            f"Broker {broker} is not alive, so that its throttle is not removed, if it has one:"
            " `kdist reassign verify` does so once it is back.",
            err=True,
        )


def _read(path: str, *, is_reversed: bool) -> list[Move]:
    from kdist.ops.reassignment.plan import parse_plan, reversed_moves

    try:
        moves = parse_plan(path, readonly_files().read(path))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    return reversed_moves(moves) if is_reversed else moves


def _count(statuses: Statuses) -> Counter[str]:
    return Counter(each.value for each in statuses.values())
