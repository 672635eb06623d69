"""Who leads when brokers come and go, and that no change of state leaves the table."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Set
from typing import Never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.config.addresses import Listener
from kdist.config.topic import TopicSettings
from kdist.controller.context import (
    ALLOWED,
    NEW,
    NON_EXISTENT,
    OFFLINE,
    ONLINE,
    ControllerContext,
    LiveBroker,
    PartitionState,
    Topic,
)
from kdist.controller.elections import (
    Candidates,
    Election,
    elect,
    first_state,
    is_unclean,
    plan_for_broker_change,
    plan_for_new,
    plan_for_shutdown,
)
from kdist.model import LeaderAndIsr, TopicPartition
from kdist.zk.registration import BrokerRegistration, Endpoint
from kdist.zk.values import VettedDisk

CLICKS = TopicPartition("clicks", 0)
EPOCH = 7
NOTHING: Mapping[str, Set[int]] = {}


def live(broker_id: int, epoch: int = 1) -> LiveBroker:
    listener = Listener("PLAINTEXT", f"host-{broker_id}", 9092)
    registration = BrokerRegistration((Endpoint(listener, "PLAINTEXT"),), 0)
    return LiveBroker(broker_id, epoch, registration, listener)


def cluster(
    alive: set[int], assigned: tuple[int, ...], state: LeaderAndIsr | None, min_isr: int = 1
) -> ControllerContext:
    """A cluster with one partition."""
    made = ControllerContext(lambda _: TopicSettings(min_insync_replicas=min_isr))
    made.brokers = {i: live(i) for i in alive}
    made.put_topic(Topic("clicks", uuid.UUID(int=1), {0: assigned}, 0))
    if state:
        made.put_states({CLICKS: state})
    return made


def led(leader: int, *isr: int, eligible: tuple[int, ...] = ()) -> LeaderAndIsr:
    return LeaderAndIsr(leader, 3, isr, 1, 5, eligible)


def after(leader: int, *isr: int, eligible: tuple[int, ...] = ()) -> LeaderAndIsr:
    """The state that follows `led`."""
    return LeaderAndIsr(leader, 4, isr, EPOCH, 6, eligible)


def planned(before: ControllerContext, bounced: set[int] | None = None) -> LeaderAndIsr | None:
    for broker_id in bounced or ():
        before.brokers[broker_id] = live(broker_id, before.newest_registration + 1)
    return plan_for_broker_change(before, before.partitions(), EPOCH).get(CLICKS)


def test_who_lacks_records_leaves_the_isr_and_the_leader_leads_on() -> None:
    found = lossy(cluster({1, 2, 3}, (1, 2, 3), led(2, 1, 2, 3)), unflushed=3)
    assert found == left_lossy(3, after(2, 1, 2))


def test_a_partition_without_a_state_does_not_hide_those_after_it() -> None:
    made = cluster({2}, (1, 2), led(1, 1, 2))
    made.put_topic(Topic("anew", uuid.UUID(int=2), {0: (2,)}, 0))
    anew = TopicPartition("anew", 0)
    plan = plan_for_broker_change(made, [anew, CLICKS], EPOCH)
    assert plan == {anew: LeaderAndIsr(2, 0, (2,), EPOCH, 0), CLICKS: after(2, 2)}


def test_all_partitions_of_new_topics_get_a_first_state() -> None:
    topics = [Topic(name, uuid.UUID(int=2), {0: (1,), 1: (3,)}, 0) for name in ("a", "b")]
    plan = plan_for_new(topics, {1, 2}, EPOCH)
    states = [LeaderAndIsr(1, 0, (1,), EPOCH, 0), LeaderAndIsr(-1, 0, (3,), EPOCH, 0)]
    assert plan == {TopicPartition(n, i): states[i] for n in ("a", "b") for i in (0, 1)}


def test_a_new_partition_is_led_by_its_first_replica_alive() -> None:
    assert first_state((3, 1, 2), {1, 2}, EPOCH) == LeaderAndIsr(1, 0, (1, 2), EPOCH, 0)


def test_a_new_partition_without_a_replica_alive_is_offline_and_any_replica_may_lead_it() -> None:
    first = first_state((1, 3), {2}, EPOCH)
    assert first == LeaderAndIsr(-1, 0, (1, 3), EPOCH, 0)
    assert planned(cluster({2, 3}, (1, 3), first)) == LeaderAndIsr(3, 1, (3,), EPOCH, 1)


def test_nothing_changes_while_leader_and_isr_are_alive() -> None:
    assert planned(cluster({1, 2}, (1, 2), led(1, 1, 2))) is None


def test_the_only_replica_goes_and_the_partition_is_offline_with_its_isr_kept() -> None:
    assert planned(cluster({2}, (1,), led(1, 1))) == after(-1, 1)


def test_an_offline_partition_stays_as_it_is_while_its_replica_is_gone() -> None:
    assert planned(cluster({2}, (1,), led(-1, 1))) is None


def test_an_offline_partition_is_led_again_when_its_replica_is_back() -> None:
    assert planned(cluster({1}, (1,), led(-1, 1))) == after(1, 1)


def test_the_next_replica_of_the_isr_leads_in_the_order_of_the_assignment() -> None:
    assert planned(cluster({2, 3}, (1, 3, 2), led(1, 1, 2, 3))) == after(3, 2, 3)


def test_a_replica_outside_the_isr_does_not_lead() -> None:
    assert planned(cluster({2}, (1, 2), led(1, 1))) == after(-1, 1)


def test_a_follower_that_goes_leaves_the_isr() -> None:
    assert planned(cluster({1}, (1, 2), led(1, 1, 2))) == after(1, 1)


def test_a_leader_that_registered_again_keeps_leading_in_a_new_epoch() -> None:
    assert planned(cluster({1}, (1,), led(1, 1)), {1}) == after(1, 1)


def test_a_leader_that_registered_again_gives_way_to_one_that_stayed() -> None:
    assert planned(cluster({1, 2}, (1, 2), led(1, 1, 2)), {1}) == after(2, 2)


def test_a_follower_that_registered_again_leaves_the_isr_since_it_may_have_lost_its_tail() -> None:
    assert planned(cluster({1, 2}, (1, 2), led(1, 1, 2)), {2}) == after(1, 1)


def test_a_host_that_goes_with_all_members_of_an_isr_leaves_it_as_it_was() -> None:
    assert planned(cluster({3}, (1, 2), led(1, 1, 2))) == after(-1, 1, 2)


def stopping(broker_id: int, before: ControllerContext) -> LeaderAndIsr | None:
    before.shutting_down[broker_id] = before.brokers[broker_id].epoch
    return plan_for_shutdown(before, [CLICKS], EPOCH).get(CLICKS)


def test_a_leader_about_to_stop_gives_way_to_a_member_of_the_isr_and_leaves_it() -> None:
    assert stopping(1, cluster({1, 2, 3}, (1, 2, 3), led(1, 1, 3))) == after(3, 3)


def test_a_follower_about_to_stop_leaves_the_isr() -> None:
    assert stopping(2, cluster({1, 2}, (1, 2), led(1, 1, 2))) == after(1, 1)


def test_a_leader_about_to_stop_leads_on_where_nobody_else_is_in_sync() -> None:
    assert stopping(1, cluster({1, 2}, (1, 2), led(1, 1))) is None


def test_a_broker_about_to_stop_leads_on_when_others_come_and_go_but_is_not_elected() -> None:
    before = cluster({1, 2}, (1, 2), led(1, 1))
    assert stopping(1, before) is None
    assert planned(before) is None
    before = cluster({1, 3}, (2, 1), led(2, 2, 1))
    before.shutting_down[1] = before.brokers[1].epoch
    assert planned(before) == after(-1, 2, 1)


@pytest.mark.parametrize(
    ("alive", "before", "expected"),
    [
        # At the minimum of 2 nobody is eligible; below it, whoever left.
        ({1, 2}, led(1, 1, 2, 3), after(1, 1, 2)),
        ({1}, led(1, 1, 2), after(1, 1, eligible=(2,))),
        ({1}, led(1, 1, 2, 3), after(1, 1, eligible=(2, 3))),
        ({3}, led(1, 1, 2, 3), after(3, 3, eligible=(1, 2))),
        ({1}, led(1, 1, eligible=(2,)), None),
        # The ISR first, then the eligible, in the order of assignment; never anyone else.
        ({2, 3}, led(1, 1, eligible=(3, 2)), after(2, 2, eligible=(1, 3))),
        ({3}, led(-1, 1, eligible=(2, 3)), after(3, 3, eligible=(1, 2))),
        ({1, 2}, led(-1, 1, eligible=(2,)), after(1, 1, eligible=(2,))),
        ({3}, led(1, 1, eligible=(2,)), after(-1, 1, eligible=(2,))),
        ({3}, led(-1, 1, eligible=(2,)), None),
        ({4}, led(1, 1, 2, 3), after(-1, 1, 2, 3)),
    ],
)
def test_members_that_leave_an_isr_below_its_minimum_stay_eligible(
    alive: set[int], before: LeaderAndIsr, expected: LeaderAndIsr | None
) -> None:
    assert planned(cluster(alive, (1, 2, 3), before, min_isr=2)) == expected


def test_the_minimum_is_at_most_the_number_of_replicas() -> None:
    assert planned(cluster({1}, (1,), led(-1, 1), min_isr=2)) == after(1, 1)


def test_a_minimum_that_was_lowered_makes_nobody_eligible_any_more() -> None:
    before = cluster({1, 3}, (1, 2, 3), led(1, 1, eligible=(2, 3)), min_isr=1)
    assert planned(before) == after(1, 1)


def test_who_is_eligible_and_about_to_stop_is_not_elected() -> None:
    before = cluster({2, 3}, (1, 2, 3), led(1, 1, eligible=(2, 3)), min_isr=2)
    before.shutting_down[2] = before.brokers[2].epoch
    assert planned(before) == after(3, 3, eligible=(1, 2))


def test_a_leader_about_to_stop_stays_eligible_below_the_minimum() -> None:
    before = cluster({1, 2}, (1, 2, 3), led(1, 1, 2), min_isr=2)
    assert stopping(1, before) == after(2, 2, eligible=(1,))


def test_a_leader_about_to_stop_gives_way_to_an_eligible_replica() -> None:
    before = cluster({1, 2}, (1, 2), led(1, 1, eligible=(2,)), min_isr=2)
    assert stopping(1, before) == after(2, 2, eligible=(1,))


def test_nobody_is_eligible_beside_a_leader_that_is_recovering() -> None:
    before = led(1, 1, 2)._replace(is_recovering=True)
    found = planned(cluster({1}, (1, 2), before, min_isr=2))
    assert found == after(1, 1)._replace(is_recovering=True)


# What brokers that came back may lack


def lossy(
    before: ControllerContext, flushed: Mapping[str, Set[int]] = NOTHING, **lost: int
) -> LeaderAndIsr | None:
    """What is planned when brokers have registered anew, with this content or that disk; of what is
    `flushed` they had exposed no more than they had flushed.
    """
    for name, broker_id in lost.items():
        before.vetted_disks[broker_id] = VettedDisk("disk", "content")
        disk = VettedDisk("new", "new") if name == "empty" else VettedDisk("disk", "new")
        made = live(broker_id, before.newest_registration + 1)
        registration = made.registration._replace(
            disk=disk.disk, content=disk.content, flushed=flushed
        )
        before.brokers[broker_id] = made._replace(registration=registration)
    return planned(before)


def recovering(state: LeaderAndIsr) -> LeaderAndIsr:
    return state._replace(is_recovering=True)


def emptied(broker_id: int, *state: int, eligible: tuple[int, ...] = ()) -> LeaderAndIsr:
    return after(*state, eligible=eligible)._replace(emptied=(broker_id,))


def left_lossy(broker_id: int, state: LeaderAndIsr) -> LeaderAndIsr:
    return state._replace(lossy=(broker_id,))


@pytest.mark.parametrize(
    ("lost", "alive", "before", "expected"),
    [
        # Somebody has it all, dead or alive.
        ({"unflushed": 1}, {1, 2}, led(1, 1, 2), left_lossy(1, after(2, 2))),
        ({"empty": 1}, {1, 2}, led(1, 1, 2), after(2, 2)),
        ({"empty": 2}, {1, 2}, led(1, 1, 2), after(1, 1)),
        ({"unflushed": 1}, {1}, led(-1, 1, 2), left_lossy(1, after(-1, 2))),
        (
            *({"unflushed": 1, "empty": 2}, {1, 2}, led(-1, 1, 2, 3)),
            left_lossy(1, emptied(2, -1, 3)),
        ),
        ({"unflushed": 1}, {1}, led(-1, 1, eligible=(2,)), left_lossy(1, after(-1, 2))),
        ({"empty": 1}, {1, 2}, led(-1, 1, eligible=(2,)), after(2, 2)),
        ({"empty": 1}, {1}, led(-1, 2, eligible=(1, 3)), emptied(1, -1, 2, eligible=(3,))),
        ({"empty": 3}, {1, 3}, led(1, 1), None),
        # Nobody has, and some have what was flushed.
        ({"unflushed": 1}, {1}, led(1, 1), recovering(after(1, 1))),
        ({"unflushed": 1}, {1, 3}, led(-1, 1), recovering(after(1, 1))),
        ({"unflushed": 2, "empty": 1}, {1, 2}, led(-1, 1, 2), recovering(after(2, 2))),
        ({"unflushed": 2, "empty": 1}, {1, 2}, led(-1, 1, eligible=(2,)), recovering(after(2, 2))),
        # All have lost everything.
        ({"empty": 1}, {1}, led(1, 1), emptied(1, -1, 1)),
        ({"empty": 1}, {1, 3}, led(-1, 1), emptied(1, -1, 1)),
    ],
)
def test_who_may_lack_records_leads_only_if_nobody_else_ever_can(
    lost: dict[str, int], alive: set[int], before: LeaderAndIsr, expected: LeaderAndIsr | None
) -> None:
    assert lossy(cluster(alive, (1, 2, 3), before, min_isr=2), **lost) == expected


def test_two_that_lack_what_was_unflushed_are_no_isr_together() -> None:
    made = cluster({1, 2}, (1, 2), led(-1, 2, 1))
    lossy(made, unflushed=1)
    assert lossy(made, unflushed=2) == left_lossy(2, recovering(after(1, 1)))  # both are


# One lost its page cache and left the ISR, before the disk of the other is lost

SECOND_LEADS = left_lossy(1, led(2, 2))


@pytest.mark.parametrize(
    ("lost", "alive", "expected"),
    [
        ({"empty": 2}, {1, 2}, recovering(after(1, 1))),
        ({"empty": 2}, {1, 2, 3}, recovering(after(1, 1))),
        ({"empty": 2}, {2}, left_lossy(1, emptied(2, -1, 2))),  # until the other is back
        ({}, {1}, left_lossy(1, after(-1, 2))),  # the other has it all, and may be back
        ({"unflushed": 2}, {1, 2}, left_lossy(1, recovering(after(2, 2)))),
        ({"empty": 1}, {1, 2}, after(2, 2)),
    ],
)
def test_who_lost_its_page_cache_leads_once_the_disks_of_all_others_are_lost(
    lost: dict[str, int], alive: set[int], expected: LeaderAndIsr
) -> None:
    assert lossy(cluster(alive, (1, 2, 3), SECOND_LEADS), **lost) == expected


def test_who_lost_its_page_cache_is_elected_when_it_is_back_and_the_others_were_emptied() -> None:
    waiting = left_lossy(1, led(-1, 2))._replace(emptied=(2,))
    assert planned(cluster({1, 2}, (1, 2), waiting)) == recovering(after(1, 1))
    assert lossy(cluster({1, 2}, (1, 2), waiting), empty=1) == (
        after(-1, 2)._replace(emptied=(1, 2))
    )


def test_who_lost_its_page_cache_has_all_again_once_it_is_in_the_isr() -> None:
    made = cluster({1}, (1, 2), left_lossy(1, led(2, 2, 1)))
    assert planned(made) == after(1, 1)


FLUSHED = {"clicks": {0, 2}}


def test_a_replica_that_had_exposed_only_what_it_had_flushed_loses_nothing_with_a_page_cache() -> (
    None
):
    made = cluster({1, 2}, (1, 2), led(1, 1))
    assert lossy(made, FLUSHED, unflushed=1) == after(1, 1)
    assert lossy(made, FLUSHED, empty=1) == emptied(1, -1, 1)


@pytest.mark.parametrize("flushed", [{}, {"clicks": {1}}, {"views": {0}}])
@pytest.mark.parametrize("is_set", [False, True])
def test_what_a_topic_is_set_to_now_makes_no_replica_trusted(
    flushed: dict[str, set[int]], is_set: bool
) -> None:
    made = cluster({1, 2}, (1, 2), led(2, 1, 2))
    made.settings_of = lambda _: TopicSettings(flush_before_expose=is_set)
    assert lossy(made, flushed, unflushed=1) == left_lossy(1, after(2, 2))


class Named(dict[str, Set[int]]):
    """As many as a large broker's, so nobody is to go through all of them."""

    def items(self) -> Never:
        raise AssertionError("all were looked at")

    __iter__ = keys = values = items


