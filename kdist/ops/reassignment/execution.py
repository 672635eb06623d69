"""Carries out a plan: throttles, begins a few moves at a time, and elects preferred leaders.

All that is known of a plan's progress is in the cluster itself. So a plan may be left at any time,
by a death too, and gone on with by the same call; moves that have begun go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from kdist.client.admin.brokers import describe_cluster
from kdist.client.admin.elections import elect_leaders
from kdist.client.admin.outcomes import SomeFailed, each_of
from kdist.client.admin.reassignments import (
    alter_partition_reassignments,
    list_partition_reassignments,
)
from kdist.client.admin.settings import (
    describe_broker_configs,
    incremental_alter_broker_configs,
    incremental_alter_topic_configs,
)
from kdist.client.admin.topics import list_topics
from kdist.client.cluster import Cluster
from kdist.errors import ApiError, Error, UserError
from kdist.model import TopicPartition
from kdist.ops.reassignment.plan import Move, reversed_moves
from kdist.ops.reassignment.progress import (
    Status,
    Statuses,
    brokers_of,
    missed_brokers,
    next_moves,
    status_of,
    statuses_of,
    throttled_replicas,
)
from kdist.replication.throttles import EVERYTHING
from kdist.storage.names import some_of

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADERS = "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"

_POLL_S = 1.0
_POLLS_MAX = 5
_RETURN_S = 30.0  # for so long a broker that is restarted is waited for


class Unthrottled(NamedTuple):
    """`dead`: brokers that could not be told, so that what was set of them stays.

    `is_kept`: all throttles stay, as partitions are moving.
    """

    dead: list[int]
    is_kept: bool


async def read_statuses(cluster: Cluster, moves: Sequence[Move]) -> Statuses:
    """How far a plan has come.

    A broker that is asked for replicas may be a little behind the controller, which knows the
    moves: so partitions count as elsewhere only once they have been for a while.
    """
    return (await _confirmed_snapshot(cluster, moves)).statuses


async def zookeeper_of(cluster: Cluster) -> str | None:
    """The `zookeeper.connect` of a broker; None if it has none."""
    await describe_cluster(cluster)
    for settings in (await describe_broker_configs(cluster, cluster.in_turn()[:1])).values():
        if "zookeeper.connect" in settings:
            return settings["zookeeper.connect"].value
    return None


class _Snapshot(NamedTuple):
    """What the cluster says of a plan, and the partitions that nobody leads."""

    statuses: Statuses
    leaderless: frozenset[TopicPartition]


async def _confirmed_snapshot(cluster: Cluster, moves: Sequence[Move]) -> _Snapshot:
    found = await _snapshot(cluster, moves)
    for _ in range(_POLLS_MAX):
        if Status.ELSEWHERE not in found.statuses.values():
            break
        await asyncio.sleep(_POLL_S)
        found = await _snapshot(cluster, moves)
    return found


async def _snapshot(cluster: Cluster, moves: Sequence[Move]) -> _Snapshot:
    # In this order: a move that ends in between counts as under way.
    under_way = await list_partition_reassignments(cluster)
    found = {
        TopicPartition(topic.name, each.number): each
        for topic in await list_topics(cluster)
        for each in topic.partitions
    }
    replicas = {each: partition.replicas for each, partition in found.items()}
    leaderless = frozenset(each for each, partition in found.items() if partition.leader is None)
    return _Snapshot(statuses_of(moves, replicas, under_way), leaderless)


async def check_may_begin(cluster: Cluster, statuses: Statuses) -> None:
    """`UserError` if brokers that are to get replicas are dead, or moves that are not the plan's
    are under way: both would share throttles, which whoever ends first takes from the other.
    """
    check_statuses(statuses)
    left = unfinished(statuses)
    alive = await _alive(cluster)
    _check_takers(left, [each for each in brokers_of(left) if each not in alive])
    mine = {each.partition for each in statuses}
    others = [each for each in await list_partition_reassignments(cluster) if each not in mine]
    if others:
        raise UserError(
            f"{some_of(others)}: moving, and not by this plan; let it arrive, or cancel it, first"
        )


def _check_takers(moves: Sequence[Move], dead: Collection[int]) -> None:
    if takers := {broker for each in moves for broker in each.added} & {*dead}:
        names = ", ".join(map(str, sorted(takers)))
        raise UserError(f"broker {names} is to get replicas, and is not alive: make a new plan")


async def _alive(cluster: Cluster) -> set[int]:
    return {each.id for each in (await describe_cluster(cluster)).brokers}


def unfinished(statuses: Statuses) -> list[Move]:
    """The moves that are under way, or yet to begin."""
    left = (Status.MOVING, Status.WAITING, Status.GOING_BACK)
    return [each for each, status in statuses.items() if status in left]


def check_some_exist(statuses: Statuses) -> None:
    """`UserError` if not one of the partitions of a plan is there."""
    if statuses and {*statuses.values()} == {Status.GONE}:
        names = some_of([each.partition for each in statuses])
        raise UserError(f"{names}: none of the plan is in this cluster: deleted, or another one's?")


def check_statuses(statuses: Statuses) -> None:
    """`UserError` if partitions of the plan are neither where it begins nor where it ends."""
    check_some_exist(statuses)
    wrong = [each.partition for each, status in statuses.items() if status is Status.ELSEWHERE]
    if wrong:
        raise UserError(
            f"{some_of(wrong)}: moved by somebody else since the plan was made; make a new one"
        )


async def throttle(cluster: Cluster, moves: Sequence[Move], bytes_per_second: int) -> None:
    """Hold what brokers send and get for these moves to a rate each, those that are alive.

    `UserError` if one has died that is to get replicas.
    """
    rate = str(bytes_per_second)
    rates = {LEADER_RATE: rate, FOLLOWER_RATE: rate}
    _check_takers(moves, await _configure(cluster, brokers_of(moves), rates))
    for topic, (leaders, followers) in throttled_replicas(moves).items():
        with _deleted_meanwhile():
            await incremental_alter_topic_configs(
                cluster, topic, {LEADERS: leaders, FOLLOWERS: followers}
            )


async def unthrottle(cluster: Cluster, moves: Sequence[Move]) -> list[int]:
    """Take back what `throttle` has set for these moves, or for the way back, of topics that are.

    Returns the brokers that could not be told, as they are dead: what was set of them stays.
    """
    both_ways = [*moves, *reversed_moves(moves)]
    for topic in throttled_replicas(both_ways):
        with _deleted_meanwhile():
            await incremental_alter_topic_configs(cluster, topic, unset=[LEADERS, FOLLOWERS])
    return await _configure(cluster, brokers_of(both_ways), unset=[LEADER_RATE, FOLLOWER_RATE])


async def unthrottle_if_idle(cluster: Cluster, moves: Sequence[Move]) -> Unthrottled:
    """As `unthrottle`, unless any partition is moving: brokers have one rate for all moves."""
    if await list_partition_reassignments(cluster):
        return Unthrottled([], is_kept=bool(brokers_of([*moves, *reversed_moves(moves)])))
    return Unthrottled(await unthrottle(cluster, moves), is_kept=False)


async def throttle_refill(cluster: Cluster, broker: int, bytes_per_second: int) -> None:
    """Hold what a broker gets to a rate, while it fills a new disk; `UserError` if it is dead.

    Followers alone are limited, of all its topics: what leaders send is no more than it may get,
    and other brokers have no rate.
    """
    await incremental_alter_broker_configs(cluster, broker, {FOLLOWER_RATE: str(bytes_per_second)})
    for topic in await list_topics(cluster):
        if any(broker in each.replicas for each in topic.partitions):
            with _deleted_meanwhile():
                await incremental_alter_topic_configs(cluster, topic.name, {FOLLOWERS: EVERYTHING})


async def unthrottle_refill(cluster: Cluster, broker: int) -> bool:
    """Take back what `throttle_refill` has set; False if that stays, as partitions are moving.

    A topic of which another replica is behind keeps its setting, for another broker that fills its
    disk: the last one takes it back.
    """
    if await list_partition_reassignments(cluster):
        return False
    await incremental_alter_broker_configs(cluster, broker, unset=[FOLLOWER_RATE])
    for topic in await list_topics(cluster):
        behind = {one for each in topic.partitions for one in {*each.replicas} - {*each.isr}}
        if any(broker in each.replicas for each in topic.partitions) and behind <= {broker}:
            with _deleted_meanwhile():
                await incremental_alter_topic_configs(cluster, topic.name, unset=[FOLLOWERS])
    return True


async def _configure(
    cluster: Cluster,
    brokers: Sequence[int],
    given: Mapping[str, str] | None = None,
    unset: Sequence[str] = (),
) -> list[int]:
    """Change the settings of those that are alive; returns the others, and who died meanwhile."""

    async def is_told(broker: int) -> bool:
        try:
            await incremental_alter_broker_configs(cluster, broker, given, unset)
        except (ApiError, UserError):
            if broker in await _alive(cluster):
                raise
            return False
        return True

    alive = await _alive(cluster)
    told = await each_of([each for each in brokers if each in alive], is_told)
    return [each for each in brokers if not told.get(each)]


@contextmanager
def _deleted_meanwhile() -> Iterator[None]:
    """Let pass that topics or partitions are gone: the next look says so."""
    try:
        yield
    except SomeFailed as some:
        for error in some.failed.values():
            if error.error is not Error.UNKNOWN_TOPIC_OR_PARTITION:
                raise error from some
    except ApiError as error:
        if error.error is not Error.UNKNOWN_TOPIC_OR_PARTITION:
            raise


async def carry_out(
    cluster: Cluster,
    moves: Sequence[Move],
    at_once: int,
    bytes_per_second: int | None,
    on_progress: Callable[[Statuses], None],
) -> list[int]:
    """Carry out a plan whose moves may begin, under a throttle or none.

    `on_progress` is told how far it is, once a second. Returns the brokers whose throttles stay, as
    they are dead. `UserError` by `check_may_begin`, before anything has changed, and once all that
    is left has long waited for dead brokers; `SomeFailed` if the cluster refuses a move. The
    throttles are taken back then, and if it is cancelled, unless something is under way; of what
    stays the `UserError` says so.
    """
    found = await read_statuses(cluster, moves)
    await check_may_begin(cluster, found)
    try:
        if bytes_per_second is None:
            await unthrottle(cluster, moves)  # of an earlier call, perhaps
        else:
            await throttle(cluster, unfinished(found), bytes_per_second)
        await _move(cluster, moves, at_once, on_progress)
    except (ApiError, UserError) as error:
        if stays := await _leave(cluster, moves):
            raise UserError(f"{error}; {stays}") from error
        raise
    except asyncio.CancelledError:
        await _leave(cluster, moves)
        raise
    return await unthrottle(cluster, moves)


async def _leave(cluster: Cluster, moves: Sequence[Move]) -> str:
    """Take the throttles back unless something is under way; what stays, in words."""
    removes = "`kdist reassign verify` removes"
    try:
        dead, is_kept = await unthrottle_if_idle(cluster, moves)
    except (ApiError, UserError):
        return f"throttles may stay, which {removes}"
    if is_kept:
        return f"what has begun goes on, and {removes} its throttles when it is done"
    names = ", ".join(map(str, dead))
    return f"the throttle of broker {names}, which is dead, stays until {removes} it" * bool(dead)


async def _move(
    cluster: Cluster, moves: Sequence[Move], at_once: int, on_progress: Callable[[Statuses], None]
) -> None:
    """Begin moves, a few at a time, until all are done; then elect the preferred leaders."""
    now_s = asyncio.get_running_loop().time
    advanced_s = now_s()
    while True:
        statuses, leaderless = await _confirmed_snapshot(cluster, moves)
        check_statuses(statuses)
        on_progress(statuses)
        left, alive = unfinished(statuses), await _alive(cluster)
        missed = {
            each: missed_brokers(each, alive, is_led=each.partition not in leaderless)
            if statuses[each] is Status.MOVING
            else {*each.added} - alive
            for each in left
        }
        stuck = [each for each in left if missed[each]]
        possible = {
            each: statuses[each]
            for each in left
            if statuses[each] is Status.MOVING or not missed[each]
        }
        begun = next_moves(possible, at_once, stuck)
        if begun:
            with _deleted_meanwhile():
                await alter_partition_reassignments(
                    cluster, {each.partition: each.after for each in begun}
                )
        elif not left:
            break
        if begun or len(stuck) < len(left):
            advanced_s = now_s()
        elif now_s() - advanced_s >= _RETURN_S:
            names = ", ".join(map(str, sorted(set[int]().union(*missed.values()))))
            which = some_of([each.partition for each in left])
            raise UserError(f"{which}: cannot get there without broker {names}, which is not alive")
        await asyncio.sleep(_POLL_S)
    await _elect(cluster, [each.partition for each in statuses if statuses[each] is Status.DONE])


async def _elect(cluster: Cluster, partitions: list[TopicPartition]) -> None:
    try:
        await elect_leaders(cluster, partitions)
    except SomeFailed as some:
        for error in some.failed.values():
            if error.error is not Error.PREFERRED_LEADER_NOT_AVAILABLE:
                raise error from some


class Cancelled(NamedTuple):
    """What cancelling a plan has come to.

    `going_back`: those of the plan's partitions that are on their way back still, as too few of
    their former replicas are in sync, or as the way back was being carried out.
    `going_on`: those that were on the way back from a cancelled move, which is not cancelled.
    """

    partitions: list[TopicPartition]
    going_back: list[TopicPartition]
    going_on: list[TopicPartition]


async def cancel(cluster: Cluster, moves: Sequence[Move]) -> Cancelled:
    """Cancel the moves under way that are the plan's. One that ends meanwhile is not."""
    statuses = await read_statuses(cluster, moves)
    moving = [each.partition for each in moves if statuses[each] is Status.MOVING]
    ended: set[TopicPartition] = set()
    try:
        if moving:
            await alter_partition_reassignments(cluster, dict.fromkeys(moving))
    except SomeFailed as some:
        for partition, error in some.failed.items():
            if error.error is not Error.NO_REASSIGNMENT_IN_PROGRESS:
                raise error from some
            ended.add(partition)
    under_way = await list_partition_reassignments(cluster)
    left: dict[Status, list[TopicPartition]] = {}
    for each in moves:
        if move := under_way.get(each.partition):
            left.setdefault(status_of(each, each.before, move), []).append(each.partition)
    going_on = left.get(Status.MOVING, [])
    cancelled = [each for each in moving if each not in ended and each not in going_on]
    return Cancelled(cancelled, left.get(Status.GOING_BACK, []), going_on)
