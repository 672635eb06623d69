"""`kdist gate`: whether a broker may go down now or is back, and who holds the roll's lock.

The exit status is
    0    yes: it may go down; with --after, it is fully back; the lock is this run's, or was freed
    1    no, with each reason on a line; another run holds the lock
    2    cannot tell: ZooKeeper does not answer, or has no cluster; a file or flag is wrong
"""

from __future__ import annotations

import os.path
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from kdist.cli.gate.playbook import plan, rollback
from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.client_settings import Clients
from kdist.cli.shared.connecting import ask_zookeeper
from kdist.cli.shared.files import complete_files, read_settings_file
from kdist.cli.shared.options import json_option, not_empty, print_json, say
from kdist.cli.shared.show import show_count, show_error, show_size, show_time
from kdist.errors import ApiError, KdistError, UserError
from kdist.model import read_digits

if TYPE_CHECKING:
    from kdist.client.admin.client_settings import AdminSettings
    from kdist.ops.gate import Verdict, View
    from kdist.zk.client import ZooKeeper


T = TypeVar("T")

YES, NO, CANNOT_TELL = 0, 1, 2

zookeeper_option = click.option(
    "--zookeeper",
    envvar="KDIST_ZOOKEEPER",
    show_envvar=True,
    metavar="HOST:PORT[/PATH]",
    help="The cluster's ZooKeeper, or the absolute path of a broker's file with the address and the"
    " credentials.",
)
lease_option = click.option(
    "--lease",
    "lease_s",
    type=click.IntRange(min=1),
    default=900,
    show_default=True,
    metavar="SECONDS",
    help="For how long the lock stays a run's that does not renew it.",
)


def say_unknown(sentence: str, as_json: bool) -> None:
    """Say why there is no answer."""
    if as_json:
        print_json({"answer": "unknown", "reasons": [sentence]})
    else:
        click.echo(f"kdist: {sentence}", err=True)


class Subject(NamedTuple):
    """The brokers, or the host all of whose brokers are meant; their cluster's ZooKeeper, and the
    min.insync.replicas of the file, None if there is none; and how to connect to the brokers.
    """

    brokers: Sequence[int]
    host: str | None
    zookeeper: str
    min_isr: int | None
    settings: AdminSettings


class Lack(NamedTuple):
    """What brokers that are not back lack; `bytes` is None if they do not say what they have."""

    partitions: int
    bytes: int | None