def test_to_plan_for_a_partition_nobody_goes_through_all_that_a_broker_has_flushed() -> None:
    made = cluster({1, 2}, (1, 2), led(1, 1))
    assert lossy(made, Named(FLUSHED), unflushed=1) == after(1, 1)


def test_of_those_who_lost_their_page_caches_one_that_had_flushed_leads() -> None:
    made = cluster({1, 2}, (1, 2), led(1, 1, 2))
    lossy(made, unflushed=1)
    assert lossy(made, FLUSHED, unflushed=2) == left_lossy(1, after(2, 2))


def test_who_was_emptied_is_not_elected_later_either_until_somebody_else_leads() -> None:
    made = cluster({1}, (1, 2), led(-1, 1))
    state = lossy(made, empty=1)
    assert state is not None
    made.put_states({CLICKS: state})
    made.vetted_disks |= made.unvetted_disks()
    assert planned(made) is None
    assert planned(made, {1}) is None
    made.brokers[2] = live(2)
    assert planned(made) is None


def test_a_broker_that_does_not_tell_its_disk_is_trusted_as_kafkas_are() -> None:
    made = cluster({1}, (1,), led(-1, 1))
    made.vetted_disks[1] = VettedDisk("disk", "content")
    assert planned(made) == after(1, 1)


