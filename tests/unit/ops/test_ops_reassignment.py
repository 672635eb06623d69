"""Plans of moves: what they reach, what they never do, and what they cost at least."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.errors import UserError
from kdist.model import TopicPartition
from kdist.ops.reassignment.balance import TOLERANCE
from kdist.ops.reassignment.plan import Move, Plan, Wish, plan_moves, reversed_moves
from kdist.ops.reassignment.site import Disk, Placed, Share, Site, rack_count

GIB = 1 << 30


def a_site(
    rng: random.Random, hosts: int, disks: int, partitions: int, empty_hosts: int = 0
) -> Site:
    """Three racks, disks of two sizes, three replicas; the last hosts have nothing yet."""
    found = {}
    for host in range(hosts + empty_hosts):
        for number in range(disks):
            broker = 100 * host + number
            room = rng.choice([2000, 4000]) * GIB
            found[broker] = Disk(broker, f"h{host}", f"r{host % 3}", room)
    placed = []
    for number in range(partitions):
        on = rng.sample(range(hosts), 3)
        replicas = tuple(100 * host + rng.randrange(disks) for host in on)
        size = int(rng.lognormvariate(0, 0.8) * GIB)
        partition = TopicPartition(f"t{number % 7}", number)
        placed.append(Placed(partition, replicas, size, rng.random()))
    return Site(found, tuple(placed))


def a_rack_bound_site(rng: random.Random, hosts: int, disks: int, partitions: int) -> Site:
    """Each partition is in all three racks already, so that no replica may leave its rack."""
    bare = a_site(rng, hosts, disks, partitions)
    placed = []
    for each in bare.partitions:
        on = [rng.choice(range(rack, hosts, 3)) for rack in rng.sample(range(3), 3)]
        replicas = tuple(100 * host + rng.randrange(disks) for host in on)
        placed.append(each._replace(replicas=replicas))
    return Site(bare.disks, tuple(placed))


def fullness(site: Site, plan: Plan, brokers: Iterable[int] | None = None) -> list[float]:
    chosen = site.disks if brokers is None else brokers
    return [plan.after.get(each, Share()).bytes / site.disks[each].room_bytes for each in chosen]


def check_allowed(site: Site, plan: Plan) -> None:
    for move in plan.moves:
        hosts_before = {site.disks[each].host for each in move.before}
        assert len({site.disks[each].host for each in move.after}) >= len(hosts_before)
        if len(move.after) >= len(move.before):
            assert rack_count(site.disks, move.after) >= rack_count(site.disks, move.before)


def least_bytes(site: Site, plan: Plan) -> float:
    """What all that are over their goal have too much, less the tolerance."""
    total = sum(each.bytes for each in plan.before.values())
    room = sum(each.room_bytes for each in site.disks.values())
    goals = {each: total / room * disk.room_bytes for each, disk in site.disks.items()}
    return sum(
        max(share.bytes - goals[broker] * (1 + TOLERANCE), 0.0)
        for broker, share in plan.before.items()
    )


@pytest.mark.parametrize("seed", range(5))
def test_disks_are_leveled_with_hardly_more_bytes_than_that_takes(seed: int) -> None:
    site = a_site(random.Random(seed), hosts=9, disks=4, partitions=2500, empty_hosts=3)
    plan = plan_moves(site, Wish())
    check_allowed(site, plan)
    full = fullness(site, plan)
    mean = sum(full) / len(full)
    assert max(full) / mean < 1.05
    assert min(full) / mean > 0.95
    assert plan.moved_bytes < 1.1 * least_bytes(site, plan) + 0.02 * sum(
        each.bytes for each in plan.before.values()
    )


def test_a_large_site_whose_racks_block_most_moves_is_planned_in_seconds() -> None:
    site = a_rack_bound_site(random.Random(1), hosts=40, disks=12, partitions=10_000)
    began_s = time.process_time()
    check_allowed(site, plan_moves(site, Wish()))
    assert time.process_time() - began_s < 10


def test_disks_of_a_rack_that_replicas_cannot_leave_are_leveled_among_themselves() -> None:
    site = a_rack_bound_site(random.Random(2), hosts=9, disks=4, partitions=3000)
    disks = {
        each: disk._replace(room_bytes=disk.room_bytes * (3 if disk.rack == "r0" else 2))
        for each, disk in site.disks.items()
    }
    site = Site(disks, site.partitions)
    plan = plan_moves(site, Wish())
    check_allowed(site, plan)
    for rack in ("r0", "r1", "r2"):
        full = fullness(site, plan, [each for each in disks if disks[each].rack == rack])
        mean = sum(full) / len(full)
        assert max(full) / mean < 1.05
        assert min(full) / mean > 0.95
    assert plan.moved_bytes <= sum(
        max(plan.before[each].bytes - plan.after[each].bytes, 0) for each in disks
    ) + 0.01 * sum(each.bytes for each in plan.before.values())


def test_what_does_not_fit_is_refused() -> None:
    partitions = tuple(Placed(TopicPartition("t", number), (1, 2), 10 * GIB) for number in range(4))
    rooms = {1: 50 * GIB, 2: 50 * GIB, 3: 39 * GIB}
    site = Site({each: Disk(each, f"h{each}", None, rooms[each]) for each in rooms}, partitions)
    wish = Wish(emptied=frozenset({1}), levels_disks=False)
    with pytest.raises(UserError, match="broker 3's disk would be 103% full"):
        plan_moves(site, wish)


def test_a_level_site_is_left_alone() -> None:
    site = a_site(random.Random(1), hosts=6, disks=2, partitions=2000)
    moves = plan_moves(site, Wish()).moves
    after = {each.partition: each.after for each in moves}
    moved = tuple(e._replace(replicas=after.get(e.partition, e.replicas)) for e in site.partitions)
    assert plan_moves(Site(site.disks, moved), Wish()).moves == ()


def test_leaders_are_spread_by_number_and_by_rate() -> None:
    site = a_site(random.Random(2), hosts=6, disks=2, partitions=2400)
    after = plan_moves(site, Wish()).after.values()
    assert max(e.leads for e in after) - min(e.leads for e in after) <= 4
    rates = [each.bytes_per_second for each in after]
    assert max(rates) / min(rates) < 1.05


def test_a_drained_host_has_nothing_left_and_racks_stay() -> None:
    site = a_site(random.Random(3), hosts=9, disks=3, partitions=1500)
    drained = frozenset(each.broker for each in site.disks.values() if each.host == "h4")
    for levels in (True, False):
        plan = plan_moves(site, Wish(emptied=drained, levels_disks=levels, spreads_leaders=levels))
        check_allowed(site, plan)
        assert drained.isdisjoint(plan.after)
        if not levels:  # only what has to go goes
            assert plan.moved_bytes == sum(plan.before[each].bytes for each in drained)


def test_brokers_that_take_all_of_others_lead_as_many_partitions_each() -> None:
    disks = {each: Disk(each, f"h{each}", None, 1000 * GIB) for each in range(6)}
    placed = tuple(Placed(TopicPartition("t", each), (0, 1, 2), GIB) for each in range(30))
    wish = Wish(emptied=frozenset({0, 1, 2}), levels_disks=False, spreads_leaders=False)
    after = plan_moves(Site(disks, placed), wish).after
    assert {broker: share.leads for broker, share in after.items()} == {3: 10, 4: 10, 5: 10}


def without(site: Site, *gone: int) -> Site:
    """The same while these brokers are down."""
    return Site(
        {each: site.disks[each] for each in site.disks if each not in gone}, site.partitions
    )


@pytest.mark.parametrize("levels", [True, False])
def test_what_brokers_have_that_are_down_is_left_there(levels: bool) -> None:
    site = a_site(random.Random(4), hosts=6, disks=2, partitions=300, empty_hosts=1)
    gone = {100, 101}
    plan = plan_moves(without(site, *gone), Wish(levels_disks=levels, spreads_leaders=levels))
    assert bool(plan.moves) is levels
    for each in gone:
        assert plan.after[each] == plan.before[each]
    for move in plan.moves:
        assert not {*move.added} & gone
        if gone & {*move.before}:  # whose host and rack are not known
            assert {*move.before} == {*move.after}
    check_allowed(site, plan)


def test_brokers_that_are_down_are_drained_by_their_ids_and_racks_are_had_again() -> None:
    site = a_rack_bound_site(random.Random(4), hosts=9, disks=2, partitions=300)
    gone, left = 101, 301
    wish = Wish(emptied=frozenset({gone}), levels_disks=False, spreads_leaders=False)
    plan = plan_moves(without(site, gone, left), wish)
    assert gone not in plan.after
    assert plan.after[left].replicas == plan.before[left].replicas
    moved = [each for each in site.partitions if gone in each.replicas]
    assert len(plan.moves) == len(moved) > 0
    for move in plan.moves:
        if left not in move.before:
            assert rack_count(site.disks, move.after) == 3
    assert gone not in plan.sent  # others send the copies


def test_a_factor_is_lowered_by_what_is_down_first() -> None:
    site = a_site(random.Random(5), hosts=6, disks=1, partitions=100)
    topics = {each.partition.topic for each in site.partitions}
    wish = Wish(factors=dict.fromkeys(topics, 2), levels_disks=False, spreads_leaders=False)
    assert 100 not in plan_moves(without(site, 100), wish).after


def test_a_partition_that_nobody_leads_is_left_and_told_if_it_had_to_move() -> None:
    disks = {each: Disk(each, f"h{each}", None, 1000 * GIB) for each in (1, 2, 3)}
    led, lost, other = (TopicPartition("t", number) for number in range(3))
    placed = (
        Placed(led, (1, 9), GIB),
        Placed(lost, (9,), GIB, is_led=False),
        Placed(other, (8,), GIB, is_led=False),
    )
    plan = plan_moves(Site(disks, placed), Wish(emptied=frozenset({9}), levels_disks=False))
    assert [each.partition for each in plan.moves] == [led]
    assert plan.leaderless == (lost,)
    assert Site(disks, placed).down == {8, 9}


@pytest.mark.parametrize("factor", [1, 2, 4, 5])
def test_a_factor_is_raised_and_lowered_over_as_many_racks_as_can_be(factor: int) -> None:
    site = a_site(random.Random(5), hosts=9, disks=2, partitions=200)
    topics = {each.partition.topic for each in site.partitions}
    wish = Wish(factors=dict.fromkeys(topics, factor), levels_disks=False, spreads_leaders=False)
    plan = plan_moves(site, wish)
    assert len(plan.moves) == 200
    for move in plan.moves:
        assert len(move.after) == factor
        assert len({site.disks[each].host for each in move.after}) == factor
        before = rack_count(site.disks, move.before)
        assert rack_count(site.disks, move.after) >= min(factor, before)
        assert move.after[0] == move.before[0]  # the leader stays


def test_topics_that_are_not_named_do_not_move_but_count() -> None:
    site = a_site(random.Random(6), hosts=6, disks=2, partitions=700, empty_hosts=1)
    plan = plan_moves(site, Wish(topics=frozenset({"t0"})))
    assert {each.partition.topic for each in plan.moves} == {"t0"}
    assert sum(each.bytes for each in plan.after.values()) == sum(
        each.bytes for each in plan.before.values()
    )


def test_what_cannot_be_had_is_refused_with_a_sentence() -> None:
    site = a_site(random.Random(7), hosts=4, disks=1, partitions=4)
    for factor in (5, 9):
        with pytest.raises(UserError, match=f"cannot have {factor} replicas"):
            plan_moves(site, Wish(factors=dict.fromkeys([f"t{n}" for n in range(7)], factor)))
    with pytest.raises(UserError, match="none is left"):
        plan_moves(site, Wish(emptied=frozenset(site.disks)))


def test_time_is_that_of_the_busiest_broker() -> None:
    partitions = tuple(Placed(TopicPartition("t", number), (1, 2), 10 * GIB) for number in range(4))
    disks = {each: Disk(each, f"h{each}", None, 1000 * GIB) for each in (1, 2, 3, 4)}
    plan = plan_moves(Site(disks, partitions), Wish(emptied=frozenset({1}), levels_disks=False))
    assert plan.moved_bytes == 40 * GIB
    assert plan.seconds(1 * GIB) == 40  # all of it is sent by broker 1, which leads
    assert sum(plan.received.values()) == plan.sent[1]


@given(st.integers(0, 1 << 32))
def test_the_way_back_is_the_way_there(seed: int) -> None:
    site = a_site(random.Random(seed), hosts=5, disks=2, partitions=60)
    moves = plan_moves(site, Wish(emptied=frozenset({0, 1}))).moves
    check_allowed(site, plan_moves(site, Wish(emptied=frozenset({0, 1}))))
    assert reversed_moves(reversed_moves(moves)) == list(moves)
    assert all(isinstance(each, Move) and each.before != each.after for each in moves)
