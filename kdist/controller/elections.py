"""Who leads a partition, and what changes when brokers come, go or want to go (pure).

    election             who may lead, by order of assignment      ISR after it       if nobody may
    broker change        ISR members that are alive, and not       the members        leader -1, the
                         about to stop; a living leader stays      that are alive     ISR stays
                         else eligible replicas that are alive,    the leader alone
                         and not about to stop
                         else, once all of those have lost         the leader alone:
                         everything, one that lost its page cache  it is recovering
                         else, where a topic allows it, any        likewise
                         replica that is (unclean election)
    preferred            the first assigned replica, if it is in   stays as it was    all stays as
                         the ISR, alive and not about to stop                         it was
    ordered, unclean     as after a broker change; then any        likewise           all stays as
                         replica that is alive, new disks last                        it was
    controlled shutdown  ISR members that are alive, and not       without those      all stays as
                         about to stop; then eligible replicas     about to stop      it was

So an ISR never becomes empty: one of its last members can lead again when it is back. Each change
raises the leader epoch. A broker that has re-registered ("bounced") counts as gone and back: what
it writes after its restart must not share an epoch with what it may have lost.
Eligible is who leaves an ISR that is then below its minimum, until the ISR is back at it. Meanwhile
the high watermark stands still, so those replicas have all that is committed (KIP-966).

A plan maps partitions to their next state, with the zk version that writing it will produce.
Source: Apache Kafka's `Election` and `ReplicaStateMachine`; KIP-966.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, islice, zip_longest
from typing import NamedTuple

from kdist.controller.context import FIRST_ZK_VERSION, ControllerContext, Loss, Topic
from kdist.model import NO_LEADER, LeaderAndIsr, TopicPartition

Plan = dict[TopicPartition, LeaderAndIsr]
Planner = Callable[[ControllerContext, Iterable[TopicPartition], int], Plan]
"""Plans for these partitions, in this controller epoch. One that needs no change is left out."""


class Election(NamedTuple):
    """What an election decides of a partition's state."""

    leader: int
    isr: tuple[int, ...]
    eligible: tuple[int, ...] = ()
    is_recovering: bool = False
    emptied: tuple[int, ...] = ()
    lossy: tuple[int, ...] = ()

    @classmethod
    def of(cls, state: LeaderAndIsr) -> Election:
        """What was decided last."""
        is_recovering, emptied = state.is_recovering, state.emptied
        return cls(state.leader, state.isr, state.eligible, is_recovering, emptied, state.lossy)


class Candidates(NamedTuple):
    """A partition's assigned replicas, and what the brokers can do: be alive, and also lead.

    `unflushed` and `empty` are those that may lack what they had not flushed, or everything.
    """

    assigned: Sequence[int]
    alive: Collection[int]
    electable: Collection[int]
    min_isr: int
    unflushed: Collection[int] = ()
    empty: Collection[int] = ()
    allows_unclean: bool = False
    allows_empty: bool = False

    def without(self, broker_ids: Collection[int]) -> Candidates:
        """The same while these brokers are gone, but only for a moment: nothing unclean."""
        return self._replace(
            allows_unclean=False,
            alive=[each for each in self.alive if each not in broker_ids],
            electable=[each for each in self.electable if each not in broker_ids],
        )


def _plan(
    cluster: ControllerContext,
    partitions: Iterable[TopicPartition],
    controller_epoch: int,
    decide: Callable[[TopicPartition, LeaderAndIsr], Election | None],
    *,
    begins_new: bool = False,
) -> Plan:
    """What `decide` finds for each; None leaves it as it is.

    Partitions without a state are left out, or get their first one.
    """
    plan: Plan = {}
    for partition in partitions:
        state = cluster.leader_and_isr(partition)
        if state is not None:
            after = decide(partition, state)
            if after is not None:
                plan[partition] = next_state(state, after, controller_epoch)
        elif begins_new:
            assigned = cluster.replicas(partition)
            plan[partition] = first_state(assigned, cluster.electable, controller_epoch)
    return plan


def plan_for_broker_change(
    cluster: ControllerContext, partitions: Iterable[TopicPartition], controller_epoch: int
) -> Plan:
    """What changes now that the set of live brokers has. New partitions get their first state."""
    candidates_for = _candidates(cluster)

    def decide(partition: TopicPartition, state: LeaderAndIsr) -> Election | None:
        before, candidates = Election.of(state), candidates_for(partition)
        elected = vetted = vet(before, candidates)
        bounced = cluster.bounced(partition)
        if bounced:
            elected = elect(vetted, candidates.without(bounced))
        after = elect(elected, candidates)
        is_same = before == vetted == elected == after
        return None if is_same and state.zk_version >= FIRST_ZK_VERSION else after

    return _plan(cluster, partitions, controller_epoch, decide, begins_new=True)


