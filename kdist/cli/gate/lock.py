"""`kdist gate lock`, `unlock`, `holder`: the lock of whatever stops brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from kdist.cli.gate.asking import CANNOT_TELL, YES, lease_option, say_unknown, zookeeper_option
from kdist.cli.shared.connecting import ask_zookeeper
from kdist.cli.shared.options import json_option, not_empty, say
from kdist.cli.shared.show import show_error, show_time
from kdist.errors import KdistError

if TYPE_CHECKING:
    from kdist.zk.client import ZooKeeper

T = TypeVar("T")


@click.command()
@click.option(
    "--owner",
    required=True,
    metavar="TEXT",
    callback=not_empty,
    help="The holder's name, for people to read.",
)
@click.option(
    "--run",
    required=True,
    metavar="ID",
    callback=not_empty,
    help="The run that holds the lock; whoever gives the same one resumes it.",
)
@lease_option
@zookeeper_option
@json_option
def lock(owner: str, run: str, lease_s: int, zookeeper: str | None, as_json: bool) -> int:
    """Take the roll's lock, or renew its lease if run ID already holds it."""
    from kdist.ops.roll_lock import take_lock
    from kdist.runtime.clock import SystemClock

    taken = _ask_of_lock(
        zookeeper, lambda keeper: take_lock(keeper, owner, run, lease_s * 1000, SystemClock())
    )
    sentence = f"{owner!r} has the lock" + ("." if taken.is_new else ", as before.")
    since_ms = taken.holder.timestamp_ms
    say(sentence, as_json, owner=owner, run=run, since_ms=since_ms, taken=taken.is_new)
    return YES


@click.command()
@click.option("--run", metavar="ID", callback=not_empty, help="Free it if this run holds it.")
@click.option("--force", "forced", is_flag=True, help="Free it, whoever holds it.")
@zookeeper_option
@json_option
def unlock(run: str | None, forced: bool, zookeeper: str | None, as_json: bool) -> int:
    """Free the roll's lock."""
    from kdist.ops.roll_lock import release_lock

    if run is None and not forced:
        raise click.UsageError("Whose lock? Give --run, or --force.")
    was_held = _ask_of_lock(
        zookeeper, lambda keeper: release_lock(keeper, run or "", forced=forced)
    )
    whose = "Nobody" if forced else f"Run {run} has not"
    sentence = "The lock is free." if was_held else f"{whose} held the lock."
    say(sentence, as_json, run=run, released=was_held)
    return YES


@click.command()
@zookeeper_option
@json_option
def holder(zookeeper: str | None, as_json: bool) -> int:
    """Say who holds the roll's lock, by which run, and until when."""
    from kdist.ops.roll_lock import lock_holder

    found = _ask_of_lock(zookeeper, lock_holder)
    row = dict.fromkeys(("owner", "run", "since_ms", "until_ms"))
    sentence = "Nobody holds the lock."
    if found:
        row = {
            "owner": found.holder,
            "run": found.run,
            "since_ms": found.timestamp_ms,
            "until_ms": found.until_ms,
        }
        sentence = f"{found.holder!r} has held the lock since {show_time(found.timestamp_ms)}"
        if found.until_ms is not None:
            sentence += f" by run {found.run}, whose lease ends at {show_time(found.until_ms)}"
        sentence += "."
    say(sentence, as_json, **row)
    return YES


def _ask_of_lock(zookeeper: str | None, work: Callable[[ZooKeeper], Awaitable[T]]) -> T:
    """Run `work` and return its result. `LockHeld` if another run holds the lock.

    Exits with `CANNOT_TELL` if ZooKeeper cannot be asked.
    """
    from kdist.ops.roll_lock import LockHeld

    if not zookeeper:
        raise click.UsageError("Give the cluster's ZooKeeper by --zookeeper.")
    try:
        return ask_zookeeper(zookeeper, work)
    except LockHeld:
        raise
    except (KdistError, OSError) as error:
        say_unknown(show_error(error), as_json=False)
        raise click.exceptions.Exit(CANNOT_TELL) from None
