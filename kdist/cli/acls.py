"""`kdist acls`: lists, adds and removes ACLs, by a broker or straight in ZooKeeper."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import wraps
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_groups, complete_topics
from kdist.cli.shared.confirming import confirm, yes_option
from kdist.cli.shared.connecting import ask_cluster, ask_zookeeper
from kdist.cli.shared.options import json_option, not_empty, say
from kdist.cli.shared.show import show_count
from kdist.cli.shared.table import Field, json_row, print_rows
from kdist.errors import UserError
from kdist.security.acl_filters import AclFilter, fault_of
from kdist.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from kdist.security.principals import host_text

if TYPE_CHECKING:
    from kdist.client.admin.acls import AclBinding, Send
    from kdist.client.cluster import Cluster
    from kdist.zk.client import ZooKeeper

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_FIELDS: tuple[Field[AclBinding], ...] = (
    Field("TYPE", lambda each: each.pattern.type.text, "type"),
    Field("NAME", lambda each: each.pattern.name, "name"),
    Field("PATTERN", lambda each: each.pattern.kind.text, "pattern"),
    Field("PRINCIPAL", lambda each: each.acl.principal, "principal"),
    Field("HOST", lambda each: each.acl.host, "host"),
    Field("OPERATION", lambda each: each.acl.operation.text, "operation"),
    Field("PERMISSION", lambda each: each.acl.permission.text, "permission"),
)
_OPERATIONS = [each.text for each in Operation if each > Operation.ANY]


class Meant(NamedTuple):
    """What the options name; nothing of a kind: any."""

    resources: tuple[tuple[ResourceType, str], ...]
    is_prefixed: bool
    principals: tuple[str, ...]
    hosts: tuple[str, ...]
    operations: tuple[Operation, ...]
    permission: Permission

    def filters(self, kind: PatternType) -> list[AclFilter]:
        """With patterns of this kind, or of prefixes if they are."""
        anything = AclFilter(kind=PatternType.PREFIXED if self.is_prefixed else PatternType.ANY)
        patterns: Sequence[tuple[ResourceType, str | None, PatternType]]
        patterns = self._patterns(kind) or [anything[:3]]
        return [
            AclFilter(*pattern, principal, host, operation, self.permission)
            for pattern, principal, host, operation in product(
                patterns,
                self.principals or (None,),
                self.hosts or (None,),
                self.operations or (Operation.ANY,),
            )
        ]

    def bindings(self) -> list[AclBinding]:
        """The ACLs that they make. `click.UsageError` if they make none, or a wrong one."""
        from kdist.client.admin.acls import AclBinding

        patterns = self._patterns(PatternType.LITERAL)
        made = [
            AclBinding(pattern, Acl(principal, host, operation, self.permission))
            for pattern, principal, host, operation in product(
                patterns, self.principals, self.hosts or (WILDCARD,), self.operations
            )
        ]
        if not made:
            raise click.UsageError("Say who (--principal), what (--operation) and where (--topic).")
        for each in made:
            fault = fault_of(*each)
            if fault is not None:
                raise click.UsageError(f"{fault[0].upper()}{fault[1:]}.")
        return made

    def _patterns(self, kind: PatternType) -> list[Pattern]:
        """The cluster has no prefix."""
        named = PatternType.PREFIXED if self.is_prefixed else kind
        return [
            Pattern(each, name, kind if each is ResourceType.CLUSTER else named)
            for each, name in self.resources
        ]


def _address(_: click.Context, parameter: click.Parameter, hosts: Iterable[str]) -> tuple[str, ...]:
    for each in hosts:
        try:
            each == WILDCARD or ipaddress.ip_address(each)
        except ValueError:
            reason = f"{each!r} is no address: ACLs have neither names nor networks."
            raise click.BadParameter(reason, param=parameter) from None
    return tuple(map(host_text, hosts))


def _names(option: str, what: str, complete: Any = None) -> Callable[[F], F]:
    return click.option(
        option,
        metavar="NAME",
        multiple=True,
        callback=not_empty,
        shell_complete=complete,
        help=f"{what}, or * for all; may be repeated.",
    )


_OPTIONS = (
    _names("--topic", "A topic", complete_topics),
    _names("--group", "A consumer group", complete_groups),
    _names("--transactional-id", "A transactional id"),
    _names("--user", "A user, of whom there are delegation tokens"),
    click.option("--cluster", is_flag=True, help="The cluster as a whole."),
    click.option("--prefixed", is_flag=True, help="The names are prefixes of names."),
    click.option(
        "--principal",
        metavar="User:NAME",
        multiple=True,
        callback=not_empty,
        help="Who; User:* for everybody; may be repeated.",
    ),
    click.option(
        "--host",
        metavar="ADDRESS",
        multiple=True,
        callback=_address,
        help="From where; by default from anywhere; may be repeated.",
    ),
    click.option(
        "--operation",
        type=click.Choice(_OPERATIONS, case_sensitive=False),
        multiple=True,
        help="What; may be repeated.",
    ),
    click.option("--allow/--deny", "is_allowed", default=None, help="Whether it is allowed."),
    click.option(
        "--zookeeper",
        metavar="HOST:PORT[/CHROOT]",
        callback=not_empty,
        help="Go straight to ZooKeeper: for a cluster without an authorizer yet.",
    ),
)


_TYPES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "user": ResourceType.USER,
}


def acl_options(function: F) -> F:
    """The options that name ACLs, which the command gets as `meant`; and `through`."""

    @wraps(function)
    def with_meant(**given: Any) -> Any:
        resources = [(kind, name) for option, kind in _TYPES.items() for name in given.pop(option)]
        if given.pop("cluster"):
            resources.append((ResourceType.CLUSTER, CLUSTER_NAME))
        is_allowed = given.pop("is_allowed")
        permission = {None: Permission.ANY, True: Permission.ALLOW, False: Permission.DENY}
        meant = Meant(
            tuple(resources),
            given.pop("prefixed"),
            given.pop("principal"),
            given.pop("host"),
            tuple(map(Operation.parse, given.pop("operation"))),
            permission[is_allowed],
        )
        through = Through(given.pop("clients"), given.pop("zookeeper"))
        return function(meant=meant, through=through, **given)

    wrapped: Any = client_options()(with_meant)
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    decorated: F = wrapped
    return decorated


class Through(NamedTuple):
    """The way to the ACLs: by a broker, or straight to ZooKeeper."""

    clients: Clients
    zookeeper: str | None

    def ask(self, work: Callable[[Send], Awaitable[T]]) -> T:
        """The result of `work`, which gets a way to send requests."""
        if self.zookeeper is not None:
            return ask_zookeeper(self.zookeeper, lambda zk: _in_zookeeper(zk, work))

        async def by_broker(cluster: Cluster) -> T:
            from kdist.client.admin.acls import sending

            return await work(sending(cluster))

        return ask_cluster(self.clients, by_broker)


async def _in_zookeeper(zk: ZooKeeper, work: Callable[[Send], Awaitable[T]]) -> T:
    """By a broker's handlers of these requests, without the broker."""
    from kdist.broker.handlers.acls import AclsHandler
    from kdist.broker.stored_security import StoredAcls
    from kdist.protocol.create_acls import CreateAclsRequest
    from kdist.protocol.describe_acls import DescribeAclsRequest
    from kdist.runtime.clock import SystemClock
    from kdist.security.acls import AclTable

    acls = StoredAcls(zk, SystemClock(), AclTable())
    await acls.load_all()
    handler = AclsHandler(acls)

    async def send(request: Any) -> Any:
        if isinstance(request, DescribeAclsRequest):
            return await handler.describe(request)
        if isinstance(request, CreateAclsRequest):
            return await handler.create(request, "kdist acls")
        return await handler.delete(request, "kdist acls")

    return await work(send)


