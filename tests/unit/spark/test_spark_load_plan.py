"""Which offsets a load has, and when there can be none."""

from __future__ import annotations

import uuid

import pytest

from kdist.errors import UserError
from kdist.model import ZERO_UUID, OffsetRange
from kdist.spark.load.manifest import DataFile, Manifest, chain_fault
from kdist.spark.load.plan import Topic, plan_load, plan_replay, require_replayed

ID = uuid.UUID(int=7)


def topic(**offsets: tuple[int, int]) -> Topic:
    """A topic with partitions p0, p1, ..."""
    found = {int(name[1:]): OffsetRange(*each) for name, each in offsets.items()}
    return Topic("clicks", ID, found)


def made(load: int, lost: int = 0, **offsets: tuple[int, int]) -> Manifest:
    """A load of it."""
    found = topic(**offsets).offsets
    return Manifest(load, "clicks", str(ID), "job", "0", 0, 0, found, lost, 0, (), ())


def test_the_first_load_has_every_record_there_is() -> None:
    plan = plan_load(topic(p0=(5, 20), p1=(0, 0)), None)
    assert (plan.number, plan.offsets) == (1, {0: (5, 20), 1: (0, 0)})


def test_the_next_begins_where_the_last_ended_and_new_partitions_at_their_beginning() -> None:
    plan = plan_load(topic(p0=(5, 30), p1=(0, 9)), made(3, p0=(0, 20)))
    assert (plan.number, plan.offsets, plan.lost) == (4, {0: (20, 30), 1: (0, 9)}, 0)


def test_with_nothing_new_there_is_nothing_to_load() -> None:
    assert plan_load(topic(p0=(5, 20)), made(1, p0=(5, 20))).is_empty
    assert not plan_load(topic(p0=(5, 21)), made(1, p0=(5, 20))).is_empty


@pytest.mark.parametrize(
    ("now", "before", "sentence"),
    [
        (
            topic(p0=(30, 40)),
            made(1, p0=(0, 20)),
            "clicks-0 is to be loaded from 20 on, but begins at 30 now: retention deleted 10"
            " records before they were loaded; with --accept-loss, a load goes on after them",
        ),
        (
            topic(p0=(0, 10)),
            made(1, p0=(0, 20)),
            "clicks-0 was loaded up to 20, but ends at 10 now: the brokers have lost records that"
            " were loaded",
        ),
        (
            topic(p0=(0, 20)),
            made(1, p0=(0, 20), p1=(0, 5)),
            "clicks has no partition 1, but the output has records of it: it is"
            " not the topic that was loaded",
        ),
        (
            topic(p0=(0, 20))._replace(id=uuid.UUID(int=8)),
            made(1, p0=(0, 20)),
            "clicks is not the topic that was loaded before: it was deleted and recreated, or is"
            " another cluster's; give it an output of its own",
        ),
    ],
)
def test_a_load_that_would_lose_records_is_refused(
    now: Topic, before: Manifest, sentence: str
) -> None:
    with pytest.raises(UserError) as refused:
        plan_load(now, before)
    assert str(refused.value) == sentence


def test_other_records_in_the_place_of_loaded_ones_are_noticed() -> None:
    before = made(1, p0=(0, 20))._replace(epochs={0: 4})
    now = topic(p0=(0, 40))._replace(epochs={0: 6}, ends={0: 12})
    with pytest.raises(UserError) as refused:
        plan_load(now, before)
    assert str(refused.value) == (
        "clicks-0 was loaded up to 20 in leader epoch 4, which ends at 12 now: the brokers have"
        " lost records that were loaded, and have others in their place"
    )
    with pytest.raises(UserError, match="which ends at 12 now"):
        plan_replay(now, None, [before])
    assert plan_load(now._replace(ends={0: 20}), before).offsets == {0: (20, 40)}
    assert plan_load(now._replace(ends={}), before).offsets == {0: (20, 40)}


def test_an_accepted_loss_is_kept_in_the_plan_and_does_not_break_the_chain() -> None:
    before = made(1, p0=(0, 20))
    plan = plan_load(topic(p0=(30, 40)), before, accept_loss=True)
    assert (plan.offsets, plan.lost) == ({0: (30, 40)}, 10)
    assert chain_fault(before, made(2, lost=10, p0=(30, 40))) is None


def test_without_topic_ids_a_recreated_topic_goes_unnoticed() -> None:
    now = topic(p0=(0, 30))._replace(id=ZERO_UUID)
    assert plan_load(now, made(1, p0=(0, 20))).offsets == {0: (20, 30)}


def test_a_replay_has_the_offsets_of_the_loads_it_replaces_and_those_since() -> None:
    replayed = [made(2, p0=(10, 20)), made(3, p0=(20, 30), p1=(0, 5))]
    plan = plan_replay(topic(p0=(0, 40), p1=(0, 8)), made(1, p0=(0, 10)), replayed)
    assert (plan.number, plan.supersedes) == (2, (2, 3))
    assert plan.offsets == {0: (10, 40), 1: (0, 8)}


def test_a_replay_of_deleted_records_is_refused() -> None:
    with pytest.raises(UserError, match="from 10 on, but begins at 15 now"):
        plan_replay(topic(p0=(15, 40)), None, [made(2, p0=(10, 20))])
    with pytest.raises(UserError, match="clicks-0 was loaded up to 30, but ends at 25 now"):
        plan_replay(topic(p0=(0, 25)), None, [made(2, p0=(10, 20)), made(3, p0=(20, 30))])


def test_a_replay_that_finds_fewer_records_than_were_loaded_is_refused() -> None:
    loads = [
        made(number, p0=(10 * number, 10 * number + 10))._replace(files=(DataFile("x", 8, 1),))
        for number in (1, 2)
    ]
    plan = plan_replay(topic(p0=(0, 40)), None, loads)
    require_replayed(plan, 16)
    with pytest.raises(UserError, match="from load 1 on: 1 of its 16 records are gone"):
        require_replayed(plan, 15)


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        (made(3, p0=(20, 30)), "load 3 follows load 1: those between are missing"),
        (
            made(2, p0=(15, 30)),
            "load 2 begins at 15 in partition 0, but load 1 ended at 20",
        ),
        (
            made(2, p0=(25, 30)),
            "load 2 begins at 25 in partition 0, but load 1 ended at 20",
        ),
    ],
)
def test_a_broken_chain_is_reported(after: Manifest, sentence: str) -> None:
    assert chain_fault(made(1, p0=(0, 20)), after) == sentence
    assert chain_fault(made(1, p0=(0, 20)), made(2, p0=(20, 30))) is None
