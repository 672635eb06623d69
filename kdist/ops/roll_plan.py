"""The plan of a roll: what is to be done to each broker of a site, and why (pure).

What a broker runs is what its process says on `/health`: the digests of its release, its settings
and its unit. Files say what it will run after the next start, and are not asked. That a broker has
to restart is a state and no event, so that a roll that died is resumed by planning again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kdist.errors import UserError

# Statuses after which a broker stays down until somebody has looked at its disk.
STAYS_DOWN = {
    74: "its disk failed",
    78: "its disk is missing, or another broker's",
}
_COMPARED = ("release", "settings", "unit")
_STOPPED = ("inactive", "failed")
_CRASHES = "auto-restart"


class Act(enum.Enum):
    """What is done to a broker."""

    KEEP = "keep"  # it runs what is wanted
    START = "start"  # nothing is taken from the cluster by it
    RESTART = "restart"  # once the gate allows it
    LEAVE = "leave"  # and tell of it


class Broker(NamedTuple):
    """A broker as it was found: its unit's state in systemd, and what its process says.

    `said` is None if `/health` did not answer. `wanted` has the digests to compare. systemd knows
    the start to the second.
    """

    id: int
    host: str
    instance: str
    wanted: Mapping[str, str]
    said: Mapping[str, Any] | None
    state: str
    sub_state: str
    exit_status: int
    started_ms: int
    has_disk: bool
    disk_hangs: bool = False


class Step(NamedTuple):
    """What is done to a broker, and why."""

    broker: Broker
    act: Act
    why: str


def review(broker: Broker, since_ms: int | None) -> Step:
    """The step for one broker; with `since_ms`, all that started before are restarted."""
    state = broker.state
    if broker.disk_hangs:
        return Step(broker, Act.LEAVE, "its disk does not answer")
    if not broker.has_disk:
        return Step(broker, Act.LEAVE, "its disk is not mounted")
    if state in _STOPPED and broker.exit_status in STAYS_DOWN:
        cause = STAYS_DOWN[broker.exit_status]
        return Step(broker, Act.LEAVE, f"it ended with status {broker.exit_status}: {cause}")
    if state in _STOPPED or broker.sub_state == _CRASHES:
        return Step(broker, Act.START, f"it is {broker.sub_state or state}")
    if broker.said is None:
        return Step(broker, Act.RESTART, "it does not say what it runs")
    differs = [name for name in _COMPARED if broker.said.get(name, "") != broker.wanted[name]]
    if differs:
        return Step(broker, Act.RESTART, f"it runs another {' and '.join(differs)} than is wanted")
    if since_ms is not None and broker.started_ms // 1000 < since_ms // 1000:
        return Step(broker, Act.RESTART, "every broker is to restart")
    return Step(broker, Act.KEEP, "it runs what is wanted")


def plan(brokers: Iterable[Broker], since_ms: int | None) -> list[Step]:
    """A step for each broker, in the order in which they are taken: by host, a controller last.

    A restart of the controller moves its work to another broker, so it is done once, at the end.
    """
    steps = [review(broker, since_ms) for broker in brokers]
    late = {step.broker.host for step in steps if _leads(step.broker)}
    hosts = list(dict.fromkeys(step.broker.host for step in steps))
    order = [host for host in hosts if host not in late] + [host for host in hosts if host in late]
    return sorted(steps, key=lambda each: (order.index(each.broker.host), _leads(each.broker)))


def _leads(broker: Broker) -> bool:
    return bool(broker.said and broker.said.get("controller"))


def read_brokers(rows: Sequence[Mapping[str, Any]]) -> list[Broker]:
    """Brokers as a playbook found them. `UserError` if a row lacks something."""
    try:
        return [_read(row) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"this does not describe brokers: {error!r}") from None


def _read(row: Mapping[str, Any]) -> Broker:
    """A row; `unit` is what `systemctl show` printed, `name=value` lines."""
    unit = dict(line.split("=", 1) for line in row["unit"].splitlines() if "=" in line)
    wanted = {name: str(row["wanted"][name]) for name in _COMPARED}
    return Broker(
        id=int(row["id"]),
        host=str(row["host"]),
        instance=str(row["instance"]),
        wanted=wanted,
        said=row["said"] or None,
        state=unit["ActiveState"],
        sub_state=unit["SubState"],
        exit_status=int(unit["ExecMainStatus"]),
        started_ms=1000 * int(unit["ActiveEnterTimestamp"].lstrip("@") or 0),
        has_disk=bool(row["has_disk"]),
        disk_hangs=bool(row.get("disk_hangs")),
    )
