"""`kdist users`: users with SCRAM credentials, by the brokers or straight in ZooKeeper."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from kdist.cli.shared.click_groups import CommandGroup
from kdist.cli.shared.client_settings import Clients, client_options
from kdist.cli.shared.confirming import confirm, yes_option
from kdist.cli.shared.connecting import ask_cluster, ask_zookeeper
from kdist.cli.shared.files import complete_files, readonly_files
from kdist.cli.shared.options import json_option, not_empty, say
from kdist.cli.shared.show import printable, show_error
from kdist.cli.shared.table import Field, print_rows
from kdist.errors import UserError

if TYPE_CHECKING:
    from kdist.client.admin.users import Iterations
    from kdist.client.cluster import Cluster
    from kdist.zk.client import ZooKeeper

T = TypeVar("T")

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_DEFAULT = "SCRAM-SHA-512"
_ITERATIONS, _ITERATIONS_MAX = 4096, 16_384
_STDIN = "-"

name_argument = click.argument("name", metavar="NAME", callback=not_empty)
mechanism_option = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(_MECHANISMS),
    multiple=True,
    help="A mechanism that the credential is for; may be repeated.",
)
iterations_option = click.option(
    "--iterations",
    type=click.IntRange(_ITERATIONS, _ITERATIONS_MAX),
    help=f"How often the password is hashed; by default {_ITERATIONS} times, or as often as the one"
    " before.",
)
password_option = click.option(
    "--password-file",
    metavar="FILE",
    callback=not_empty,
    shell_complete=complete_files,
    help="A file whose first line is the password; - is standard input. By default the terminal is "
    "asked.",
)
# Not from the environment: it says who is asked, and no broker then checks the right to do it.
zookeeper_option = click.option(
    "--zookeeper",
    metavar="HOST:PORT[/PATH]",
    callback=not_empty,
    help="Write straight into the cluster's ZooKeeper, as before its first broker.",
)


class Credential(NamedTuple):
    """A row of the table."""

    user: str
    mechanism: str
    iterations: int


_CREDENTIALS: tuple[Field[Credential], ...] = (
    Field("USER", lambda each: each.user, "user"),
    Field("MECHANISM", lambda each: each.mechanism, "mechanism"),
    Field("ITERATIONS", lambda each: each.iterations, "iterations", is_number=True),
)


@click.group(cls=CommandGroup)
def users() -> None:
    """List, create and delete users who log in with a password by SCRAM."""


# Whom to ask

Send = Callable[[Any, Callable[[Any], Any]], Awaitable[Any]]
"""Has a request answered, and returns what the function makes of the response."""


def ask(clients: Clients, zookeeper: str | None, work: Callable[[Send], Awaitable[T]]) -> T:
    """Run `work` with the brokers, or with ZooKeeper, which gets what a broker would store."""
    if zookeeper is not None:
        return ask_zookeeper(zookeeper, lambda keeper: _in_zookeeper(keeper, work))

    async def by_brokers(cluster: Cluster) -> T:
        from kdist.client.admin.asking import ask_controller

        return await work(partial(ask_controller, cluster))

    return ask_cluster(clients, by_brokers)


async def _in_zookeeper(keeper: ZooKeeper, work: Callable[[Send], Awaitable[T]]) -> T:
    from kdist.broker.handlers.scram_users import ScramUsersHandler
    from kdist.broker.membership import make_starting_paths
    from kdist.broker.settings.stored import Owner, StoredSettings
    from kdist.protocol.describe_user_scram_credentials import DescribeUserScramCredentialsRequest

    async def reload(_: Owner) -> None:
        """No broker is here: those that run follow the notification."""

    await make_starting_paths(keeper)
    stored = StoredSettings(keeper, reload)
    handler = ScramUsersHandler(keeper, stored, lambda: True, lambda _listener: True)

    async def send(request: Any, read: Callable[[Any], Any]) -> Any:
        if isinstance(request, DescribeUserScramCredentialsRequest):
            return read(await handler.describe(request))
        return read(await handler.alter(request, "", "kdist users"))

    return await work(send)


async def _described(send: Send) -> dict[str, Iterations]:
    """All users; of those whose credentials cannot be read it says so."""
    from kdist.client.admin.outcomes import SomeFailed
    from kdist.client.admin.users import description, read_described

    try:
        found: dict[str, Iterations] = await send(description(None), read_described)
    except SomeFailed as error:
        click.echo(f"kdist: {show_error(error)}", err=True)
        found = error.done
    return found


async def _credentials_of(send: Send, name: str) -> Iterations:
    """`UserError` if there is no such user."""
    from kdist.client.cluster import did_you_mean

    found = await _described(send)
    if name not in found:
        raise UserError(f"there is no user {printable(name)}{did_you_mean(name, set(found))}")
    return found[name]


async def _set(send: Send, name: str, password: str, mechanisms: Iterations) -> None:
    """Set a password for each mechanism, with its iterations."""
    from kdist.client.admin.users import alteration, read_altered
    from kdist.runtime.process import system_rng

    await send(alteration({name: password}, mechanisms, system_rng()), read_altered)


def read_password(path: str | None, name: str) -> str:
    """The password, from a file, standard input or the terminal; never from the command line."""
    if path is None:
        if not sys.stdin.isatty():
            raise UserError("give the password by --password-file, as there is no terminal to ask")
        text: str = click.prompt(
            f"Password of {printable(name)}", hide_input=True, confirmation_prompt=True, err=True
        )
    else:
        text = sys.stdin.readline() if path == _STDIN else _read(path)
    password = text.split("\n")[0].rstrip("\r")
    if not password:
        raise UserError("the password is empty")
    return password


def _read(path: str) -> str:
    try:
        return readonly_files().read(path).decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8") from None


# The commands


@users.command("list")
@zookeeper_option
@client_options()
@json_option
def list_them(zookeeper: str | None, clients: Clients, as_json: bool) -> None:
    """List users and what their credentials are for; no password and no hash is shown."""
    found = ask(clients, zookeeper, _described)
    rows = [
        Credential(user, mechanism, iterations)
        for user, credentials in sorted(found.items())
        for mechanism, iterations in sorted(credentials.items())
    ]
    print_rows(_CREDENTIALS, rows, as_json=as_json, if_none="There are no users.")


@users.command()
@name_argument
@mechanism_option
@iterations_option
@password_option
@zookeeper_option
@client_options()
@json_option
def create(
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int | None,
    password_file: str | None,
    zookeeper: str | None,
    clients: Clients,
    as_json: bool,
) -> None:
    """Create a user with a password, for SCRAM-SHA-512 if nothing else is said.

    Brokers take it over TLS alone, unless their scram.alter.over.clear.enable says otherwise. The
    users of the brokers themselves must be there before the first of them starts: --zookeeper.

    \b
    Examples:
      kdist users create alice
      kdist users create broker --zookeeper zk1:2181 --password-file broker.password
    """
    password = read_password(password_file, name)
    wanted = dict.fromkeys(mechanisms or (_DEFAULT,), iterations or _ITERATIONS)

    async def work(send: Send) -> None:
        if name in await _described(send):
            raise UserError(f"there is a user {printable(name)}: `kdist users passwd` changes it")
        await _set(send, name, password, wanted)

    ask(clients, zookeeper, work)
    sentence = f"Created user {printable(name)} for {', '.join(wanted)}."
    say(sentence, as_json, user=name, mechanisms=list(wanted), created=True)


@users.command()
@name_argument
@mechanism_option
@iterations_option
@password_option
@zookeeper_option
@client_options()
@json_option
def passwd(
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int | None,
    password_file: str | None,
    zookeeper: str | None,
    clients: Clients,
    as_json: bool,
) -> None:
    """Change a user's password, for all mechanisms that it has a credential for.

    With --mechanism, for those alone, and they are added if the user lacks them. Connections that
    are open stay.
    """
    password = read_password(password_file, name)

    async def work(send: Send) -> Iterations:
        has = await _credentials_of(send, name)
        wanted = {
            each: iterations or min(has.get(each, _ITERATIONS), _ITERATIONS_MAX)
            for each in mechanisms or has
        }
        await _set(send, name, password, wanted)
        return wanted

    changed = ask(clients, zookeeper, work)
    sentence = f"Changed the password of user {printable(name)} for {', '.join(changed)}."
    say(sentence, as_json, user=name, mechanisms=list(changed), changed=True)


@users.command()
@name_argument
@mechanism_option
@yes_option
@zookeeper_option
@client_options()
@json_option
def delete(
    name: str,
    mechanisms: tuple[str, ...],
    yes: bool,
    zookeeper: str | None,
    clients: Clients,
    as_json: bool,
) -> None:
    """Delete a user's credentials: all, or those for some mechanisms. This cannot be undone.

    Brokers close the connections that were opened with them. ACLs and quotas of the user stay.
    """

    async def work(send: Send) -> list[str]:
        from kdist.client.admin.users import deletion, read_altered

        has = await _credentials_of(send, name)
        wanted = list(mechanisms or has)
        for each in wanted:
            if each not in has:
                raise UserError(f"user {printable(name)} has no credential for {each}")
        what = f"user {printable(name)} will not get in by {', '.join(wanted)} any more"
        await confirm(what, yes=yes)
        await send(deletion([name], wanted), read_altered)
        return wanted

    gone = ask(clients, zookeeper, work)
    sentence = f"Deleted the credentials of user {printable(name)} for {', '.join(gone)}."
    say(sentence, as_json, user=name, mechanisms=gone, deleted=True)


@users.command()
@name_argument
@yes_option
@click.option(
    "--zookeeper",
    required=True,
    metavar="HOST:PORT[/PATH]",
    callback=not_empty,
    help="The cluster's ZooKeeper, by which the brokers are told.",
)
@json_option
def disconnect(name: str, yes: bool, zookeeper: str, as_json: bool) -> None:
    """End all connections of a user, however it has logged in, on all brokers.

    It may connect again if it still can: take that away first. Deleting a credential of SCRAM ends
    the connections that were opened with it by itself.
    """

    async def work(keeper: ZooKeeper) -> None:
        from kdist.broker.disconnects import order_disconnect
        from kdist.model import Principal

        await confirm(f"all connections of user {printable(name)} will end", yes=yes)
        await order_disconnect(keeper, Principal("User", name))

    ask_zookeeper(zookeeper, work)
    say(f"Told all brokers to disconnect user {printable(name)}.", as_json, user=name)