@click.group(cls=CommandGroup)
def acls() -> None:
    """List, add and remove ACLs: who may do what, from where.

    With an authorizer (authorizer.class.name) brokers do what an ACL allows and none denies, and
    whatever super users ask. An ACL for the name of a topic ends allow.everyone.if.no.acl.found for
    everybody else there: add all that a topic needs together.
    """


@acls.command("list")
@acl_options
@json_option
def list_them(meant: Meant, through: Through, as_json: bool) -> None:
    """List the ACLs that match all options; with none, every ACL.

    With a resource, all that count for it: those of its name, of prefixes of it, and of *.

    \b
    Examples:
      kdist acls list
      kdist acls list --topic clicks
      kdist acls list --principal User:etl --deny
    """

    async def work(send: Send) -> list[AclBinding]:
        return await _matching(send, meant.filters(PatternType.MATCH))

    print_rows(_FIELDS, through.ask(work), as_json=as_json, if_none="There are no such ACLs.")


@acls.command()
@acl_options
@click.option("--dry-run", is_flag=True, help="Show what would be added, and add nothing.")
@json_option
def add(meant: Meant, through: Through, dry_run: bool, as_json: bool) -> None:
    """Allow principals operations on resources, or with --deny forbid them.

    Adds an ACL for each combination of what is named. One that is there already stays. To read,
    write, delete or alter includes to describe.

    \b
    Examples:
      kdist acls add --principal User:etl --operation read --topic clicks --group etl
      kdist acls add --principal User:web --operation write --topic web. --prefixed
      kdist acls add --principal 'User:*' --operation all --topic secret --host 10.0.0.9 --deny
    """
    if meant.permission is Permission.ANY:
        meant = meant._replace(permission=Permission.ALLOW)
    wanted = meant.bindings()

    async def work(send: Send) -> set[AclBinding]:
        from kdist.client.admin.acls import EVERY, create_by, describe_by

        before = set(await describe_by(send, EVERY))
        if not dry_run:
            await create_by(send, wanted)
        return before

    before = through.ask(work)
    for each in wanted:
        is_new = each not in before
        done = "Would add" if dry_run else "Added"
        sentence = f"{done} {each}." if is_new else f"There is already {each}."
        say(sentence, as_json, **json_row(_FIELDS, each), is_new=is_new, carried_out=not dry_run)