class Found(NamedTuple):
    """The brokers that are asked about, the cluster's state, why probes failed, what is lacking."""

    brokers: Sequence[int]
    view: View
    faults: Sequence[str]
    lack: Lack | None


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option(
    "--broker",
    "--brokers",
    "broker",
    default="",
    metavar="ID,ID...",
    help="The broker's id; several are asked for together.",
)
@click.option(
    "--host",
    metavar="NAME",
    callback=not_empty,
    help="Ask for all brokers of this host together; NAME is their broker.host.",
)
@click.option(
    "--config",
    "path",
    metavar="FILE",
    callback=not_empty,
    shell_complete=complete_files,
    help="The broker's file: its id, its ZooKeeper, with the credentials for it, and"
    " min.insync.replicas come from there. Without it the brokers are asked for"
    " min.insync.replicas.",
)
@click.option(
    "--command-config",
    "client_file",
    metavar="FILE",
    callback=not_empty,
    shell_complete=complete_files,
    help="A file of settings for connections to the brokers, .properties: their security.protocol,"
    " and who connects; with bootstrap.servers if not the registered listeners are to be asked.",
)
@click.option(
    "--expect", "expected", default="", metavar="ID,ID...", help="Brokers that must be registered."
)
@click.option(
    "--down",
    "known_down",
    default="",
    metavar="ID,ID...",
    help="Brokers that are known to be down: what only they could lead is not waited for.",
)
@click.option(
    "--allow-single-replica",
    "allows_single_replica",
    is_flag=True,
    help="Accept that partitions with no replica elsewhere go offline with the broker.",
)
@click.option("--after", "is_after", is_flag=True, help="Ask instead whether it is fully back.")
@click.option(
    "--measure",
    "is_measured",
    is_flag=True,
    help="With --after: say how much it lacks, too. That asks the leaders of what it lacks.",
)
@click.option(
    "--renew", "run", metavar="RUN", callback=not_empty, help="Renew this run's lease of the lock."
)
@lease_option
@zookeeper_option
@json_option
@click.pass_context
def gate(  # noqa: PLR0913 - a command's options
    ctx: click.Context,
    broker: str,
    host: str | None,
    path: str | None,
    client_file: str | None,
    expected: str,
    known_down: str,
    allows_single_replica: bool,
    is_after: bool,
    is_measured: bool,
    run: str | None,
    lease_s: int,
    zookeeper: str | None,
    as_json: bool,
) -> int:
    """Say whether a broker may go down now; exit with 1 if not, with 2 if it cannot tell.

    It may if all brokers are registered, there is a controller, no partition is offline, and each
    of its partitions keeps min.insync.replicas in sync without it. With --after, says whether it
    is in the ISR of all its partitions again, and a record can be written and read through it.
    Several brokers, and with --host those of a host, are judged as one that goes down as a whole.

    \b
    Examples:
      kdist gate --config /etc/kdist/broker-d01.properties --expect 201,202,301
      kdist gate --broker 201 --zookeeper zk1:2181/kdist --after
      kdist gate --host b2.dc1.example --config /etc/kdist/broker-d01.properties
      kdist gate lock --owner anna --run by-hand --zookeeper zk1:2181/kdist
    """
    from kdist.ops.gate import review_return, review_stop
    from kdist.ops.roll_lock import LockHeld, renew_lock
    from kdist.runtime.clock import SystemClock

    if ctx.invoked_subcommand is not None:
        return YES  # the subcommand answers
    if is_measured and not is_after:
        raise click.UsageError("--measure needs --after.")
    try:
        subject = _subject(_ids("--broker", broker), host, zookeeper, path, client_file)
        ids, down = _ids("--expect", expected), _ids("--down", known_down)
        if run is not None:
            ask_zookeeper(
                subject.zookeeper, lambda z: renew_lock(z, run, lease_s * 1000, SystemClock())
            )
        found = ask_zookeeper(
            subject.zookeeper, lambda z: _look(z, subject, ids, is_after, is_measured)
        )
    except LockHeld:
        raise
    except (KdistError, OSError) as error:
        say_unknown(show_error(error), as_json)
        return CANNOT_TELL
    if is_after:
        verdict = review_return(found.view, found.brokers, ids)
    else:
        allowed = allows_single_replica
        verdict = review_stop(
            found.view, found.brokers, ids, down=down, allows_single_replica=allowed
        )
    verdict = verdict._replace(reasons=(*verdict.reasons, *found.faults))
    _show(subject, found, verdict, is_after, as_json)
    return NO if verdict.reasons else YES


async def _look(
    zookeeper: ZooKeeper,
    subject: Subject,
    expected: Sequence[int],
    is_after: bool,
    is_measured: bool,
) -> Found:
    """The cluster's state; with --after, also why no record could be written and read.

    That is tried only once nothing else speaks against: the probe makes and deletes a topic, which
    a cluster with a broker behind must not be asked for every few seconds.
    """
    from kdist.ops import cluster_view
    from kdist.ops.gate import review_return
    from kdist.runtime.clock import SystemClock
    from kdist.zk import znodes

    if await zookeeper.exists(znodes.BROKERS.path()) is None:  # as with a wrong chroot
        raise UserError(
            f"there is no cluster at {subject.zookeeper}: no broker has ever registered there"
        )
    brokers = subject.brokers
    if subject.host is not None:
        brokers = await cluster_view.brokers_of_host(zookeeper, subject.host)
    min_isr = subject.min_isr
    if min_isr is None:
        min_isr = 1 if is_after else await cluster_view.ask_min_isr(zookeeper, subject.settings)
    of = brokers if is_after and not expected else None  # what else there is has no part in it
    view = await cluster_view.read_view(zookeeper, min_isr, SystemClock(), of)
    is_back = is_after and not review_return(view, brokers, expected).reasons
    settings = subject.settings
    faults = await _probe(zookeeper, brokers, settings) if is_back and brokers else []
    lack = await _measure(zookeeper, view, brokers, settings) if is_measured else None
    return Found(brokers, view, faults, lack)


async def _measure(
    zookeeper: ZooKeeper, view: View, brokers: Sequence[int], settings: AdminSettings
) -> Lack:
    """What the brokers lack. A broker that is not registered does not say what it has."""
    from kdist.client.cluster import cluster_at
    from kdist.ops.cluster_view import cluster_addresses, lacking_bytes
    from kdist.ops.gate import find_behind

    behind = {each: found for each in brokers if (found := find_behind(view, each))}
    count = sum(map(len, behind.values()))
    if not view.brokers.issuperset(behind):
        return Lack(count, None)
    sizes: list[int | None] = []
    if behind:
        addresses = await cluster_addresses(zookeeper, settings)
        with cluster_at(
            addresses, settings.connections, settings.default_api_timeout_ms
        ) as cluster:
            sizes = [await lacking_bytes(cluster, *each) for each in behind.items()]
    known = [each for each in sizes if each is not None]
    return Lack(count, sum(known) if len(known) == len(sizes) else None)


