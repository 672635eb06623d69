"""The lab's command line: start, remove and log in to hosts. Fault commands are in `cli_faults`.

Exit status:
0    success                                   2    a wrong flag or argument
1    failure, or a requirement is missing      any other, from `ssh` and `run`: the command's own
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from kdist.cli.shared.table import Column, Row, print_table
from kdist.errors import UserError
from lab import access, hosts, image, life, missing, network
from lab.hosts import Description, Host
from lab.lock import held
from lab.place import ROOT, Place

INVENTORY = ROOT / "inventory" / "lab" / "hosts.yml"

# The rest of the line is another program's command: leave its flags to that program.
_PASSES_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@dataclass
class Lab:
    """What every command receives: the lab's directory and its inventory."""

    place: Place
    inventory: Path

    @cached_property
    def description(self) -> Description:
        """The lab's hosts; read on first use, since `down` needs no inventory."""
        try:
            return hosts.parse(self.inventory.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"there is no inventory {self.inventory}") from None

    def host(self, name: str) -> Host:
        """The host of this name."""
        return self.description.host(name)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "--inventory",
    envvar="KDIST_LAB_INVENTORY",
    default=INVENTORY,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The hosts [inventory/lab/hosts.yml; KDIST_LAB_INVENTORY].",
)
@click.pass_context
def lab(ctx: click.Context, inventory: Path) -> None:
    """Hosts to try kdist on, as containers on this machine, and faults to try on them.

    All is kept in KDIST_LAB_DIR (/var/lib/kdist-lab), and `down` leaves nothing behind.
    """
    # `check` and `up` report this together with whatever else is missing.
    if os.geteuid() != 0 and ctx.invoked_subcommand not in ("check", "up"):
        raise UserError("the lab is made of containers and mounts: this takes root")
    ctx.obj = Lab(Place.of_environment(), inventory)


pass_lab: Callable[[Callable[..., Any]], Callable[..., Any]] = click.make_pass_decorator(Lab)


@lab.command()
@pass_lab
def check(given: Lab) -> None:
    """Say what this machine lacks to run the lab."""
    _refuse_if_missing(given)
    click.echo("The lab can run here.")


@lab.command()
@click.argument("names", metavar="[HOST]...", nargs=-1)
@pass_lab
def up(given: Lab, names: tuple[str, ...]) -> None:
    """Make and start the hosts named, or all; what is up stays as it is."""
    chosen = given.description.choose(names)
    _refuse_if_missing(given)
    with held(given.place.lock, "up " + " ".join(host.name for host in chosen)):
        life.up(given.place, given.description, chosen, click.echo)
    click.echo(f"Up: {', '.join(host.name for host in chosen)}.")


@lab.command()
@click.option("--all", "is_all", is_flag=True, help="Remove the base images too.")
@pass_lab
def down(given: Lab, is_all: bool) -> None:
    """Remove the hosts, their disks and all that the lab made here."""
    place = given.place
    # Otherwise no `up` ran here, and the directory and cgroups of this name are another program's.
    is_lab = place.lock.exists() or place.hosts.is_dir()
    with held(place.lock, "down") if is_lab else nullcontext():
        if is_lab:
            life.down(place)
        if is_all:
            image.remove_all(place)
        life.remove_home(place)


@lab.command("image")
@pass_lab
def make_image(given: Lab) -> None:
    """Make the base image that all hosts share, if it is not there, and print where it is."""
    _refuse_if_missing(given)
    click.echo(image.make(given.place, given.description.is_bare))


@lab.command()
@click.option("--json", "is_json", is_flag=True, help="As JSON.")
@pass_lab
def status(given: Lab, is_json: bool) -> None:
    """Show each host: what it does, its address, its disks; and which links are cut."""
    rows = life.status(given.place, given.description)
    cuts = network.cuts(given.place)
    if is_json:
        click.echo(json.dumps(_as_json(rows, cuts), indent=2))
        return
    print_table([Column(title) for title in ("HOST", "STATE", "ADDRESS", "DISKS")], map(_row, rows))
    names = {host.address: host.name for host in given.description.hosts}
    for one, other in cuts:
        click.echo(f"cut: {names.get(one, one)} -> {names.get(other, other)}")


def _row(row: life.HostState) -> Row:
    devices = " ".join(f"{name}={device}" for name, device in row.devices.items())
    return Row([row.host.name, row.state, str(row.host.address), devices])


def _as_json(rows: Sequence[life.HostState], cuts: Sequence[network.Pair]) -> dict[str, Any]:
    hosts_by_name = {
        row.host.name: {
            "state": row.state,
            "address": str(row.host.address),
            "disks": row.devices,
        }
        for row in rows
    }
    return {
        "hosts": hosts_by_name,
        "cut": [{"from": str(one), "to": str(other)} for one, other in cuts],
    }


@lab.command(context_settings=_PASSES_ON)
@click.argument("host")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@pass_lab
def ssh(given: Lab, host: str, command: tuple[str, ...]) -> None:
    """Log in to HOST, or run COMMAND there."""
    given.host(host)
    _run(given.place, access.ssh_command(given.place, host, command))


@lab.command(context_settings=_PASSES_ON)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_lab
def run(given: Lab, command: tuple[str, ...]) -> None:
    """Run COMMAND of this machine in the lab's network, as on a host that has a cable to it.

    For example: run .venv/bin/ansible -i inventory/lab -m ping all
    """
    _run(given.place, network.inside(given.place, *command))


def _run(place: Place, command: list[str | Path]) -> None:
    os.environ["KDIST_LAB_DIR"] = str(place.home)
    sys.exit(access.run_inside(place, command))


def _refuse_if_missing(given: Lab) -> None:
    if sentences := missing.missing(given.place, given.description.is_bare):
        raise UserError("\n".join(sentences))
