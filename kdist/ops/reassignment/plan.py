"""Plans moves from a site and a wish, what goes where and what that costs; a plan's file (pure).

    1  who has too many replicas gives up one on a broker to be emptied, or that is down, else one
       whose going leaves the most racks, then not the preferred leader, then the one on the fullest
       disk
    2  a replica on a broker to be emptied, be it alive or not, is put on the emptiest disk that may
       have it
    3  who has too few gets more, in the same way
    4  disks are leveled (`balance.py`), if that is wished
    5  preferred leaders are spread (`balance.py`), if that is wished

A replica that takes another's place takes its rank: so the preferred leader stays unless it goes;
of several that come then, the one that leads the fewest partitions is preferred.
Other replicas on brokers that are down stay, as these may only be restarting; so does all of a
partition that nobody leads.
A move makes the new copies first and drops the old ones last, so racks are never fewer on the way.

A file has a plan as JSON that Kafka's kafka-reassign-partitions takes too, and ignores two fields:

    {"version": 1, "partitions": [
      {"topic": "clicks", "partition": 0, "replicas": [1, 2, 3],
       "kdist_before": [1, 2, 4], "kdist_size_bytes": 1073741824}]}

They are what the way back, and progress, are known by.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from kdist.config.texts import NameTwice, parse_json
from kdist.errors import UserError
from kdist.model import TopicPartition, topic_name_fault
from kdist.ops.reassignment.balance import Board, spread_leaders
from kdist.ops.reassignment.site import Placed, Share, Site, rack_count, shares

_VERSION = 1
_BEFORE, _SIZE = "kdist_before", "kdist_size_bytes"


class Wish(NamedTuple):
    """What is asked for: brokers to empty, replication factors by topic, disks and leaders leveled.

    `topics`: nothing but these is moved; None: anything may be.
    """

    emptied: frozenset[int] = frozenset()
    factors: Mapping[str, int] = {}
    levels_disks: bool = True
    spreads_leaders: bool = True
    topics: frozenset[str] | None = None


class Move(NamedTuple):
    """A partition's replicas before and after, the preferred leader first."""

    partition: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    size_bytes: int

    @property
    def added(self) -> tuple[int, ...]:
        return tuple(each for each in self.after if each not in self.before)

    @property
    def moved_bytes(self) -> int:
        """What is copied over the network."""
        return len(self.added) * self.size_bytes


class Plan(NamedTuple):
    """Moves, what each broker has before and after them, and what each sends and gets for it.

    `leaderless` would move, and cannot.
    """

    moves: tuple[Move, ...]
    before: Mapping[int, Share]
    after: Mapping[int, Share]
    sent: Mapping[int, int]
    received: Mapping[int, int]
    leaderless: tuple[TopicPartition, ...] = ()

    @property
    def moved_bytes(self) -> int:
        """What is copied over the network."""
        return sum(self.received.values())

    def seconds(self, bytes_per_second: float) -> float:
        """How long it takes if no broker sends or gets more than this for moves."""
        return max((*self.sent.values(), *self.received.values()), default=0) / bytes_per_second


def plan_moves(site: Site, wish: Wish) -> Plan:
    """The moves that a wish takes. `UserError` if it cannot be had, with the first reason."""
    targets = {*site.disks} - wish.emptied
    if not targets:
        raise UserError("all brokers are to be emptied, so that none is left to take a replica")
    board = Board(site.disks, targets)
    before: list[Placed] = []
    fixed: list[Placed] = []
    leaderless = []
    for placed in site.partitions:
        is_fixed = wish.topics is not None and placed.partition.topic not in wish.topics
        if not (is_fixed or placed.is_led):
            is_fixed = True
            if _is_due(placed, wish):
                leaderless.append(placed.partition)
        board.add(placed, is_fixed=is_fixed)
        (fixed if is_fixed else before).append(placed)
    # The largest first, while there is room to choose from.
    leads = Counter(each.replicas[0] for each in site.partitions)
    for number in sorted(range(len(before)), key=lambda at: (-before[at].size_bytes, at)):
        _make_due(board, number, wish, leads)
    if wish.levels_disks:
        board.level()
    after = board.placed
    if wish.spreads_leaders:
        after = spread_leaders(after, fixed, targets)
    plan = _with_costs(site, before, after, fixed)._replace(leaderless=tuple(leaderless))
    _check_room(site, plan)
    return plan


def _is_due(placed: Placed, wish: Wish) -> bool:
    """Whether a partition has to change for what is asked for."""
    count = len(placed.replicas)
    wanted = wish.factors.get(placed.partition.topic, count)
    return wanted != count or not wish.emptied.isdisjoint(placed.replicas)


def _check_room(site: Site, plan: Plan) -> None:
    for broker in sorted(plan.received):
        if plan.before.get(broker, Share()).bytes >= plan.after[broker].bytes:
            continue
        full = plan.after[broker].bytes / max(site.disks[broker].room_bytes, 1)
        if full > 1:
            raise UserError(
                f"broker {broker}'s disk would be {full:.0%} full: there is too little room"
            )


