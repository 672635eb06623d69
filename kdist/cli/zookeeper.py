"""`kdist zookeeper`: judgements about ZooKeeper's ensembles, for the playbooks."""

from __future__ import annotations

import click

from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.files import json_input
from kdist.errors import UserError


@click.group(cls=CommandGroup)
def zookeeper() -> None:
    """Judge what a playbook has found about a ZooKeeper ensemble."""


@zookeeper.command()
def review() -> int:
    """Say whether an ensemble's servers may begin; exit with 1 and the reason if not.

    Standard input is a JSON object: `members`, the hosts that the ensemble shall have, and `found`,
    a list with an object for each host that was looked at, also of those that have left: its
    `host`; `has_data`, whether it has been in an ensemble; `goes_on`, whether its server runs or
    starts at boot.
    """
    from kdist.ops import ensemble_review

    given = json_input()
    try:
        members, rows = list(map(str, given["members"])), list(given["found"])
    except (KeyError, TypeError):
        wanted = 'an object with the lists "members" and "found"'
        raise UserError(
            f"standard input does not describe an ensemble: it is not {wanted}"
        ) from None
    if reason := ensemble_review.review(members, ensemble_review.read_servers(rows)):
        click.echo(reason)
        return 1
    return 0
