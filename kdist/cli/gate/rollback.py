"""`kdist gate rollback`: where a rollback goes back to, from what its playbook has found."""

from __future__ import annotations

import click

from kdist.cli.shared.files import json_input
from kdist.cli.shared.options import json_option, not_empty, print_json


@click.command()
@click.option(
    "--to", "named", metavar="VERSION", callback=not_empty, help="Go back to this version."
)
@json_option
def rollback(named: str | None, as_json: bool) -> None:
    """Say which release the hosts go back to, and each host to which build of it.

    Standard input is a JSON list with an object for each host: its name, `host`; `current` and
    `previous`, the names of those releases, or ""; `has_brokers`. Hosts that an upgrade which died
    has not reached, and hosts that a rollback which died has taken back, change nothing.
    """
    from kdist.ops import rollback_plan

    rows = json_input()
    found = rollback_plan.plan(rollback_plan.read_hosts(rows), named)
    if as_json:
        print_json({"version": found.version, "releases": found.releases})
        return
    for host, release in found.releases.items():
        click.echo(f"{host}: {release or found.version}")