@pytest.mark.parametrize(
    ("alive", "before", "expected"),
    [
        ({2, 3}, led(1, 1), recovering(after(2, 2))),
        ({3}, led(-1, 1, eligible=(2,)), recovering(after(3, 3))),
        # Not while anybody has all that is committed.
        ({2, 3}, led(1, 1, 3), after(3, 3, eligible=(1,))),
        ({2, 3}, led(-1, 1, eligible=(3,)), after(3, 3, eligible=(1,))),
        ({4}, led(1, 1), after(-1, 1)),
    ],
)
def test_a_topic_that_allows_it_gets_any_replica_for_a_leader_when_no_other_is_left(
    alive: set[int], before: LeaderAndIsr, expected: LeaderAndIsr
) -> None:
    made = cluster(alive, (1, 2, 3), before)
    settings = TopicSettings(min_insync_replicas=2, unclean_leader_election_enable=True)
    made.settings_of = lambda _: settings
    assert planned(made) == expected


def unclean(alive: set[int], before: LeaderAndIsr) -> ControllerContext:
    made = cluster(alive, (1, 2), before)
    made.settings_of = lambda _: TopicSettings(unclean_leader_election_enable=True)
    return made


def test_a_leader_that_was_away_for_a_moment_gives_way_to_nobody_that_is_not_in_sync() -> None:
    made = unclean({1, 2}, led(1, 1))
    assert planned(made, {1}) == after(1, 1)