def _candidates(cluster: ControllerContext) -> Callable[[TopicPartition], Candidates]:
    """The candidates for each partition as the brokers are now."""
    alive, electable = cluster.alive, cluster.electable
    unflushed = [each for each in alive if cluster.loss(each) is Loss.UNFLUSHED]
    empty = [each for each in alive if cluster.loss(each) is Loss.ALL]

    def candidates_for(partition: TopicPartition) -> Candidates:
        settings = cluster.settings_of(partition.topic)
        return Candidates(
            assigned=cluster.replicas(partition),
            alive=alive,
            electable=electable,
            min_isr=cluster.min_isr(partition),
            unflushed=[e for e in unflushed if not cluster.has_flushed(e, partition)],
            empty=empty,
            allows_unclean=settings.unclean_leader_election_enable,
        )

    return candidates_for


def plan_for_shutdown(
    cluster: ControllerContext, partitions: Iterable[TopicPartition], controller_epoch: int
) -> Plan:
    """What changes so that brokers about to stop neither lead nor hold up acknowledgements."""
    candidates_for = _candidates(cluster)

    def decide(partition: TopicPartition, state: LeaderAndIsr) -> Election | None:
        before, candidates = Election.of(state), candidates_for(partition)
        after = elect(before, candidates._replace(alive=candidates.electable, allows_unclean=False))
        return None if after.leader == NO_LEADER or after == before else after

    return _plan(cluster, partitions, controller_epoch, decide)


def plan_for_preferred(
    cluster: ControllerContext, partitions: Iterable[TopicPartition], controller_epoch: int
) -> Plan:
    """Have partitions led by their preferred replicas, where these are in sync."""

    def decide(partition: TopicPartition, state: LeaderAndIsr) -> Election | None:
        if not may_lead_by_preference(cluster, partition, state):
            return None
        return Election.of(state)._replace(leader=cluster.replicas(partition)[0])

    return _plan(cluster, partitions, controller_epoch, decide)


def may_lead_by_preference(
    cluster: ControllerContext, partition: TopicPartition, state: LeaderAndIsr
) -> bool:
    """Whether another leads, and the preferred replica could."""
    preferred = cluster.replicas(partition)[0]
    is_able = preferred in state.isr and cluster.is_electable(preferred)
    return is_able and state.leader not in (preferred, NO_LEADER)


def choose_imbalanced(
    cluster: ControllerContext, percentage: int, most: int
) -> list[TopicPartition]:
    """The partitions to give back to their preferred replicas, at most so many (pure).

    Those of each broker that lacks more than `percentage` of the partitions that it should lead;
    the brokers take turns.
    """
    should, moving = {**cluster.tally.preferred}, cluster.tally.moving
    for partition in moving:  # a target's first replica may still be empty
        should[cluster.replicas(partition)[0]] -= 1
    lacking: dict[int, list[TopicPartition]] = {}
    for partition in sorted(imbalanced(cluster)):
        lacking.setdefault(cluster.replicas(partition)[0], []).append(partition)
    found: list[list[TopicPartition]] = []
    for broker_id, partitions in sorted(lacking.items()):
        if 100 * len(partitions) > percentage * should[broker_id]:
            found.append([each for each in partitions if _can_be_given_back(cluster, each)])
    turns: Iterable[TopicPartition | None] = chain.from_iterable(zip_longest(*found))
    return list(islice((each for each in turns if each is not None), most))


def imbalanced(cluster: ControllerContext) -> set[TopicPartition]:
    """Those not led by their preferred replica, nor on their way to another one."""
    return cluster.tally.imbalanced.keys() - cluster.tally.moving.keys()


def _can_be_given_back(cluster: ControllerContext, partition: TopicPartition) -> bool:
    state = cluster.leader_and_isr(partition)
    return state is not None and may_lead_by_preference(cluster, partition, state)


def plan_for_unclean(
    cluster: ControllerContext, partitions: Iterable[TopicPartition], controller_epoch: int
) -> Plan:
    """Have partitions that nobody leads led by any live replica: an operator has ordered it."""
    candidates_for = _candidates(cluster)

    def decide(partition: TopicPartition, state: LeaderAndIsr) -> Election | None:
        if state.leader in cluster.alive:
            return None
        any_of_them = candidates_for(partition)._replace(allows_unclean=True, allows_empty=True)
        after = elect(Election.of(state), any_of_them)
        return None if after.leader == NO_LEADER else after

    return _plan(cluster, partitions, controller_epoch, decide)


def plan_for_new(
    topics: Iterable[Topic], electable: Collection[int], controller_epoch: int
) -> Plan:
    """The first states of all partitions of topics that are about to be created."""
    return {
        partition: first_state(topic.assignment[partition.partition], electable, controller_epoch)
        for topic in topics
        for partition in topic.partitions
    }


def first_state(
    assigned: tuple[int, ...], electable: Collection[int], controller_epoch: int
) -> LeaderAndIsr:
    """The first state of a new partition, which is offline if no replica is alive.

    Kafka writes no state in that case, and clients see one partition too few. All replicas are then
    in the ISR: they are empty, so any of them may lead later.
    """
    isr = tuple(replica for replica in assigned if replica in electable)
    leader = isr[0] if isr else NO_LEADER
    return LeaderAndIsr(leader, 0, isr or assigned, controller_epoch, FIRST_ZK_VERSION)


