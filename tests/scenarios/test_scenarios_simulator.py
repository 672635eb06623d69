"""A few of the simulator's histories, what its checker notices, and what its faults rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import Parameter, Signature, signature
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from kdist.client.admin.clients import AsyncAdmin
from kdist.controller import elections, isr_proposals
from kdist.model import TopicPartition
from kdist.records.batch import BatchHeader
from kdist.replication.in_sync import InSyncReplicas
from kdist.storage import producers
from kdist.storage.producers import ProducerState
from kdist.testing.simulated_transport import SimulatedTransport
from kdist.zk.client import Create, SessionState
from kdist.zk.errors import ConnectionLoss
from kdist.zk.session import Multi
from tests.examples import first_of
from tests.simulator.__main__ import options, parsed, script_of
from tests.simulator.bug import Bug, Edit, Planted, patched, places_of
from tests.simulator.cluster import PORT, Cluster, produce
from tests.simulator.compacted import Kept, Table
from tests.simulator.copies import Batch, Copies, Copy
from tests.simulator.messages import FETCHED, LEADER_AND_ISR, Messages, Wanted
from tests.simulator.planted import PLANTED
from tests.simulator.playing import run
from tests.simulator.record import Trace
from tests.simulator.script import Script
from tests.simulator.shrinking import promise, shrink, smaller

TWICE = range(4)
EXPLAINED = (130, 181)  # they broke promises once
ONCE = (*EXPLAINED, *range(TWICE.stop, 100))

SEEDS = range(16)


def _take_old_epochs(check: Callable[..., None]) -> Callable[..., None]:
    def check_newer(producer: ProducerState, header: BatchHeader) -> None:
        if header.producer_epoch >= producer.epoch:
            check(producer, header)

    return check_newer


NOBODY_IS_ELIGIBLE = tuple(
    Bug(owner, "eligible_after", lambda _: lambda *_given: ())
    for owner in (elections, isr_proposals)
)
BUGS: dict[str, tuple[Planted, str]] = {
    "S1: who leaves an ISR below its minimum is not eligible": (NOBODY_IS_ELIGIBLE, "S1"),
    "S6: a leader does not wait for others to delete records": (
        Bug(InSyncReplicas, "lowest_start", lambda _: lambda _self, start: start),
        "S6",
    ),
    "S10: an epoch that was replaced is taken": (
        Bug(producers, "_check_order", _take_old_epochs),
        "S10",
    ),
    **{
        f"{promise}: {name}": (PLANTED[name], promise)
        for promise, name in (
            ("S18", "a follower tells of what it has not flushed"),
            ("S3", "a follower joins at the high watermark (7128)"),
            ("C1", "a save serves those who asked during it"),
            ("C2", "a log is cut before its recovery point is lowered on the disk"),
            ("C9", "an assignment is given out before it is in the log"),
            ("C13", "a state that is no newer ends a proposal"),
            ("C13", "an answer to a proposal that was replaced takes the newer away"),
            ("C14", "a flush that failed is asked for no more"),
            ("C15", "a start keeps the epochs of what it cuts off"),
            ("C16", "a batch from before those remembered is taken for a retry"),
        )
    },
}

IDS = (1, 2, 3)


def arrivals_of_a_join(seed: int) -> list[tuple[float, str]]:
    """Hold what a follower's Fetch is answered until the controller tells of another topic; when
    something arrived at the follower then, and from whom."""
    cluster = Cluster(seed)
    trace = Trace(cluster)
    messages = Messages(trace, IDS, cluster.rng)
    found: list[tuple[float, str, str]] = []

    def noting(arrive: Callable[..., None]) -> Callable[..., None]:
        def noted(self: SimulatedTransport, piece: bytes) -> None:
            if trace.sometimes:
                found.append((trace.now_s, self.remote.host, self.local.host))
            arrive(self, piece)

        return noted

    async def scenario() -> str:
        messages.begin()
        for each in IDS:
            await cluster.started(each)  # the first of them is the controller
        network = cluster.network.host("operator")
        async with AsyncAdmin([f"m1:{PORT}"], network=network) as admin:
            await admin.create_topic("held", 1, 3)
            hosts = {each.id: each.service.replicas.partitions for each in cluster.brokers.values()}
            await cluster.until(lambda: all(("held", 0) in each for each in hosts.values()))
            (leader,) = (i for i, each in hosts.items() if each["held", 0].is_leader)
            follower = next(each for each in (2, 3) if each != leader)
            messages.hold(follower, Wanted(FETCHED, leader, (LEADER_AND_ISR,), 30.0))
            await produce(await cluster.client(leader), "held", b"record", acks=1)
            await cluster.until(lambda: messages._held)
            await admin.create_topic("told", 1, 3)
            log = hosts[follower]["held", 0].log
            await cluster.until(lambda: log.end_offset == 1)
        return f"m{follower}"

    with patched(Bug(SimulatedTransport, "arrive", noting)):
        follower = cluster.run(scenario())
    assert trace.sometimes[f"{FETCHED} joined with {LEADER_AND_ISR}"] == 1
    return [(at_s, sender) for at_s, sender, to in found if to == follower]


@pytest.mark.parametrize("seed", TWICE)
def test_a_random_history_keeps_every_promise_and_can_be_repeated(seed: int) -> None:
    one, two = run(seed), run(seed)
    assert one.violation == "", "\n".join(one.last_events)
    assert one.trace_hash == two.trace_hash


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_of(ONCE, 38, others=pytest.mark.stress))
def test_a_random_history_keeps_every_promise(seed: int) -> None:
    outcome = run(seed)
    assert outcome.violation == "", "\n".join(outcome.last_events)


def test_a_planted_bug_is_found() -> None:
    outcomes = (run(seed, "consumers read what is not committed") for seed in range(20))
    assert any(each.violation.startswith(("S16", "S17")) for each in outcomes)


def test_a_history_that_breaks_a_promise_is_made_smaller() -> None:
    bug = "consumers read what is not committed"
    outcomes = (run(seed, bug) for seed in range(20))
    found = next(each for each in outcomes if each.violation and len(each.faults) > 2)
    shortest, script = shrink(found, bug, seconds=10)
    assert len(script.faults) <= 1  # consumers need hardly a fault to read too far
    assert promise(shortest) == promise(found)
    printed = " ".join(options(found.seed, script))
    again = run(found.seed, bug, script_of(parsed(printed.split())))
    assert (again.violation, again.trace_hash) == (shortest.violation, shortest.trace_hash)


def test_the_faults_of_a_history_that_are_played_again_come_again() -> None:
    """Those at moments of the code, too, under the names that the command takes."""
    outcomes = (run(seed) for seed in range(20))
    whole = next(each for each in outcomes if sum("-at-" in name for name in each.faults) > 2)
    printed = " ".join(options(whole.seed, Script(whole.faults)))
    again = run(whole.seed, script=script_of(parsed(printed.split())))
    assert again.faults == whole.faults
    assert again.trace_hash == whole.trace_hash


@pytest.mark.parametrize(
    ("needed", "most_runs"), [(set(), 1), ({3}, 12), ({3, 11}, 40), (set(range(16)), 40)]
)
def test_what_is_not_needed_is_left_out(needed: set[int], most_runs: int) -> None:
    runs = []

    def is_enough(items: list[int]) -> bool:
        runs.append(items)
        return needed <= {*items}

    assert smaller(range(16), is_enough) == sorted(needed)
    assert len(runs) <= most_runs


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_called_as_what_it_replaces(name: str) -> None:
    for bug in places_of(PLANTED[name]):
        if isinstance(bug, Edit):
            continue
        sound = getattr(bug.owner, bug.name)
        with patched(bug):
            planted = getattr(bug.owner, bug.name)
        assert isinstance(sound, property) == isinstance(planted, property)
        if callable(sound):
            for given, named in _calls(signature(sound)):
                signature(planted).bind(*given, **named)  # a TypeError if it takes other arguments


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_line_is_in_the_code_until_the_history_is_over(name: str) -> None:
    for bug in places_of(PLANTED[name]):
        if isinstance(bug, Edit):
            sound = bug.sound.__code__
            with patched(bug):
                planted = bug.sound.__code__
            assert planted is not sound
            assert planted.co_freevars == sound.co_freevars
            assert bug.sound.__code__ is sound


def _calls(sound: Signature) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Arguments that it takes: those that it needs, and all."""
    every = sound.parameters.values()
    for some in [each for each in every if each.default is Parameter.empty], every:
        named = {each.name: each for each in some if each.kind is Parameter.KEYWORD_ONLY}
        yield [each for each in some if each.name not in named], named


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_that_excused_itself_is_noticed(name: str) -> None:
    bug, promise = BUGS[name]
    with patched(*places_of(bug)):
        outcomes = (run(seed) for seed in SEEDS)
        assert any(each.violation.startswith(f"{promise}:") for each in outcomes)


