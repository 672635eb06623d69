"""Which release a rollback goes back to, and on each host to which build of it (pure).

A host has a current release and the one before, `previous`, which stays where the host has gone
back to it. So in whatever state a run that died has left the hosts, the next one finds the same:
hosts whose current release others have as their previous one have not been upgraded yet, or have
gone back, and say nothing about where to go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kdist.errors import UserError


class Host(NamedTuple):
    """A host's releases, as `0.1.0-1a2b3c4d5e6f`; "" for none. Hosts with brokers decide."""

    name: str
    current: str
    previous: str
    has_brokers: bool


class Rollback(NamedTuple):
    """The version to go back to, and each host's build of it; "" where it had none."""

    version: str
    releases: Mapping[str, str]


def plan(hosts: Sequence[Host], named: str | None = None) -> Rollback:
    """Where to go back to, or to the version `named`. `UserError` if that is not one version."""
    builds = _builds_before([each for each in hosts if each.has_brokers])
    versions = sorted({version_of(build) for build in builds})
    if named is not None:
        versions, builds = [named], {build for build in builds if version_of(build) == named}
    if not versions:
        raise UserError(f"no host of the brokers has a previous release: {_ADVICE}")
    if len(versions) > 1:
        raise UserError(f"the hosts have different previous releases, {versions}: {_ADVICE}")
    (version,) = versions
    return Rollback(version, {each.name: _build_for(each, version, builds) for each in hosts})


_ADVICE = "name one with -e kdist_rollback_to=VERSION"


def _builds_before(hosts: Sequence[Host]) -> set[str]:
    """The previous releases of those hosts that were upgraded last."""
    left = {each.previous for each in hosts if each.previous != each.current}
    upgraded = [each.previous for each in hosts if each.current not in left]
    return set(filter(None, upgraded or (each.previous for each in hosts)))


def _build_for(host: Host, version: str, builds: Iterable[str]) -> str:
    had = (host.current, host.previous)
    known = [build for build in had if build in builds]
    named = [build for build in reversed(had) if build and version_of(build) == version]
    return next(iter(known + named), "")


def version_of(release: str) -> str:
    """`0.1.0` of `0.1.0-1a2b3c4d5e6f`."""
    return release.rpartition("-")[0]


def read_hosts(rows: Iterable[Mapping[str, Any]]) -> list[Host]:
    """Hosts as a playbook found them. `UserError` if a row lacks something."""
    try:
        return [
            Host(str(r["host"]), str(r["current"]), str(r["previous"]), bool(r["has_brokers"]))
            for r in rows
        ]
    except (KeyError, TypeError) as error:
        raise UserError(f"this does not describe hosts: {error!r}") from None
