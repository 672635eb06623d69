"""The lab's fault commands: for network links, host power, systemd units, and disks."""

from __future__ import annotations

from collections.abc import Callable

import click

from lab import access, cgroups, faults, life, machine, network
from lab.cli import Lab, lab, pass_lab
from lab.hosts import Disk, Host
from lab.lock import held
from lab.place import Place

# Typical of a failing 7,200 rpm disk that retries every second write.
_SLOW_IOPS = 60
_SLOW_MIB_PER_S = 5.0


@lab.command()
@click.argument("one")
@click.argument("other")
@click.option("--one-way", "is_one_way", is_flag=True, help="Only what ONE sends to OTHER.")
@pass_lab
def cut(given: Lab, one: str, other: str, is_one_way: bool) -> None:
    """Drop all between ONE and OTHER in silence; each is a host or a group (dc1, broker, all)."""
    members = given.description.members
    network.cut(given.place, network.plan_cuts(members(one), members(other), is_one_way))


@lab.command()
@pass_lab
def heal(given: Lab) -> None:
    """Let everything through again that was cut."""
    network.heal(given.place)


@lab.command("net-slow")
@click.argument("host")
@click.option(
    "--mbit",
    "mbit_per_s",
    default=20.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Megabits a second; 0: no limit.",
)
@pass_lab
def net_slow(given: Lab, host: str, mbit_per_s: float) -> None:
    """Limit what HOST sends and receives."""
    faults.slow_network(given.place, given.host(host).name, mbit_per_s)


@lab.command()
@click.argument("host")
@pass_lab
def freeze(given: Lab, host: str) -> None:
    """Stop every process of HOST where it stands: it is silent, its connections stay open."""
    machine.leader_of(given.place, given.host(host).name)
    cgroups.of_host(given.place, host).freeze(True)


@lab.command()
@click.argument("host")
@pass_lab
def thaw(given: Lab, host: str) -> None:
    """Let HOST go on where it stood."""
    cgroups.of_host(given.place, given.host(host).name).freeze(False)


@lab.command()
@click.argument("host")
@pass_lab
def pull(given: Lab, host: str) -> None:
    """Cut HOST's power: nobody hears of it, and what its disks had not synced is lost."""
    machine.pull_the_plug(given.place, given.host(host).name)
    access.forget(given.place, host)


@lab.command()
@click.argument("host")
@pass_lab
def off(given: Lab, host: str) -> None:
    """Shut HOST down in good order."""
    machine.power_off(given.place, given.host(host).name)
    access.forget(given.place, host)


@lab.command()
@click.argument("host")
@pass_lab
def on(given: Lab, host: str) -> None:
    """Start HOST again after `off` or `pull`."""
    network.refuse_if_down(given.place)
    with held(given.place.lock, f"on {host}", waits=True):
        life.on(given.place, given.description, given.host(host))


@lab.command()
@click.argument("host")
@pass_lab
def reboot(given: Lab, host: str) -> None:
    """Restart HOST in good order, and wait until it is up."""
    access.forget(given.place, given.host(host).name)
    machine.reboot(given.place, host)


@lab.command()
@click.argument("host")
@click.argument("unit")
@pass_lab
def kill(given: Lab, host: str, unit: str) -> None:
    """kill -9 of the main process of HOST's UNIT, like kdist-broker@d01."""
    faults.kill(given.place, given.host(host).name, unit)


@lab.group()
def disk() -> None:
    """What goes wrong with one disk, like `disk dead k2 d01`."""


def _of_a_disk(
    name: str, sentence: str, fault: Callable[[Place, Host, Disk], None]
) -> click.Command:
    @disk.command(name, help=sentence)
    @click.argument("host")
    @click.argument("disk_id", metavar="DISK")
    @pass_lab
    def command(given: Lab, host: str, disk_id: str) -> None:
        described = given.host(host)
        fault(given.place, described, described.disk(disk_id))

    return command


_of_a_disk(
    "dead",
    "The disk dies: each call gives EIO, and it has no data and no capacity.",
    faults.fail_disk,
)
_of_a_disk("pull", "The disk is taken out: as dead, and its names are gone.", faults.pull_disk)
_of_a_disk("full", "The disk is filled up to the last block.", faults.fill_disk)
_of_a_disk("hang", "Writes wait until `thaw`; who waits cannot be killed.", faults.hang_disk)
_of_a_disk("thaw", "Undo `hang`, `slow` and `full`.", faults.thaw_disk)


@disk.command()
@click.argument("host")
@click.argument("disk_id", metavar="DISK")
@click.option(
    "--iops",
    default=_SLOW_IOPS,
    show_default=True,
    type=click.IntRange(0),
    help="Writes a second; 0: no limit.",
)
@click.option(
    "--mib",
    "mib_per_s",
    default=_SLOW_MIB_PER_S,
    show_default=True,
    type=click.FloatRange(0),
    help="MiB a second; 0: no limit.",
)
@pass_lab
def slow(given: Lab, host: str, disk_id: str, iops: int, mib_per_s: float) -> None:
    """Limit synced and direct writes of the units that run now."""
    described = given.host(host)
    faults.slow_disk(given.place, described, described.disk(disk_id), iops, mib_per_s)


@disk.command()
@click.argument("host")
@click.argument("disk_id", metavar="DISK")
@pass_lab
def swap(given: Lab, host: str, disk_id: str) -> None:
    """A blank disk comes into the slot of DISK, dead or not, under the same stable name."""
    described = given.host(host)
    size_mib = given.description.disk_size_mib
    faults.swap_disk(given.place, described, described.disk(disk_id), size_mib)