def _kept(base: int, key: bytes, value: bytes | None) -> Kept:
    return Kept(base, base + 1, -1, 0, {base: (key, value)})


def test_after_a_loss_the_last_of_a_key_is_what_was_before_it() -> None:
    table = Table(delete_retention_s=10.0)
    for base, value in enumerate((b"old", b"new")):
        table.commit(_kept(base, b"k", value), now_s=1.0)
    table.cut(1)
    assert (table.end, table.pairs) == (1, {0: (b"k", b"old")})
    assert table.fault([_kept(0, b"k", b"old")], 0, now_s=2.0) == ""
    assert table.fault([], 0, now_s=2.0) != ""


def test_only_a_last_value_must_not_be_cut_off_below_the_high_watermark() -> None:
    table = Table(delete_retention_s=10.0)
    for base, value in enumerate((b"old", b"new")):
        table.commit(_kept(base, b"k", value), now_s=1.0)
    assert not table.needs(0, 1)
    assert table.needs(1, 2)


def test_after_a_loss_a_replica_is_compared_again_from_where_it_was_lost() -> None:
    """Else who has what was lost, and is yet to be cut off, is taken for one who agrees."""
    copies, logs = Copies(Mock(now_s=1.0), {}, lambda _: True), list[Copy]()
    log, key = SimpleNamespace(start_offset=0, end_offset=2), TopicPartition("clicks", 0)
    for epoch in (1, 2):
        replica: Any = Mock(key=key, log=log, high_watermark=2)
        copy = copies._copies[replica] = Copy(replica, is_compacted=False)
        copy.batches = [Batch(0, 1, 0, crc=0), Batch(1, 2, epoch, crc=0)]
        logs.append(copy)
    before, after = logs
    found = copies.of(before.partition.key)
    copies._commit(found, before)
    assert copies._fault(found, before) == ""
    found.is_settled = False
    assert copies._fault(found, after) != ""
    copies._lose(found, after)
    copies._commit(found, after)
    assert copies._fault(found, before) != ""
    assert before.is_apart