def test_a_leader_about_to_stop_gives_way_to_nobody_that_is_not_in_sync() -> None:
    assert stopping(1, unclean({1, 2}, led(1, 1))) is None


def test_a_new_disk_is_not_elected_where_a_topic_allows_unclean_elections_either() -> None:
    made = unclean({1}, led(-1, 1))
    assert lossy(made, empty=1) == emptied(1, -1, 1)
    assert lossy(unclean({1, 2}, led(-1, 1)), empty=1) == recovering(after(2, 2))


def test_an_election_is_unclean_once() -> None:
    before, first = led(1, 1), recovering(led(1, 1))
    assert is_unclean(before, first)
    assert not is_unclean(first, recovering(led(-1, 1)))
    assert not is_unclean(recovering(led(-1, 1)), first)
    assert is_unclean(first, recovering(led(2, 2)))
    assert not is_unclean(first, before)


def test_partitions_of_topics_queued_for_deletion_are_left_alone() -> None:
    before = cluster({2}, (1,), led(1, 1))
    before.queue_for_deletion("clicks")
    assert plan_for_broker_change(before, before.partitions(), EPOCH) == {}


replicas = st.lists(st.integers(1, 5), min_size=1, max_size=5, unique=True)


@given(replicas, st.data(), st.sets(st.integers(1, 5)), st.integers(1, 5))
def test_a_leader_is_alive_and_in_the_isr_and_has_all_that_is_committed(
    assigned: list[int], data: st.DataObject, alive: set[int], min_isr: int
) -> None:
    isr = tuple(data.draw(st.lists(st.sampled_from(assigned), min_size=1, unique=True)))
    others = [each for each in assigned if each not in isr and len(isr) < min_isr]
    eligible = tuple(each for each in others if data.draw(st.booleans()))
    before = Election(data.draw(st.sampled_from([*isr, -1])), isr, eligible)
    candidates = Candidates(assigned, alive, alive, min_isr)
    after = elect(before, candidates)
    assert after.isr
    assert {*after.isr, *after.eligible} <= {*isr, *eligible}
    if alive & {*isr, *eligible}:
        assert after.leader in alive & set(after.isr)
    else:
        assert after == Election(-1, isr, eligible)
    if len(after.isr) < min_isr:
        assert {*after.isr, *after.eligible} == {*isr, *eligible}
    else:
        assert not after.eligible
    assert elect(after, candidates) == after


