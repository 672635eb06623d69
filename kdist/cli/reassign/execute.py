"""`kdist reassign execute`, `verify` and `cancel`: carries out a plan, or takes it back."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from kdist.cli.reassign.plan import MIB, throttle_option
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.files import complete_files, readonly_files
from kdist.cli.shared.options import json_option, not_empty, say
from kdist.cli.shared.progress import progress
from kdist.cli.shared.show import show_count, show_size
from kdist.cli.shared.table import Field, print_rows
from kdist.errors import UserError

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster
    from kdist.ops.reassignment.execution import Cancelled, Unthrottled
    from kdist.ops.reassignment.plan import Move
    from kdist.ops.reassignment.progress import Status, Statuses

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


@click.command()
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
@client_options()
@json_option
def execute(
    path: str,
    reverse: bool,
    throttle: int,
    no_throttle: bool,
    at_once: int,
    clients: Clients,
    as_json: bool,
) -> None:
    """Carry out a plan, and wait until it is done.

    Interrupted, it leaves what has begun to go on; the same command goes on with the rest.
    Partitions that somebody else has moved since the plan was made are not touched: nothing is.
    """
    context = click.get_current_context()
    if no_throttle and context.get_parameter_source("throttle") is ParameterSource.COMMANDLINE:
        raise click.UsageError("Give one of --throttle and --no-throttle.")
    moves = _read(path, is_reversed=reverse)
    gone = 0

    async def work(cluster: Cluster) -> list[int]:
        from kdist.ops.reassignment import execution

        with progress("Partitions moved", len(moves), is_wanted=not as_json) as advance:
            shown = 0

            def on_look(statuses: Statuses) -> None:
                nonlocal shown, gone
                gone = _count(statuses)["gone"]
                done = _count(statuses)["done"] + gone
                advance(done - shown)
                shown = done

            rate = None if no_throttle else throttle * MIB
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
    done = len(moves) - gone
    lost = f" {show_count(gone, 'other')} deleted since it was made." if gone else ""
    text = f"All done: {show_count(done, 'partition')} where the plan has them.{lost}"
    say(text, as_json, partitions=done, gone=gone)


@click.command()
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


@click.command()
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
    from kdist.ops.reassignment.plan import reversed_moves
    from kdist.ops.reassignment.plan_file import parse_plan

    try:
        moves = parse_plan(path, readonly_files().read(path))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    return reversed_moves(moves) if is_reversed else moves


def _count(statuses: Statuses) -> Counter[str]:
    return Counter(each.value for each in statuses.values())
