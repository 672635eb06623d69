"""Judges what a topic holds after `fire_load`: every acknowledged record, once, in order."""

from __future__ import annotations

from tests.integration.broker_processes import settled
from tests.integration.fire_load import PARTITIONS, Group, Place, Writing, read_topic


def holds(found: dict[Place, bytes], acknowledged: dict[Place, bytes]) -> None:
    """Each acknowledged record is where its producer was told."""
    wrong = [place for place, value in acknowledged.items() if found.get(place) != value]
    assert wrong == [], f"{len(wrong)} acknowledged records are lost or replaced"


def is_dense(found: dict[Place, bytes]) -> None:
    """Offsets are 0, 1, 2, ... in each partition."""
    for partition in range(PARTITIONS):
        offsets = sorted(offset for p, offset in found if p == partition)
        assert offsets == list(range(len(offsets)))


def is_once_and_in_order(found: dict[Place, bytes], writing: Writing) -> None:
    """Each partition holds exactly what was produced to it, in that order."""
    for partition in range(PARTITIONS):
        values = [found[place] for place in sorted(found) if place[0] == partition]
        assert values == writing.produced[partition]


def group_saw_all(group: Group, writings: list[Writing]) -> None:
    """The group reads on to the last acknowledged record, and then leaves."""
    try:
        for writing in writings:
            seen, told = group.seen[writing.topic], writing.acknowledged.values
            settled(lambda s=seen, t=told: t.keys() <= s.keys())
            assert all(seen[place] == value for place, value in told.items())
    finally:
        group.stop()


def judge(writing: Writing, group: Group, addresses: str) -> None:
    """Stop both, and compare what is there with what was promised."""
    writing.stop()
    group_saw_all(group, [writing])
    assert (writing.acknowledged.failed, writing.fatal, group.refused) == ([], [], [])
    found = read_topic(addresses, writing.topic, {})
    holds(found, writing.acknowledged.values)
    is_dense(found)
    is_once_and_in_order(found, writing)