async def _probe(
    zookeeper: ZooKeeper, brokers: Sequence[int], settings: AdminSettings
) -> list[str]:
    """Why no record passes, a sentence for each broker through which none does.

    `ApiError` if the gate itself is not let in, which says nothing of the brokers.
    """
    from kdist.client.cluster import REFUSALS, cluster_at
    from kdist.ops.cluster_view import broker_addresses
    from kdist.ops.probe import probe
    from kdist.runtime.clock import SystemClock

    addresses = await broker_addresses(zookeeper, brokers[0], settings)
    with cluster_at(addresses, settings.connections, settings.default_api_timeout_ms) as cluster:
        try:
            failed = await probe(cluster, brokers, SystemClock().now_ms())
        except KdistError as error:
            if isinstance(error, ApiError) and error.error in REFUSALS:
                raise
            failed = dict.fromkeys(brokers, error)
    could = "no record could be written and read through broker"
    return [f"{could} {broker}: {error}" for broker, error in failed.items()]


def _subject(
    brokers: Sequence[int],
    host: str | None,
    zookeeper: str | None,
    path: str | None,
    client_file: str | None,
) -> Subject:
    """The options given, completed from the broker's file. `UserError` if something is missing."""
    from kdist.client.admin.client_settings import read_settings

    if brokers and host is not None:
        raise UserError("give --broker or --host, not both")
    min_isr = None
    if path is not None:
        from kdist.config.load import load_broker

        config = load_broker(read_settings_file(path), path)
        brokers = [config.broker.id] if not brokers and host is None else brokers
        zookeeper = zookeeper or os.path.abspath(path)
        min_isr = config.topic_defaults.min_insync_replicas
    if not brokers and host is None:
        raise UserError("which broker? give --broker ID, --host NAME or --config FILE")
    if not zookeeper:
        raise UserError("where is the cluster? give --zookeeper or --config FILE")
    given = Clients.in_file(client_file).given("admin") if client_file is not None else {}
    settings = read_settings({"client_id": "kdist-gate", **given})
    return Subject(brokers, host, zookeeper, min_isr, settings)


def _ids(option: str, text: str) -> list[int]:
    ids = []
    for word in filter(None, map(str.strip, text.split(","))):
        number = read_digits(word)
        if number is None:
            raise UserError(f"{option} {text!r} is not a list of broker ids")
        ids.append(number)
    return ids


def _show(subject: Subject, found: Found, verdict: Verdict, is_after: bool, as_json: bool) -> None:
    from kdist.ops.gate import replicated_on

    if as_json:
        view = found.view
        replicated = replicated_on(view, frozenset(found.brokers))
        row = {
            "broker": subject.brokers[0] if len(subject.brokers) == 1 else None,
            "host": subject.host,
            "asked": found.brokers,
            "answer": "no" if verdict.reasons else "yes",
            "reasons": verdict.reasons,
            "moves": verdict.moves,
            "single_replica": [str(each) for each in verdict.single_replica],
            "partitions": len(replicated),
            "topics": sorted({each.partition.topic for each in replicated}),
            "moving": view.is_reassigning or any(each.is_moving for each in view.partitions),
            "controller": view.controller,
            "brokers": sorted(view.brokers),
            "lack": found.lack and found.lack._asdict(),
        }
        print_json(row)
        return
    for reason in verdict.reasons:
        click.echo(click.style("no    ", fg="red") + reason)
    if not verdict.reasons:
        is_one = len(found.brokers) == 1 or subject.host is not None
        sentence = f"{'is' if is_one else 'are'} fully back" if is_after else "may go down now"
        ids = ", ".join(map(str, found.brokers))
        asked = f"broker{'s' * (not is_one)} {ids}"
        if subject.host is not None:
            asked = f"host {subject.host} (brokers {ids})"
        click.echo(click.style("yes   ", fg="green") + f"{asked} {sentence}")
    if found.lack and found.lack.partitions:
        of = show_count(found.lack.partitions, "partition")
        click.echo(f"note  it lacks {show_size(found.lack.bytes)} of {of}")
    if verdict.single_replica and not is_after:
        count = len(verdict.single_replica)
        click.echo(f"note  partitions with no replica elsewhere: {count}")


gate.add_command(plan)
gate.add_command(rollback)


# The lock of whatever stops brokers


@gate.command()
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


@gate.command()
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


@gate.command()
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