def _make_due(board: Board, number: int, wish: Wish, leads: Counter[int]) -> None:
    """Give a partition as many replicas as are wished, none of them on a broker to be emptied.

    `leads`: how many partitions each broker leads, kept as they change.
    """
    partition, before, *_ = board.placed[number]
    replicas = before
    wanted = wish.factors.get(partition.topic, len(replicas))
    while len(replicas) > wanted:
        gone = _least_needed(board, replicas)
        replicas = tuple(each for each in replicas if each != gone)
    # Where a broker was that is down is not known: in a rack of its own, if that can be had again.
    unknown = sum(each not in board.disks for each in replicas)
    racks = rack_count(board.disks, replicas) + unknown
    for broker in replicas:
        if broker in wish.emptied:
            others = [each for each in replicas if each != broker]
            new = _emptiest(board, partition, others, racks, wanted)
            replicas = tuple(new if each == broker else each for each in replicas)
    while len(replicas) < wanted:
        new = _emptiest(board, partition, replicas, len(replicas) + 1, wanted)
        replicas = (*replicas, new)
    if replicas[0] not in before:
        leader = min((each for each in replicas if each not in before), key=leads.__getitem__)
        swapped = {leader: replicas[0], replicas[0]: leader}
        replicas = tuple(swapped.get(each, each) for each in replicas)
    leads.subtract([before[0]])
    leads.update([replicas[0]])
    if replicas != before:
        board.change(number, replicas)


def _least_needed(board: Board, replicas: Sequence[int]) -> int:
    def order(broker: int) -> tuple[bool, int, bool, float]:
        rest = [each for each in replicas if each != broker]
        is_kept = broker in board.targets
        fullness = board.fullness(broker) if is_kept else 0.0
        return is_kept, -rack_count(board.disks, rest), broker == replicas[0], -fullness

    return min(replicas, key=order)


def _emptiest(
    board: Board, partition: TopicPartition, others: Sequence[int], racks_wanted: int, wanted: int
) -> int:
    """The emptiest disk that may have a replica beside others; with fewer racks if it must be.

    `wanted`: how many replicas there are to be.
    """
    for racks in range(racks_wanted, 0, -1):
        found = board.emptiest(others, racks)
        if found is not None:
            return found
    raise UserError(
        f"{partition} cannot have {wanted} replicas: each is on a host of its own, and no"
        " other host has a broker that may take one"
    )


def _with_costs(
    site: Site, before: Sequence[Placed], after: Sequence[Placed], fixed: list[Placed]
) -> Plan:
    moves = []
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for old, new in zip(before, after, strict=True):
        if old.replicas == new.replicas:
            continue
        move = Move(old.partition, old.replicas, new.replicas, old.size_bytes)
        moves.append(move)
        alive = [each for each in old.replicas if each in site.disks]
        sent[alive[0]] += move.moved_bytes  # all copies are the leader's
        received.update(dict.fromkeys(move.added, old.size_bytes))
    return Plan(tuple(moves), shares([*before, *fixed]), shares([*after, *fixed]), sent, received)


def reversed_moves(moves: Iterable[Move]) -> list[Move]:
    """The moves that take all of it back."""
    return [each._replace(before=each.after, after=each.before) for each in moves]


def encode_plan(moves: Iterable[Move]) -> bytes:
    """The moves as the text of a file, a line for each."""
    rows = [
        json.dumps(
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "replicas": each.after,
                _BEFORE: each.before,
                _SIZE: each.size_bytes,
            }
        )
        for each in moves
    ]
    lines = ",\n".join(rows)
    return f'{{"version": {_VERSION}, "partitions": [\n{lines}\n]}}\n'.encode()


def parse_plan(path: str, data: bytes) -> list[Move]:
    """The moves of a file. `UserError` with the first mistake in it."""
    try:
        found = parse_json(data)
    except NameTwice as error:
        raise UserError(f"{path}: {error}, so it would not be said which value counts") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    rows = found.get("partitions") if isinstance(found, dict) else None
    if not isinstance(rows, list) or found.get("version") != _VERSION:
        raise UserError(f'{path} is not a plan: it is not {{"version": 1, "partitions": […]}}')
    moves = [_move(path, row) for row in rows]
    seen: set[TopicPartition] = set()
    for each in moves:
        if each.partition in seen:
            raise UserError(f"{path} names {each.partition} twice")
        seen.add(each.partition)
    return moves


def _move(path: str, row: Any) -> Move:
    if not isinstance(row, dict):
        raise UserError(f"{path}: {row!r} is not a partition")
    topic, number = row.get("topic"), row.get("partition")
    if not isinstance(topic, str) or topic_name_fault(topic) or not _is_number(number):
        raise UserError(f"{path}: {row!r} does not name a topic and a partition")
    partition = TopicPartition(topic, number)
    size = row.get(_SIZE, 0)
    if not _is_number(size):
        raise UserError(f"{path}: {partition}: {_SIZE} is not a number of bytes")
    before, after = (_replicas(path, partition, row.get(each)) for each in (_BEFORE, "replicas"))
    return Move(partition, before, after, size)


def _replicas(path: str, partition: TopicPartition, found: Any) -> tuple[int, ...]:
    if not (isinstance(found, list) and found and all(map(_is_number, found))):
        why = f"needs lists of brokers as replicas and {_BEFORE}: `kdist reassign plan` has both"
        raise UserError(f"{path}: {partition} {why}")
    if len({*found}) < len(found):
        raise UserError(f"{path}: {partition} names a broker twice")
    return tuple(found)


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
