"""`kdist gate plan` and `rollback`: what a roll does, from what its playbook found on the hosts."""

from __future__ import annotations

import click

from kdist.cli.shared.files import json_input
from kdist.cli.shared.options import json_option, not_empty, print_json


@click.command()
@click.option(
    "--since",
    "since_ms",
    type=int,
    metavar="MS",
    help="Restart every broker that started before this time, whatever it runs.",
)
@json_option
def plan(since_ms: int | None, as_json: bool) -> None:
    """Say what is to be done to each broker, in order, and why.

    Standard input is a JSON list with an object for each broker: its `id`, `host` and `instance`;
    `said`, what it answers on /health, or null; `unit`, what `systemctl show --timestamp=unix` has
    of ActiveState, SubState, ExecMainStatus and ActiveEnterTimestamp; `has_disk`; `disk_hangs`, if
    it does; and `wanted`, the digests of the `release`, the `settings` and the `unit` that it shall
    run with. A broker is kept, started, restarted once the gate allows it, or left alone and told
    of.
    """
    from kdist.ops import roll_plan

    rows = json_input()
    for step in roll_plan.plan(roll_plan.read_brokers(rows), since_ms):
        broker = step.broker
        if as_json:
            place = {"id": broker.id, "host": broker.host, "instance": broker.instance}
            print_json(place | {"act": step.act.value, "why": step.why})
        else:
            click.echo(f"{step.act.value:<8} broker {broker.id} on {broker.host}: {step.why}")


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