@given(replicas, st.lists(st.tuples(st.sets(st.integers(1, 5)), st.sets(st.integers(1, 5)))))
def test_every_history_of_brokers_keeps_to_the_table_and_only_raises_epochs(
    assigned: list[int], history: list[tuple[set[int], set[int]]]
) -> None:
    made = cluster(set(), tuple(assigned), None)
    for alive, bounced in history:
        newest = made.newest_registration
        made.brokers = {i: live(i, newest + (i in bounced)) for i in alive}
        before = made.leader_and_isr(CLICKS)
        plan = plan_for_broker_change(made, [CLICKS], EPOCH)
        made.put_states(plan)  # asserts that the table allows it
        after = made.leader_and_isr(CLICKS)
        if before and after and before != after:
            assert after.leader_epoch == before.leader_epoch + 1
            assert after.zk_version == before.zk_version + 1


def test_partition_states_follow_from_the_cluster_state() -> None:
    made = cluster({1}, (1,), None)
    assert made.partition_state(TopicPartition("clicks", 9)) is NON_EXISTENT
    assert made.partition_state(CLICKS) is NEW
    made.put_states({CLICKS: led(1, 1)})
    assert made.partition_state(CLICKS) is ONLINE
    made.queue_for_deletion("clicks")
    assert made.partition_state(CLICKS) is OFFLINE
    made.drop_topics(["clicks"])
    assert made.partition_state(CLICKS) is NON_EXISTENT
    assert not made.queued_for_deletion


def test_each_state_can_be_reached_and_left() -> None:
    assert set(ALLOWED) == set(PartitionState)
    assert {state for after in ALLOWED.values() for state in after} == set(PartitionState)
    assert all(ALLOWED.values())
