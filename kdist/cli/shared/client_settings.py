"""What a user says about a command's clients, and which place wins if several say it.

    --broker | -X NAME=VALUE | --config FILE | --profile NAME | KDIST_BROKER | KDIST_PROFILE or the
    default profile | the command's defaults | the client's

Each place is a `Layer`; the first that names a setting has it. A profile is a file of settings,
`~/.config/kdist/NAME.properties`. A file may serve every command, so it may name settings of any
client; a name that no client knows is a mistake everywhere.

The client is imported only if something is set: that takes longer than a command's start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from kdist.cli.shared.files import complete_files, read_settings_file, readonly_files
from kdist.cli.shared.options import not_empty
from kdist.cli.shared.settings import parse_settings
from kdist.errors import UserError

if TYPE_CHECKING:
    from kdist.client.admin.client_settings import AdminSettings
    from kdist.config.declare import Settings

F = TypeVar("F", bound=Callable[..., Any])
Kind = Literal["admin", "producer", "consumer"]

DEFAULT_BROKER = "127.0.0.1:9092"
DEFAULT_PROFILE = "default"

_ENDING = ".properties"
_NAMED = "kdist.profile"  # of click's `meta`: the name given before the command's
_DELIVERY_TIMEOUT_MS = 30_000
_SERVERS = "bootstrap_servers"
_PLACES = (_SERVERS, "zk_connect")  # two ways to find the brokers: who gives one means that
_SYNONYMS = {"broker_list": _SERVERS}
_NONE: Mapping[str, Any] = {}
_TEXTS = {"producer": ("partitioner",)}  # settings that may be code, but text as well


class Given(NamedTuple):
    """A setting as a user gave it: the name as written, its text, and where that stands."""

    name: str
    text: str
    where: str


class Layer(NamedTuple):
    """The settings that one place gives, by attribute: the name with underscores."""

    given: Mapping[str, Given]
    is_file: bool = True


class Clients:
    """The settings of a command's clients. `kinds` are the kinds that the command opens.

    `layers` come in order, the first wins.
    """

    def __init__(self, layers: Iterable[Layer], kinds: Sequence[Kind] = ("admin",)) -> None:
        self._layers = [layer for layer in layers if layer.given]
        self._kinds = kinds

    @classmethod
    def at(cls, broker: str) -> Clients:
        """With a broker's address and nothing else."""
        return cls([_broker_layer(broker)])

    @classmethod
    def in_file(cls, path: str) -> Clients:
        """With a file's settings and nothing else; `UserError` for the first that is wrong."""
        found = cls([_file_layer(path)])
        found.check()
        return found

    def check(self) -> None:
        """`UserError` for the first setting that no client has, or with a wrong value.

        `click.BadParameter` if it was given by -X: there it must be for a client of this command.
        """
        for layer in self._layers:
            for attribute, given in layer.given.items():
                if attribute == _SERVERS and not given.where:
                    continue  # --broker, which has a check of its own
                try:
                    self._check(attribute, given, is_file=layer.is_file)
                except UserError as error:
                    if layer.is_file:
                        raise UserError(f"{error} ({given.where})") from None
                    raise _wrong(str(error)) from None

    def _check(self, attribute: str, given: Given, *, is_file: bool) -> None:
        from kdist.client.cluster import did_you_mean, parse_addresses
        from kdist.client.settings import settings_from

        kinds = [kind for kind in _names() if attribute in _names()[kind]]
        if not kinds:
            names = {name for each in _names().values() for name in each}
            if "." in given.name:
                names = {name.replace("_", ".") for name in names}
            nearest = did_you_mean(given.name, names)
            raise UserError(f"no client has a setting {given.name}{nearest}")
        if not is_file and not set(kinds) & set(self._kinds):
            raise UserError(f"{given.name} is a {kinds[0]}'s setting, and this command has none")
        if attribute == _SERVERS:
            parse_addresses(given.text)
            return
        row = next((row for row in _table(kinds[0]).TABLE if row.attribute == attribute), None)
        if not is_file and row is not None and row.is_secret:
            why = "whoever lists this host's processes would see it"
            raise UserError(f"{given.name} belongs in a file, --config: {why}")
        for kind in kinds:
            if attribute in _TEXTS.get(kind, ()):
                from kdist.client.producer.settings import read_settings

                read_settings({attribute: given.text})
            else:
                settings_from(_table(kind), {given.name: given.text}, f"a {kind}")

    def settings(
        self, kind: Kind, defaults: Mapping[str, Any] = _NONE, **options: Any
    ) -> dict[str, Any]:
        """What to open a client of this kind with.

        `options` are the command's own, None if not given; `defaults` are for what is said nowhere.
        """
        found = self.given(kind, **options)
        if not any(name in found for name in _PLACES):
            found[_SERVERS] = DEFAULT_BROKER
        return {**defaults, **found}

    def given(self, kind: Kind, **options: Any) -> dict[str, Any]:
        """What the options and the places say alone, also if that names no brokers."""
        found = {name: value for name, value in options.items() if value is not None}
        for layer in self._layers:
            is_placed = any(name in found for name in _PLACES)
            for attribute, given in layer.given.items():
                if attribute in _PLACES:
                    if not is_placed:
                        found[attribute] = given.text
                elif attribute in _names()[kind]:
                    found.setdefault(attribute, given.text)
        return found

    def producer(self, defaults: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """`settings` of a producer, and a person waits: for less long than by the client's default.

        Unless its user says how long a request may take, with which that might not fit.
        """
        found = self.settings("producer", defaults, **options)
        if "request_timeout_ms" not in found:
            found.setdefault("delivery_timeout_ms", _DELIVERY_TIMEOUT_MS)
        return found

    def admin(self, client_id: str) -> AdminSettings:
        """Those of the command's own connections."""
        from kdist.client.admin.client_settings import read_settings

        return read_settings(self.settings("admin", {"client_id": client_id}))

    @property
    def only_broker(self) -> str | None:
        """The brokers' addresses, if nothing else is given: else None."""
        given = [each for layer in self._layers for each in layer.given.values()]
        if any(each.where for each in given):
            return None
        return given[0].text if given else DEFAULT_BROKER


def client_options(*kinds: Kind, takes_config: bool = True) -> Callable[[F], F]:
    """`--broker`, `-X`, `--config` and `--profile`; the command gets `clients`.

    `kinds` are the clients it opens besides an admin client. Where `--config` means
    something else, only the name of Kafka's tools, `--command-config`, stands for the file.
    """
    described = click.option(
        *(["--config"] if takes_config else []),
        "--command-config",
        "client_file",
        metavar="FILE",
        callback=not_empty,
        shell_complete=complete_files,
        help="A file of settings for the clients, .properties; settings of other clients may be "
        "in it.",
    )

    def decorate(function: F) -> F:
        @wraps(function)
        def with_clients(**named: Any) -> Any:
            ctx = click.get_current_context()
            clients = clients_of(ctx, ("admin", *kinds))
            clients.check()
            for name in ("broker", "settings_given", "client_file", "profile"):
                del named[name]
            return function(clients=clients, **named)

        wrapped: Any = with_clients
        for option in (_profile_option, described, _setting_option, _broker_option):
            wrapped = option(wrapped)
        decorated: F = wrapped
        return decorated

    return decorate


def clients_of(ctx: click.Context, kinds: Sequence[Kind] = ("admin",)) -> Clients:
    """The clients of a command, of which `ctx` has the options; also while completing."""
    broker = ctx.params.get("broker")
    source = ctx.get_parameter_source("broker")
    layers = []
    if source is ParameterSource.COMMANDLINE:
        layers.append(_broker_layer(broker))
    layers.append(_typed_layer(ctx.params.get("settings_given") or ()))
    if path := ctx.params.get("client_file"):
        layers.append(_file_layer(path))
    named = ctx.params.get("profile") or ctx.meta.get(_NAMED)
    if named:
        layers.append(_file_layer(_profile_path(named)))
    if source is ParameterSource.ENVIRONMENT:
        layers.append(_broker_layer(broker))
    if not named:
        layers += _unnamed_profile()
    return Clients(layers, kinds)


def _broker_layer(broker: Any) -> Layer:
    return Layer({_SERVERS: Given("--broker", broker, "")}, is_file=False)


def _typed_layer(texts: Iterable[str]) -> Layer:
    rows = [Given(name, text, "-X") for name, text in parse_settings(texts, "-X").items()]
    try:
        return Layer(_by_attribute(rows), is_file=False)
    except UserError as error:
        raise _wrong(str(error)) from None


def _file_layer(path: str) -> Layer:
    from kdist.config.texts import parse_properties

    found = parse_properties(read_settings_file(path), path)
    if found.faults:
        raise UserError("\n".join(found.faults))
    rows = [Given(name, each.text, each.where) for name, each in found.given.items()]
    try:
        return Layer(_by_attribute(rows))
    except UserError as error:
        raise UserError(f"{error} ({path})") from None


def _by_attribute(rows: Iterable[Given]) -> dict[str, Given]:
    """`UserError` for a setting given twice, as `linger.ms` and `linger_ms`."""
    found: dict[str, Given] = {}
    for each in rows:
        attribute = each.name.replace(".", "_")
        attribute = _SYNONYMS.get(attribute, attribute)
        if attribute in found:
            both = f"{found[attribute].name} and {each.name}"
            raise UserError(f"{both} are one setting: keep one")
        found[attribute] = each
    return found


def _wrong(sentence: str) -> click.BadParameter:
    end = "" if sentence.endswith("?") else "."
    return click.BadParameter(sentence + end, param_hint="'-X'")


# Profiles


def profiles_directory() -> str:
    """Where profiles are: `kdist` in the XDG directory for configuration."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # as the specification has it
        base = os.path.expanduser("~/.config")
    return f"{base}/kdist"


def _profile_path(name: str) -> str:
    """The file of a profile; `UserError`, with the nearest name, if there is none."""
    path = f"{profiles_directory()}/{name}{_ENDING}"
    if "/" in name or not readonly_files().exists(path):
        from kdist.client.cluster import did_you_mean

        nearest = did_you_mean(name, profile_names())
        raise UserError(f"there is no profile {name}: {path} does not exist{nearest}")
    return path


def _unnamed_profile() -> list[Layer]:
    """The profile of the environment, or the default one if there is one."""
    if name := os.environ.get("KDIST_PROFILE"):
        return [_file_layer(_profile_path(name))]
    path = f"{profiles_directory()}/{DEFAULT_PROFILE}{_ENDING}"
    return [_file_layer(path)] if readonly_files().exists(path) else []


def profile_names() -> list[str]:
    """The profiles that there are."""
    files, directory = readonly_files(), profiles_directory()
    names = sorted(files.list(directory)) if files.exists(directory) else []
    return [name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING)]


def _complete_profiles(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in profile_names() if name.startswith(begun)]


def _note_profile(ctx: click.Context, parameter: click.Parameter, name: str | None) -> None:
    ctx.meta[_NAMED] = not_empty(ctx, parameter, name)
    if name is not None and not ctx.resilient_parsing:
        _profile_path(name)  # a mistake, whether or not the command asks a cluster


PROFILE_HELP = f"A file of settings for the clients: NAME{_ENDING} in ~/.config/kdist."

program_profile_option = click.option(
    "--profile",
    metavar="NAME",
    shell_complete=_complete_profiles,
    expose_value=False,
    callback=_note_profile,
    help=PROFILE_HELP,
)
"""`--profile` before the name of the command."""

_profile_option = click.option(
    "--profile",
    metavar="NAME",
    callback=not_empty,
    shell_complete=_complete_profiles,
    help=f"{PROFILE_HELP} By default KDIST_PROFILE, else {DEFAULT_PROFILE}, if there is one.",
)


# The other options


def _complete_settings(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    names = sorted({name.replace("_", ".") for each in _names().values() for name in each})
    return [CompletionItem(f"{name}=") for name in names if name.startswith(begun)]


_setting_option = click.option(
    "-X",
    "settings_given",
    metavar="NAME=VALUE",
    multiple=True,
    shell_complete=_complete_settings,
    help="A setting of this command's clients, such as request.timeout.ms=5000; may be repeated.",
)


def _checked_addresses(ctx: click.Context, option: click.Parameter, value: str) -> str:
    from kdist.client.cluster import parse_addresses

    try:
        if not ctx.resilient_parsing:  # completion does not need it, and is to be fast
            parse_addresses(value)
    except UserError as error:
        raise click.BadParameter(f"{error}.", param=option) from None
    return value


_broker_option = click.option(
    "--broker",
    "--bootstrap-server",  # the name in Kafka's tools; the next is its clients' name
    "--bootstrap-servers",
    "broker",
    default=DEFAULT_BROKER,
    envvar="KDIST_BROKER",
    metavar="HOST:PORT",
    show_default=True,
    show_envvar=True,
    callback=_checked_addresses,
    help="A broker of the cluster, or several separated by commas.",
)


def _table(kind: Kind) -> type[Settings]:
    if kind == "producer":
        from kdist.client.producer.settings import ProducerSettings

        return ProducerSettings
    if kind == "consumer":
        from kdist.client.consumer.settings import ConsumerSettings

        return ConsumerSettings
    from kdist.client.admin.client_settings import AdminSettings

    return AdminSettings


def _names() -> dict[Kind, list[str]]:
    """The attributes of each kind of client."""
    kinds: tuple[Kind, ...] = ("admin", "producer", "consumer")
    return {
        kind: [*(row.attribute for row in _table(kind).TABLE), *_TEXTS.get(kind, ())]
        for kind in kinds
    }
