"""How far a plan has come, by what the cluster says, and what may begin next (pure).

status      replicas now       a move of it under way
done        as after           none
moving      any                to the ones after
waiting     as before          none
going back  any                to the ones before: it was cancelled, or the way back is carried out
elsewhere   any others         none, or to others: somebody else has moved it meanwhile
gone        there is no such partition any more
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from kdist.client.admin.reassignments import Reassignment
from kdist.model import TopicPartition
from kdist.ops.reassignment.plan import Move
from kdist.replication.throttles import EVERYTHING

_LIST_BYTES_MAX = 8000  # of each side; all of a topic's settings may have 32767


class Status(enum.Enum):
    """See the module."""

    DONE = "done"
    MOVING = "moving"
    WAITING = "waiting"
    GOING_BACK = "going back"
    ELSEWHERE = "elsewhere"
    GONE = "gone"


def status_of(
    move: Move, replicas: tuple[int, ...] | None, under_way: Reassignment | None
) -> Status:
    """The status of a move; `replicas` is None if the partition is gone.

    Replicas are told by a broker, which may be behind the controller, that knows what is under way.
    If they are as during the move and none is, it has just ended: it counts as moving until that
    broker knows better. To drop the last replicas looks the same before as during it; then it
    counts as waiting, as a move that is done may be begun again.
    """
    if replicas is None:
        return Status.GONE
    if under_way is not None:
        known = {move.before: Status.GOING_BACK, move.after: Status.MOVING}
        return known.get(under_way.target, Status.ELSEWHERE)
    known = {move.before: Status.WAITING, move.after: Status.DONE}
    if replicas in known:
        return known[replicas]
    target, others = replicas[: len(move.after)], replicas[len(move.after) :]
    is_during = target == move.after and {*others} == {*move.before} - {*move.after}
    return Status.MOVING if is_during else Status.ELSEWHERE


def next_moves(
    statuses: Mapping[Move, Status], at_once: int, stuck: Collection[Move] = ()
) -> list[Move]:
    """The moves that may begin, with at most `at_once` copies to or from any broker.

    The largest first. One that copies nothing always may. The `stuck`, which are under way and wait
    for a dead broker, do not count.
    """
    busy: Counter[int] = Counter()
    for each, status in statuses.items():
        if status is Status.MOVING and each not in stuck:
            busy.update(_busied(each))
    to_begin = (Status.WAITING, Status.GOING_BACK)
    waiting = (each for each, status in statuses.items() if status in to_begin)
    chosen = []
    for each in sorted(waiting, key=lambda move: -move.moved_bytes):
        busied = _busied(each)
        if all(busy[broker] < at_once for broker in busied):
            busy.update(busied)
            chosen.append(each)
    return chosen


def missed_brokers(move: Move, alive: Collection[int], *, is_led: bool) -> set[int]:
    """The brokers without which a move under way cannot end: a dead one that is to have a replica,
    and where nobody leads, which is whom to copy from, those that had one.
    """
    needed = {*move.after} if is_led else {*move.after, *move.before}
    return needed - {*alive}


def _busied(move: Move) -> Sequence[int]:
    return (move.before[0], *move.added) if move.added else ()


def throttled_replicas(moves: Sequence[Move]) -> dict[str, tuple[str, str]]:
    """By topic, which replicas are throttled as leaders and as followers, as settings have it.

    All of a topic are where they are too many to be listed: a topic's settings have a limit.
    """
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for each in moves:
        if each.added:
            topic, partition = each.partition
            leaders.setdefault(topic, []).extend(f"{partition}:{one}" for one in each.before)
            followers.setdefault(topic, []).extend(f"{partition}:{one}" for one in each.added)
    return {each: (_listed(leaders[each]), _listed(followers[each])) for each in leaders}


def _listed(replicas: Sequence[str]) -> str:
    text = ",".join(replicas)
    return EVERYTHING if len(text) > _LIST_BYTES_MAX else text


def brokers_of(moves: Iterable[Move]) -> list[int]:
    """The brokers that send or get copies."""
    copying = (each for each in moves if each.added)
    return sorted({broker for each in copying for broker in (*each.before, *each.added)})


Statuses = dict[Move, Status]
"""How far each move of a plan has come."""


def statuses_of(
    moves: Sequence[Move],
    replicas: Mapping[TopicPartition, tuple[int, ...]],
    under_way: Mapping[TopicPartition, Reassignment],
) -> Statuses:
    """The status of each move."""
    return {
        each: status_of(each, replicas.get(each.partition), under_way.get(each.partition))
        for each in moves
    }
