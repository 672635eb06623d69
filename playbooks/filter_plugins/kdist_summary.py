"""The filters that say, at the end of a run, what was not done (pure).

A host that cannot be reached, a disk that is absent, a broker that does not start: none of them
stops the run for the others, so that all of them have to be told where nobody overlooks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Values = Mapping[str, Any]

# Sentences by disk, on those that did not answer: what was to be done with them is not done.
HUNG = ("kdist_broker_hung", "kdist_disks_hung")


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
    hung = {disk: said for name in HUNG for disk, said in (values.get(name) or {}).items()}
    yield from (f"{host}: {each}" for each in hung.values())
    for each in values.get("kdist_disks_never_used") or ():
        yield f"{host}: {each}, and has never had a broker"
    for each in values.get("kdist_disks_unknown") or ():
        there = f"{host}: there is a broker of {each}"
        yield f"{there}, which kdist_disks does not have: set it to retired"
    usable = values.get("kdist_disks_usable")  # not there if the disks were not looked at
    if usable is not None and not usable and values["kdist_brokers"]:
        yield f"{host}: none of its disks can be used"
    if topics := values.get("kdist_topics_undone"):
        yield topics
    yield from values.get("kdist_broker_undone") or ()
    if said := values.get("kdist_roll_reboot_undone"):
        yield said
    rolled = values.get("kdist_roll_undone") or ()
    yield from (each["why"] for each in rolled)
    if values.get("kdist_roll_is_gone") and not rolled:  # it died in another's turn
        yield f"{host}: it stopped answering during the roll"


def seen_at(host: str, values: Values) -> Iterator[str]:
    told = {
        *(values.get("kdist_disks_never_used") or ()),
        *(values.get("kdist_disks_hung") or {}).values(),
    }
    problems = values.get("kdist_disks_problems") or ()
    yield from (f"{host}: {each}" for each in problems if each not in told)
    for each in values.get("kdist_roll_deaf") or ():
        yield f"{host}: the Alertmanager of {each} has not taken the silence of planned work"
    for step in values.get("kdist_roll_left") or ():
        yield f"{host}: broker {step['id']} is left down: {step['why']}"
    yield from (f"{host}: {each}" for each in values.get("kdist_zookeeper_notices") or ())
    yield from (f"{host}: {each}" for each in values.get("kdist_firewall_notices") or ())


class FilterModule:
    """What Ansible looks for in this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"kdist_step": kdist_step, "kdist_summary": kdist_summary}
