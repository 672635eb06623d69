"""Settings on a command line as NAME=VALUE, each once; and those of topics and brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kdist.cli.shared.options import not_empty
from kdist.errors import ApiError, Error, UserError

if TYPE_CHECKING:
    from kdist.client.cluster import Cluster

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def settings_option(name: str, what: str) -> Callable[[F], F]:
    """An option for `parse_settings`, passed as `texts`; `what` it gives begins its help."""
    help_text = f"{what}; may be repeated."
    return click.option(name, "texts", metavar="NAME=VALUE", multiple=True, help=help_text)


def unset_option(what: str) -> Callable[[F], F]:
    """`--unset NAME`, passed as `removed`; `what` it does begins its help."""
    help_text = f"{what}; may be repeated."
    return click.option(
        "--unset", "removed", metavar="NAME", multiple=True, callback=not_empty, help=help_text
    )


def parse_settings(texts: Iterable[str], option: str) -> dict[str, str]:
    """The settings by name; a `click.BadParameter` of `option` for a malformed or repeated one."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE.", param_hint=repr(option))
        if name in settings:
            raise click.BadParameter(f"{name} is given twice.", param_hint=repr(option))
        settings[name] = value.strip()
    return settings


def require_apart(settings: Iterable[str], removed: Iterable[str]) -> None:
    """`click.UsageError` for a setting that is both to be set and to be unset."""
    both = sorted(set(settings) & set(removed))
    if both:
        raise click.UsageError(f"{both[0]} is both set and unset.")


def pick(
    items: Iterable[T], names: Sequence[str], names_of: Callable[[T], Iterable[str]]
) -> list[T]:
    """The items that match `names`, in that order, or all if there are none; `*` matches any text.

    `UserError`, which suggests the nearest name, if one matches nothing.
    """
    from fnmatch import fnmatchcase

    items = list(items)
    picked: list[T] = []
    for name in names:
        found = [each for each in items if any(fnmatchcase(own, name) for own in names_of(each))]
        if not found:
            _require_all([name], (own for each in items for own in names_of(each)))
        picked += [each for each in found if each not in picked]
    return picked if names else items


async def own_settings(cluster: Cluster, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """Each topic's own settings, by topic; empty if the brokers are too old to tell."""
    from kdist.client.admin.settings import OF_TOPIC, describe_topic_configs

    try:
        found = await describe_topic_configs(cluster, topics)
    except ApiError as error:
        if error.error is Error.UNSUPPORTED_VERSION:
            return {}
        raise
    return {
        topic: {
            name: each.value or "" for name, each in settings.items() if each.source == OF_TOPIC
        }
        for topic, settings in found.items()
    }


async def require_known(cluster: Cluster, topic: str, names: Iterable[str]) -> None:
    """`UserError`, with the nearest name, for a name that is not a setting of topics.

    A broker would accept it: unsetting what is not set succeeds.
    """
    from kdist.client.admin.settings import describe_topic_configs

    wanted = list(names)
    if wanted:
        _require_all(wanted, (await describe_topic_configs(cluster, [topic]))[topic])


async def require_known_of_broker(
    cluster: Cluster, broker: int | None, names: Iterable[str]
) -> None:
    """As `require_known`, for a broker's settings; None stands for all brokers."""
    from kdist.client.admin.settings import describe_broker_configs, describe_default_broker_configs

    wanted = list(names)
    if not wanted:
        return
    found = await describe_broker_configs(cluster, None if broker is None else [broker])
    known = {name for settings in found.values() for name in settings}
    if broker is None:
        known |= (await describe_default_broker_configs(cluster)).keys()
    _require_all(wanted, known)


def _require_all(names: Iterable[str], known: Iterable[str]) -> None:
    from kdist.client.cluster import did_you_mean

    known = set(known)
    for name in names:
        if name not in known:
            raise UserError(f"there is no setting {name}{did_you_mean(name, known)}")
