"""The filters that say, at the end of a run, what was not done (pure).

A host that cannot be reached, a disk that is absent, a broker that does not start: none of them
stops the run for the others, so that all of them have to be told where nobody overlooks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Values = Mapping[str, Any]


def kdist_step(step: Values) -> str:
    """A step of `kdist gate plan` as a sentence."""
    return f"{step['act']} broker {step['id']} on {step['host']}: {step['why']}"


def kdist_summary(
    hostvars: Mapping[str, Values], hosts: Iterable[str], here: Iterable[str]
) -> dict[str, list[str]]:
    """{undone, notices}: what the run has failed to do, and what waits for somebody to see to it.

    `here` are those of the hosts that have not dropped out of the run.
    """
    present = set(here)
    undone: list[str] = []
    notices: list[str] = []
    for host in hosts:
        if host not in present:
            undone.append(f"{host}: it failed or could not be reached, and the rest was not done")
        undone += list(of_host(host, hostvars[host]))
        notices += list(seen_at(host, hostvars[host]))
    return {"undone": undone, "notices": notices}


def of_host(host: str, values: Values) -> Iterator[str]:
    yield from values.get("kdist_broker_undone") or ()
    rolled = values.get("kdist_roll_undone") or ()
    yield from (each["why"] for each in rolled)
    if values.get("kdist_roll_is_gone") and not rolled:  # it died in another's turn
        yield f"{host}: it stopped answering during the roll"


def seen_at(host: str, values: Values) -> Iterator[str]:
    yield from (f"{host}: {each}" for each in values.get("kdist_disks_problems") or ())
    for step in values.get("kdist_roll_left") or ():
        yield f"{host}: broker {step['id']} is left down: {step['why']}"
    yield from (f"{host}: {each}" for each in values.get("kdist_zookeeper_notices") or ())
    yield from (f"{host}: {each}" for each in values.get("kdist_firewall_notices") or ())


class FilterModule:
    """What Ansible looks for in this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"kdist_step": kdist_step, "kdist_summary": kdist_summary}
