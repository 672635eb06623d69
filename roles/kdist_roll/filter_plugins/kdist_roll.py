"""The filters that say how a roll stands: who is there, whether it goes on, what went wrong (pure).

A host that stops answering takes all its brokers along, whoever's turn it was. It is known from
then on: neither the gate nor the end of the roll waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Values = Mapping[str, Any]

_REASONS_SHOWN = 3
_NO_NEWS = "non-zero return code"  # Ansible's, of every command that failed


def kdist_roll_outlook(
    hostvars: Mapping[str, Values], members: Iterable[str], host: str, failed_max: int
) -> dict[str, Any]:
    """How the roll stands for the next broker of `host`, one of `members`.

    {expected, down, goes_on, was_refused, waits_for_moves}.

    `expected` are brokers that have to be registered, `down` all others of the hosts of this run:
    of those that a --limit leaves out nothing is known. The roll goes on until more than
    `failed_max` have failed, of which a host that is gone is one.
    """
    values = {member: hostvars[member] for member in members}
    gone = {member for member, found in values.items() if found.get("kdist_roll_is_gone")}
    undone = [each for found in values.values() for each in found.get("kdist_roll_undone") or ()]
    kinds = [each["kind"] for each in undone]
    failed = {each["broker"] for each in undone if each["kind"] == "failed"}
    there = {
        broker
        for member in values
        if member not in gone
        for broker in values[member].get("kdist_roll_present") or ()
    }
    in_run = [found for found in values.values() if found.get("kdist_roll_run_id")]
    every = {each["id"] for found in in_run for each in found["kdist_brokers"]}
    bad = len(gone) + sum(kinds.count(kind) for kind in ("failed", "return", "stop"))
    mine = values[host].get("kdist_roll_undone") or ()
    is_cut_off = any(each["kind"] == "gone" for each in mine)
    return {
        "expected": sorted(there - failed),
        "down": sorted(every - (there - failed)),
        "goes_on": "lock" not in kinds and bad <= int(failed_max) and not is_cut_off,
        "was_refused": "gate" in kinds,
        "waits_for_moves": "moves" not in kinds,
    }


def kdist_roll_silent(
    hostvars: Mapping[str, Values],
    members: Iterable[str],
    expected: Iterable[int],
    registered: Iterable[int],
) -> list[str]:
    """The members that have expected brokers which are not registered."""
    away = set(expected) - set(registered)
    return [m for m in members if any(b["id"] in away for b in hostvars[m]["kdist_brokers"])]


def kdist_roll_said(result: Values) -> str:
    """What a failed task said, for people: of the gate's answer the first reasons."""
    try:
        reasons = json.loads(result.get("stdout", ""))["reasons"]
    except (ValueError, KeyError, TypeError):
        said = [result[name] for name in ("stdout", "stderr", "msg") if result.get(name)]
        return " ".join(said[:-1] if len(said) > 1 and said[-1] == _NO_NEWS else said)
    more = len(reasons) - _REASONS_SHOWN
    return "; ".join([*reasons[:_REASONS_SHOWN], *([f"and {more} more"] if more > 0 else [])])


class FilterModule:
    """What Ansible looks for in this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "kdist_roll_outlook": kdist_roll_outlook,
            "kdist_roll_said": kdist_roll_said,
            "kdist_roll_silent": kdist_roll_silent,
        }