def vet(before: Election, candidates: Candidates) -> Election:
    """What is left of ISR and eligible replicas, by what these may lack (`Loss`; design R4).

    of all the members                      the ISR then                     who leads
    some have lost nothing, dead or alive   those of them in it; else those  one of them
                                            of them that were eligible
    the rest lacks only what was unflushed  that rest; who is elected, alone one of that rest, which
                                                                             is recovering
    all have lost everything                stays as it was                  nobody: `emptied`

    What was unflushed does not count where a broker tells that its log had exposed nothing of it,
    whatever the topic's settings are now. Who lacks only that stays `lossy` until it is in the ISR
    again.
    """
    lossy = {*candidates.unflushed, *candidates.empty}
    if lossy.isdisjoint((*before.isr, *before.eligible, *before.lossy)):
        return before
    rest = tuple(e for e in (*before.isr, *before.eligible) if e in candidates.unflushed)
    known = dict.fromkeys((*before.lossy, *rest))
    before = before._replace(lossy=tuple(e for e in known if e not in candidates.empty))
    isr = tuple(each for each in before.isr if each not in lossy)
    eligible = tuple(each for each in before.eligible if each not in lossy)
    leader = before.leader if before.leader in isr else NO_LEADER
    if isr:
        is_below = len(isr) < candidates.min_isr
        return before._replace(leader=leader, isr=isr, eligible=eligible if is_below else ())
    if eligible:
        return before._replace(leader=leader, isr=eligible, eligible=())
    is_recovering = before.is_recovering or bool(rest)
    isr = rest or before.isr
    return before._replace(leader=leader, isr=isr, eligible=(), is_recovering=is_recovering)


def elect(before: Election, candidates: Candidates) -> Election:
    """What exactly these brokers being alive gives."""
    isr = tuple(replica for replica in before.isr if replica in candidates.alive)
    if before.leader in isr:
        return _led(before, before.leader, isr, candidates)
    unfit = {*before.emptied, *candidates.empty}
    fit = [e for e in candidates.assigned if e in candidates.electable and e not in unfit]
    leader = next((each for each in fit if each in isr), NO_LEADER)
    if leader != NO_LEADER:
        return _led(before, leader, (leader,) if before.is_recovering else isr, candidates)
    leader = next((each for each in fit if each in before.eligible), NO_LEADER)
    if leader != NO_LEADER:
        return _led(before, leader, (leader,), candidates)
    if unfit.issuperset((*before.isr, *before.eligible)):
        leader = next((each for each in fit if each in before.lossy), NO_LEADER)
    if leader == NO_LEADER:
        leader = _last_resort(fit, candidates)
    if leader != NO_LEADER:
        lossy = _outside((leader,), before.lossy)
        return Election(leader, (leader,), is_recovering=True, lossy=lossy)
    after = _led(before, NO_LEADER, before.isr, candidates)
    return after._replace(emptied=tuple(each for each in candidates.assigned if each in unfit))


def _last_resort(fit: Sequence[int], candidates: Candidates) -> int:
    if not candidates.allows_unclean:
        return NO_LEADER
    empty = candidates.assigned if candidates.allows_empty else ()
    return next(iter((*fit, *(e for e in empty if e in candidates.electable))), NO_LEADER)


def _led(before: Election, leader: int, isr: tuple[int, ...], candidates: Candidates) -> Election:
    eligible = eligible_after(before, isr, candidates.assigned, candidates.min_isr)
    lossy = before.lossy if leader == NO_LEADER else _outside(isr, before.lossy)
    return Election(leader, isr, eligible, before.is_recovering, lossy=lossy)


def _outside(isr: Collection[int], replicas: Iterable[int]) -> tuple[int, ...]:
    return tuple(each for each in replicas if each not in isr)


def is_unclean(before: LeaderAndIsr, after: LeaderAndIsr) -> bool:
    """Whether the leader was elected though committed records may be lost by that."""
    is_known = before.is_recovering and after.leader in (NO_LEADER, *before.isr)
    return after.is_recovering and not is_known


def eligible_after(
    before: Election | LeaderAndIsr, isr: Collection[int], assigned: Sequence[int], min_isr: int
) -> tuple[int, ...]:
    """The eligible replicas once this is the ISR, in the order of assignment.

    None after an unclean election: all that anybody else has is about to be truncated.
    """
    if len(isr) >= min_isr or before.is_recovering:
        return ()
    have_all = {*before.isr, *before.eligible}
    return tuple(each for each in assigned if each in have_all and each not in isr)


def next_state(state: LeaderAndIsr, after: Election, controller_epoch: int) -> LeaderAndIsr:
    """The state that follows, in a new leader epoch."""
    return LeaderAndIsr(
        leader=after.leader,
        leader_epoch=state.leader_epoch + 1,
        isr=after.isr,
        controller_epoch=controller_epoch,
        zk_version=state.zk_version + 1,
        eligible=after.eligible,
        is_recovering=after.is_recovering,
        emptied=after.emptied,
        lossy=after.lossy,
    )
