"""`kdist cluster health`: whether every partition is served, replicated and in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.options import json_option, print_json
from kdist.cli.shared.show import show_count

if TYPE_CHECKING:
    from kdist.client.admin.health import Finding

_COLORS = {"bad": "red", "warning": "yellow"}


@click.command()
@client_options()
@json_option
def health(clients: Clients, as_json: bool) -> int:
    """Say whether the cluster is well; exit with 1 if something is bad.

    Bad: no controller, a broker that does not answer, a failed log directory, a partition that is
    offline or has fewer in-sync replicas than min.insync.replicas. Warnings: under-replicated
    partitions, leaders that are not the preferred ones, partitions that are being moved, brokers of
    different releases, a volume with less than a tenth free. Replicas that a move adds need not be
    in sync yet.
    """
    from kdist.client.admin.health import examine

    found = ask_cluster(clients, examine)
    is_well = all(each.level != "bad" for each in found)
    if as_json:
        findings = [{**each._asdict(), "items": list(each.items)} for each in found]
        print_json({"is_well": is_well, "findings": findings})
    else:
        for each in found:
            _print(each)
        if not found:
            click.echo("The cluster is well.")
    return 0 if is_well else 1


def _print(each: Finding) -> None:
    click.echo(click.style(f"{each.level:<9}", fg=_COLORS[each.level]) + each.sentence)
    shown = each.items[:10]
    if shown:
        rest = len(each.items) - len(shown)
        more = f", and {show_count(rest, 'other')}" if rest else ""
        click.echo(f"         {', '.join(shown)}{more}")