def test_after_a_loss_what_its_leader_has_deleted_was_committed_too() -> None:
    found = Copies(Mock(now_s=1.0), {}, lambda _: True).of(TopicPartition("clicks", 0))
    found.end = 33
    for start, end in ((2, 33), (36, 36)):
        leader: Any = Mock(log=SimpleNamespace(start_offset=start, epochs=Mock()))
        found.settle(leader, 1.0)
        assert found.end == end


def test_a_message_that_is_held_arrives_at_one_moment_with_another_in_either_order() -> None:
    orders = set()
    for seed in range(8):
        arrivals = arrivals_of_a_join(seed)
        (joined,) = [(a, b) for (at_s, a), (then_s, b) in pairwise(arrivals) if at_s == then_s]
        orders.add(joined)
    assert len({frozenset(each) for each in orders}) < len(orders)  # both orders of two hosts


@pytest.mark.parametrize("is_carried_out", [False, True])
def test_a_write_is_lost_before_or_after_it_is_carried_out(is_carried_out: bool) -> None:
    cluster = Cluster(1)
    asked: list[bool] = []

    def is_to_be_lost(request: Any) -> bool:
        if isinstance(request, Multi):
            asked.append(True)
        return len(asked) == 1 + is_carried_out

    async def scenario() -> None:
        zk = cluster.ensemble.client()
        await zk.connect()
        cluster.ensemble.is_to_be_lost = is_to_be_lost
        with pytest.raises(ConnectionLoss):
            await zk.multi([Create("/written")])
        assert bool(cluster.ensemble.tree.exists("/written")) == is_carried_out
        await cluster.until(lambda: zk.state is SessionState.CONNECTED)
        cluster.ensemble.is_to_be_lost = lambda _request: False
        await zk.close()

    cluster.run(scenario())
