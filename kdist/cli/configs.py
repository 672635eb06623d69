"""`kdist configs`: shows and alters settings of topics, brokers, clients and users while they run.

The settings of a client or user are its quotas.

`kdist config`, without the s, is about a broker's file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import click

from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.completing import complete_topics
from kdist.cli.shared.connecting import ask_cluster
from kdist.cli.shared.options import json_option, not_empty, say
from kdist.cli.shared.settings import (
    parse_settings,
    pick,
    require_apart,
    settings_option,
    unset_option,
)
from kdist.cli.shared.table import OMITTED, Field, print_rows
from kdist.errors import UserError
from kdist.model import read_digits

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from kdist.client.admin.quotas import QuotaOwner
    from kdist.client.admin.settings import Setting
    from kdist.client.cluster import Cluster

TOPIC, BROKER, CLIENT, USER = "topic", "broker", "client", "user"
_WITH_QUOTAS = (CLIENT, USER)
# Instead of a broker's or client's id, or a user's name: the value of all that have none of their
# own. A client may have it as its id, too, and a user as its name.
ALL = "all"
IGNORED = "Ignored: "  # so begins what a broker of kdist says of a setting without effect

_SETTINGS: tuple[Field[Setting], ...] = (
    Field("SETTING", lambda each: each.name, "setting"),
    Field("VALUE", lambda each: _shown(each)),
    Field("", lambda each: each.value, "value"),
    Field("SOURCE", lambda each: each.source, "source"),
    Field("", lambda each: each.is_default, "is_default"),
    Field("", lambda each: each.is_secret, "is_secret"),
    Field("", lambda each: each.is_read_only, "is_read_only"),
    Field("", lambda each: each.doc or OMITTED, "doc"),
)


def _setting(own: tuple[Resource, Setting]) -> Setting:
    return own[1]


_OWN: tuple[Field[tuple[Resource, Setting]], ...] = (
    Field("KIND", lambda own: own[0].kind, "kind"),
    Field("NAME", lambda own: _shown_name(own[0]), "of"),
    *(each.of(_setting) for each in _SETTINGS),
)
_UNCHANGED = ("default", "file")  # sources of settings that were not altered at runtime


class Resource(NamedTuple):
    """A topic, a broker, a client or a user, with its settings by name.

    `name` is None for all brokers, clients or users that have no settings of their own. `user` is
    whose client it is, `ALL` for each user's, "" for whichever.
    """

    kind: str
    name: str | None
    settings: Mapping[str, Setting]
    user: str = ""


def _shown_name(each: Resource) -> str:
    """The name that the commands take, quoted if it needs `--named`; and whose client it is."""
    is_odd = each.kind in _WITH_QUOTAS and each.name == ALL
    name = ALL if each.name is None else f'"{ALL}"' if is_odd else each.name
    if not each.user:
        return name
    return f"{name} of all users" if each.user == ALL else f"{name} of user {each.user}"


def _complete_names(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
    return complete_topics(ctx, param, begun) if ctx.params.get("kind") == TOPIC else []


kind_argument = click.argument("kind", type=click.Choice([TOPIC, BROKER, CLIENT, USER]))
name_argument = click.argument(
    "name", metavar="NAME", callback=not_empty, shell_complete=_complete_names
)
named_option = click.option(
    "--named/--default",
    default=None,
    help="`all` is the name of one client or user, or stands for all: needed if one has that name.",
)
user_option = click.option(
    "--user",
    default="",
    metavar="NAME",
    help="Of a client: whose it is; `all` stands for each user's. Unset, whichever user's.",
)


@click.group(cls=CommandGroup)
def configs() -> None:
    """List, describe and alter settings of topics and brokers, and quotas, while brokers run."""


# list


@configs.command("list")
@client_options()
@json_option
def list_them(clients: Clients, as_json: bool) -> int:
    """List quotas, and the settings that topics and brokers override: no defaults, no files.

    The exit status is 1 if a broker that has replicas is down, so that its settings are not listed.
    """

    async def work(cluster: Cluster) -> tuple[list[Resource], list[int]]:
        from kdist.client.admin.health import missing_brokers
        from kdist.client.admin.settings import (
            SHARED,
            describe_broker_configs,
            describe_default_broker_configs,
            describe_topic_configs,
        )
        from kdist.client.admin.topics import list_topics

        names = [topic.name for topic in await list_topics(cluster)]
        of_topics = await describe_topic_configs(cluster, names) if names else {}
        of_brokers = await describe_broker_configs(cluster)
        of_all = [
            *(Resource(TOPIC, name, _own(TOPIC, found)) for name, found in of_topics.items()),
            Resource(BROKER, None, await describe_default_broker_configs(cluster)),
            *(
                Resource(BROKER, str(id_), _own(BROKER, found, but=SHARED))
                for id_, found in of_brokers.items()
            ),
            *await _with_quotas(cluster),
        ]
        return of_all, await missing_brokers(cluster)

    listed, missing = ask_cluster(clients, work)
    found = [(of, each) for of in listed for each in sorted(of.settings.values())]
    none = "No topic and no broker has settings of its own, and no client or user has quotas."
    print_rows(_OWN, found, as_json=as_json, if_none=none)
    for broker in missing:
        click.echo(f"kdist: broker {broker} is down: its settings are not listed", err=True)
    return 1 if missing else 0


def _own(kind: str, settings: Mapping[str, Setting], but: str = "") -> dict[str, Setting]:
    """The topic's own settings, or those of a broker that were altered at runtime.

    Settings from the source `but` are left out.
    """
    return {name: each for name, each in settings.items() if _is_own(kind, each.source, but)}


def _is_own(kind: str, source: str, but: str) -> bool:
    from kdist.client.admin.settings import OF_TOPIC

    if kind in _WITH_QUOTAS:
        return "all " not in source
    return source == OF_TOPIC if kind == TOPIC else source not in (*_UNCHANGED, but)


async def _with_quotas(cluster: Cluster) -> list[Resource]:
    """All that have quotas; none if the brokers are too old to know any."""
    from kdist.client.admin.quotas import EACH, describe_quotas
    from kdist.errors import ApiError, Error

    try:
        found = await describe_quotas(cluster)
    except ApiError as error:
        if error.error is Error.UNSUPPORTED_VERSION:
            return []
        raise
    listed = []
    for owner, quotas in found.items():
        is_client = owner.client_id is not None
        name = owner.client_id if is_client else owner.user
        user = owner.user or "" if is_client else ""
        listed.append(
            Resource(
                CLIENT if is_client else USER,
                None if name == EACH else name,
                _quotas(quotas, _source(owner)),
                ALL if user == EACH else user,
            )
        )
    return listed


def _source(owner: QuotaOwner) -> str:
    """`client`, `all clients of user`, ..."""
    from kdist.client.admin.quotas import EACH

    parts = ((CLIENT, owner.client_id), (USER, owner.user))
    return " of ".join(
        f"all {kind}s" if name == EACH else kind for kind, name in parts if name is not None
    )


def _quotas(quotas: Mapping[str, float], source: str) -> dict[str, Setting]:
    from kdist.client.admin.settings import Setting

    return {
        name: Setting(name, _number_text(value), source, False, False, False)
        for name, value in quotas.items()
    }


def _number_text(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


# describe


@configs.command()
@kind_argument
@name_argument
@click.argument("settings", metavar="[SETTING...]", nargs=-1, callback=not_empty)
@click.option("--own", is_flag=True, help="Only what differs from brokers' files and defaults.")
@user_option
@named_option
@client_options()
@json_option
def describe(  # noqa: PLR0913 - one for each option
    kind: str,
    name: str,
    settings: tuple[str, ...],
    own: bool,
    user: str,
    named: bool | None,
    clients: Clients,
    as_json: bool,
) -> None:
    """Show the settings in force of a topic, or of a broker by its id, and where they come from.

    With SETTINGs, shows only these; `*` in one matches any text. Secrets are hidden. `all` instead
    of a broker's id shows the cluster-wide settings that were altered at runtime. A client, named
    by its client id, and a user have quotas; `all` shows those of all that have none of their own.
    A client or user that is called `all` is told apart by --named.

    \b
    Examples:
      kdist configs describe topic clicks
      kdist configs describe broker 1 'log.retention.*'
      kdist configs describe broker all
      kdist configs describe client etl
      kdist configs describe client etl --user alice
    """

    meant = _meant(kind, name, user, is_named=named)

    async def work(cluster: Cluster) -> Mapping[str, Setting]:
        await _require_unambiguous(cluster, kind, meant, is_named=named)
        return await _describe(cluster, kind, name, meant, user)

    found = ask_cluster(clients, work)
    if own:
        found = _own(kind, found)
    picked = sorted(pick(found.values(), settings, lambda each: [each.name]))
    is_all = meant is None
    has = f"All {kind}s together have" if is_all else f"{kind.capitalize()} {name} has"
    what = "quotas" if kind in _WITH_QUOTAS else f"settings of {'their' if is_all else 'its'} own"
    none = f"{has} no {what}."
    print_rows(_SETTINGS, picked, as_json=as_json, if_none=none)


def _meant(kind: str, name: str, user: str, *, is_named: bool | None) -> str | None:
    """The name of one topic, broker, client or user; None for all of them but topics."""
    if is_named is not None and not (kind in _WITH_QUOTAS and name == ALL):
        raise click.UsageError("--named and --default are for the client or user `all`.")
    if user and kind != CLIENT:
        raise click.UsageError("--user is for a client: it says whose.")
    return None if name == ALL and kind != TOPIC and not is_named else name


async def _require_unambiguous(
    cluster: Cluster, kind: str, meant: str | None, *, is_named: bool | None
) -> None:
    """`UserError` if all are meant by a word that is the name of one that has quotas."""
    from kdist.client.admin.quotas import describe_quotas

    if kind not in _WITH_QUOTAS or meant is not None or is_named is not None:
        return
    found = await describe_quotas(cluster)
    if ALL in {owner.client_id if kind == CLIENT else owner.user for owner in found}:
        raise UserError(
            f"a {kind} called {ALL!r} has quotas: --named is for that one, --default for"
            " all that have none of their own"
        )


async def _describe(
    cluster: Cluster, kind: str, name: str, meant: str | None, user: str = ""
) -> Mapping[str, Setting]:
    from kdist.client.admin.settings import (
        describe_broker_configs,
        describe_default_broker_configs,
        describe_topic_configs,
    )
    from kdist.client.admin.topics import describe_topics

    if kind in _WITH_QUOTAS:
        return await _describe_quotas(cluster, _quota_owner(kind, meant, user))
    if meant is None:
        return await describe_default_broker_configs(cluster, with_docs=True)
    if kind == BROKER:
        number = _broker_id(name)
        return (await describe_broker_configs(cluster, [number], with_docs=True))[number]
    await describe_topics(cluster, [name])  # its error suggests the nearest name
    return (await describe_topic_configs(cluster, [name], with_docs=True))[name]


def _quota_owner(kind: str, name: str | None, user: str) -> QuotaOwner:
    from kdist.client.admin.quotas import EACH, QuotaOwner

    named = EACH if name is None else name
    if kind == USER:
        return QuotaOwner(named)
    return QuotaOwner((EACH if user == ALL else user) or None, named)


async def _describe_quotas(cluster: Cluster, owner: QuotaOwner) -> Mapping[str, Setting]:
    """Each quota in force, and whose it is: the first that is set (docs/guides/quotas.md)."""
    from kdist.client.admin.quotas import EACH, QuotaOwner, describe_quotas

    found = await describe_quotas(cluster)
    user, client_id = owner
    levels = [
        QuotaOwner(each, part)
        for each in dict.fromkeys((user, None if user is None else EACH, None))
        for part in dict.fromkeys((client_id, None if client_id is None else EACH, None))
    ]
    in_force: dict[str, Setting] = {}
    for each in reversed(levels):
        in_force |= _quotas(found.get(each, {}), _source(each))
    return in_force


def _broker_id(name: str) -> int:
    number = read_digits(name)
    if number is None:
        raise UserError(f"{name!r} is not a broker id: `kdist cluster describe` lists them")
    return number


def _shown(each: Setting) -> str:
    return "(secret)" if each.is_secret else "-" if each.value is None else each.value or '""'


# alter


@configs.command()
@kind_argument
@name_argument
@settings_option("--set", "A setting to change")
@unset_option("A setting whose own value to remove")
@click.option("--dry-run", is_flag=True, help="Have the cluster check the change, not make it.")
@user_option
@named_option
@client_options()
@json_option
def alter(  # noqa: PLR0913 - one for each option
    kind: str,
    name: str,
    texts: tuple[str, ...],
    removed: tuple[str, ...],
    dry_run: bool,
    user: str,
    named: bool | None,
    clients: Clients,
    as_json: bool,
) -> None:
    """Set and unset settings of a topic, a broker by its id, a client or a user; all or none.

    `all` instead of an id sets the cluster-wide values. A broker's own value overrides the
    cluster-wide one, and both override its file. Settings that a broker reads only at startup are
    refused; `kdist configs describe broker ID --json` shows them as `is_read_only`.

    The settings of a client or user are its quotas on each broker: producer_byte_rate and
    consumer_byte_rate in bytes a second, request_percentage of the broker's time,
    controller_mutation_rate in partitions a second that are created and deleted. `all` sets those
    of each that has none of its own; one that is called `all` is told apart by --named.

    \b
    Examples:
      kdist configs alter topic clicks --set retention.ms=86400000 --unset segment.bytes
      kdist configs alter broker all --set log.retention.ms=86400000
      kdist configs alter broker 1 --set max.connections=2000 --dry-run
      kdist configs alter client etl --set producer_byte_rate=10485760
      kdist configs alter user alice --set consumer_byte_rate=5242880
      kdist configs alter client all --user alice --set request_percentage=10
    """
    settings = parse_settings(texts, "--set")
    if not settings and not removed:
        raise click.UsageError("Say what to change: --set or --unset.")
    require_apart(settings, removed)

    meant = _meant(kind, name, user, is_named=named)
    change = Change(kind, meant, settings, removed, dry_run, user)

    async def work(cluster: Cluster) -> list[str]:
        await _require_unambiguous(cluster, kind, change.name, is_named=named)
        await _alter(cluster, change)
        return [] if kind in _WITH_QUOTAS or dry_run else await _ignored(cluster, change)

    for sentence in ask_cluster(clients, work):
        click.echo(sentence, err=True)
    of = _shown_name(Resource(kind, meant, {}, user))
    whose = f"{kind} {of}" if meant is not None else f"all {kind}s{of.removeprefix(ALL)}"
    what = [f"{key}={value}" for key, value in settings.items()]
    what += [f"{key} unset" for key in removed]
    sentence = f"{'Would change' if dry_run else 'Changed'} {whose}: {', '.join(what)}."
    row = {"kind": kind, "of": of, "set": settings, "unset": removed}
    say(sentence, as_json, **row, carried_out=not dry_run)


class Change(NamedTuple):
    """What `alter` was told to do; `name` and `user` as in `Resource`."""

    kind: str
    name: str | None
    settings: Mapping[str, str]
    removed: tuple[str, ...]
    is_trial: bool
    user: str


async def _alter(cluster: Cluster, change: Change) -> None:
    from kdist.cli.shared.settings import require_known, require_known_of_broker
    from kdist.client.admin.quotas import alter_quotas
    from kdist.client.admin.settings import (
        incremental_alter_broker_configs,
        incremental_alter_topic_configs,
    )
    from kdist.client.admin.topics import describe_topics

    kind, name, settings, removed, is_trial, user = change
    if kind == TOPIC:
        assert name is not None, "only all brokers and clients have no name"
        await describe_topics(cluster, [name])
        await require_known(cluster, name, removed)
        await incremental_alter_topic_configs(
            cluster, name, settings, removed, validate_only=is_trial
        )
    elif kind == BROKER:
        number = None if name is None else _broker_id(name)
        await require_known_of_broker(cluster, number, removed)
        await incremental_alter_broker_configs(
            cluster, number, settings, removed, validate_only=is_trial
        )
    else:
        owner = _quota_owner(kind, name, user)
        await alter_quotas(cluster, owner, settings, removed, validate_only=is_trial)


async def _ignored(cluster: Cluster, change: Change) -> list[str]:
    """A sentence for each setting that the brokers have accepted, and that has no effect."""
    if not change.settings:
        return []
    found = await _describe(cluster, change.kind, change.name or ALL, change.name)
    return [
        f"{name} has no effect. {found[name].doc}"
        for name in change.settings
        if name in found and found[name].doc.startswith(IGNORED)
    ]
