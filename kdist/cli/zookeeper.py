"""`kdist zookeeper`: judgements about ensembles, for the playbooks; the ACLs of a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.files import json_input, read_settings_file
from kdist.cli.shared.options import config_option
from kdist.cli.shared.show import show_count
from kdist.errors import UserError

if TYPE_CHECKING:
    from kdist.config.broker import ZooKeeperSettings
    from kdist.zk.securing import Done, Found
    from kdist.zk.znode_acls import ZnodeAcl

_PROGRESS = 10_000  # znodes from one line to the next


@click.group(cls=CommandGroup)
def zookeeper() -> None:
    """Judge a ZooKeeper ensemble for a playbook, or secure a cluster's znodes."""


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


@zookeeper.command()
@config_option("broker")
@click.option("--undo", is_flag=True, help="Open all znodes to everybody again.")
@click.option("--dry-run", is_flag=True, help="Say what would be set, and set nothing.")
@click.option(
    "--check",
    is_flag=True,
    help="Say what is not as it should be, and by whose identities the znodes are owned; exit with"
    " 1 if anything is wrong.",
)
def secure(path: str, undo: bool, dry_run: bool, check: bool) -> int:
    """Set the ACLs of a cluster's znodes, as brokers with zookeeper.set.acl create them.

    With the address and the credentials of a broker's file. Everything that exists is looked at,
    and nothing is created. It may be interrupted, and run again. Do it when all brokers run with
    zookeeper.set.acl=true: until then others cannot change what these have created.
    """
    import asyncio

    from kdist.config.load import load_broker

    settings = load_broker(read_settings_file(path), path).zookeeper
    if not (settings.digest_file or settings.ssl_keystore_location):
        raise UserError(
            f"{path} has no identity for ZooKeeper: set zookeeper.digest.file or"
            " zookeeper.ssl.keystore.location"
        )
    done = asyncio.run(_secure(settings, undo=undo, is_dry=dry_run or check))
    verb = "are not as they should be" if check else "would be set" if dry_run else "were set"
    click.echo(f"{show_count(done.seen, 'znode')}, of which {done.changed} {verb}")
    for owner, count in sorted(done.owners.items()):
        click.echo(f"{owner} owned {show_count(count, 'znode')}")
    for refused in done.refused:
        click.echo(f"{refused}: ZooKeeper does not let these credentials set its ACL", err=True)
    return int(bool(done.refused or (check and done.changed)))


async def _secure(settings: ZooKeeperSettings, *, undo: bool, is_dry: bool) -> Done:
    from kdist.client import zookeeper_session
    from kdist.runtime.disk import Disk
    from kdist.zk import securing
    from kdist.zk.znode_acls import OPEN, acl_of

    told = 0

    def report(found: Found) -> None:
        if is_dry:
            click.echo(f"{found.path}: {found.fault}")

    def progress(seen: int) -> None:
        nonlocal told
        if seen - told >= _PROGRESS:
            told = seen
            click.echo(f"{seen} znodes", err=True)

    def wanted(path: str) -> ZnodeAcl:
        return OPEN if undo else acl_of(path)

    async with zookeeper_session.zookeeper_by(settings, Disk().read) as zk:
        return await securing.secure(zk, wanted, report, progress, is_dry=is_dry)