@acls.command()
@acl_options
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@yes_option
@json_option
def remove(meant: Meant, through: Through, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Remove the ACLs that match all options, whether they allow or deny.

    A resource means the ACLs of that very name, or with --prefixed of that very prefix; * is a name
    as any other.

    \b
    Examples:
      kdist acls remove --principal User:etl --dry-run
      kdist acls remove --topic clicks --principal User:etl --operation read --yes
    """
    if meant == Meant((), meant.is_prefixed, (), (), (), Permission.ANY):
        raise click.UsageError("Say which: by --principal, --topic or another option.")
    filters = meant.filters(PatternType.LITERAL)

    async def work(send: Send) -> list[AclBinding]:
        from kdist.client.admin.acls import delete_by

        found = await _matching(send, filters)
        if not found:
            raise UserError("there are no such ACLs")
        if dry_run:
            return found
        shown = "".join(f"\n  {each}" for each in found)
        await confirm(f"{show_count(len(found), 'ACL')} will be removed:{shown}\n", yes=yes)
        return await delete_by(send, filters)

    for each in through.ask(work):
        sentence = f"{'Would remove' if dry_run else 'Removed'} {each}."
        say(sentence, as_json, **json_row(_FIELDS, each), carried_out=not dry_run)


async def _matching(send: Send, filters: Iterable[AclFilter]) -> list[AclBinding]:
    from kdist.client.admin.acls import describe_by

    return sorted({acl for each in filters for acl in await describe_by(send, each)})
