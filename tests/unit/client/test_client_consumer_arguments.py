"""Which arguments a consumer accepts from applications, and which it refuses before any effect."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest

from kdist import Admin, Producer, aio
from kdist.classic import SimpleConsumer
from kdist.client.consumer.aio import Consumer as AsyncConsumer
from kdist.client.consumer.arguments import (
    check_offset,
    checked_names,
    checked_partitions,
    checked_times,
    checked_topics,
    to_commit,
)
from kdist.client.consumer.consumer import Consumer
from kdist.client.offsets import OffsetAndMetadata
from kdist.errors import UserError
from kdist.model import TopicPartition

HERE = TopicPartition("clicks", 0)


class Whole:
    """Another library's integer."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize(
    "given",
    [
        "clicks",
        HERE,
        ["clicks"],
        ["ab"],
        [("clicks",)],
        [("clicks", "0")],
        [("clicks", None)],
        [("clicks", 1.0)],
        [("clicks", -1)],
        [("clicks", 1 << 31)],
        [("clicks", 0, 1)],
        [(None, 0)],
        [("a b", 0)],
        [None],
    ],
)
def test_an_invalid_partition_is_refused(given: Any) -> None:
    with pytest.raises(UserError, match=r"not a partition|topic|a list"):
        checked_partitions(given)


def test_partitions_may_be_pairs() -> None:
    assert checked_partitions([("clicks", 0), HERE]) == [HERE, HERE]  # type: ignore[list-item]
    assert all(type(each) is TopicPartition for each in checked_partitions([("clicks", 0)]))  # type: ignore[list-item]


@pytest.mark.parametrize("offset", [-1, 1 << 63, "1", None, 1.5, OffsetAndMetadata(1)])
def test_an_invalid_offset_is_neither_sought_nor_committed(offset: Any) -> None:
    with pytest.raises(UserError, match="is not an offset"):
        check_offset(offset, -1)
    with pytest.raises(UserError, match="is not an offset"):
        to_commit({HERE: OffsetAndMetadata(offset)})
    if not isinstance(offset, OffsetAndMetadata):
        with pytest.raises(UserError, match="is not an offset"):
            to_commit({HERE: offset})


@pytest.mark.parametrize("epoch", [-2, 1 << 31, "1", None, 1.5])
def test_an_invalid_epoch_is_refused(epoch: Any) -> None:
    with pytest.raises(UserError, match="is not a leader epoch"):
        check_offset(0, epoch)


def test_offsets_may_be_integers_of_any_library() -> None:
    number: Any = Whole()
    check_offset(number, number)
    assert to_commit({HERE: number}) == {HERE: OffsetAndMetadata(number)}
    assert to_commit({("clicks", 0): 7}) == {HERE: OffsetAndMetadata(7)}  # type: ignore[dict-item]


@pytest.mark.parametrize("time", [-1, -2, 1 << 63, "1", None, 1.5])
def test_an_invalid_timestamp_is_refused(time: Any) -> None:
    with pytest.raises(UserError, match="is no time"):
        checked_times({HERE: time})
    with Consumer("localhost:1") as consumer, pytest.raises(UserError, match="is no time"):
        consumer.seek_to_time(time)


def test_a_polls_limit_is_one_record_or_more() -> None:
    with Consumer("localhost:1") as consumer:
        for count in (0, -1):
            with pytest.raises(UserError, match=f"max_records must be 1 or more, not {count}"):
                consumer.poll(0, max_records=count)
            with pytest.raises(UserError, match=f"max_batches must be 1 or more, not {count}"):
                consumer.poll_batches(0, max_batches=count)


@pytest.mark.parametrize("timeout", ["1", float("nan"), [1], b"1"])
def test_an_invalid_timeout_is_refused(timeout: Any) -> None:
    """A timeout of NaN used to wait for ever."""
    with Consumer("localhost:1") as reader:
        reader.assign([HERE])
        with pytest.raises(UserError, match="timeout_s must be a number of seconds or None"):
            reader.poll(timeout)


@pytest.mark.parametrize("given", ["clicks", [HERE], None, 5])
def test_an_invalid_partition_is_refused_by_every_method(given: Any) -> None:
    with Consumer("localhost:1") as reader:
        for call in (reader.pause, reader.resume, reader.seek_to_end, reader.position):
            with pytest.raises(UserError, match="is not a partition"):
                call(given)
        with pytest.raises(UserError, match="is not a partition"):
            reader.seek(given, 0)


@pytest.mark.parametrize("given", [5, "clicks", [HERE]])
def test_offsets_that_are_not_a_dict_are_refused(given: Any) -> None:
    with pytest.raises(UserError, match="offsets to commit must be a dict"):
        to_commit(given)
    with pytest.raises(UserError, match="times must be a dict"):
        checked_times(given)


def test_the_asyncio_consumer_refuses_the_same() -> None:
    async def work() -> None:
        async with AsyncConsumer("localhost:1") as consumer:
            with pytest.raises(UserError, match="max_records"):
                await consumer.poll(0, max_records=0)
            with pytest.raises(UserError, match="max_batches"):
                await consumer.poll_batches(0, max_batches=0)
            with pytest.raises(UserError, match="is no time"):
                await consumer.seek_to_time(-1)
            with pytest.raises(UserError, match="is no time"):
                await consumer.offsets_for_times({HERE: -1})

    asyncio.run(work())


@pytest.mark.parametrize("given", [[None], [5], [b"clicks"], "clicks", re.compile(b"clicks")])
def test_an_invalid_topic_is_refused(given: Any) -> None:
    with pytest.raises(UserError, match=r"topic|matches bytes"):
        checked_names(checked_topics(given))  # type: ignore[arg-type]


def test_none_in_place_of_a_list_is_refused() -> None:
    for nothing in (None, 7):
        with pytest.raises(UserError, match=f"partitions must be a list of .*, not {nothing}"):
            checked_partitions(nothing)  # type: ignore[arg-type]
        with pytest.raises(UserError, match=f"topics must be a list of names .*, not {nothing}"):
            checked_topics(nothing)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", ["x", [1], float("nan")])
def test_an_invalid_timeout_is_refused_and_closes_nothing(timeout: Any) -> None:
    told = "timeout_s must be a number of seconds or None, not"

    async def awaited() -> None:
        async with AsyncConsumer("127.0.0.1:1", group_id="g") as consumer:
            consumer.assign([HERE])
            for call in (consumer.commit, consumer.close):
                with pytest.raises(UserError, match=told):
                    await call(timeout_s=timeout)
            with pytest.raises(UserError, match=told):
                await consumer.position(HERE, timeout)
            with pytest.raises(UserError, match=told):
                await consumer.committed([HERE], timeout)
            assert consumer.assignment() == {HERE}

    asyncio.run(awaited())
    with Consumer("127.0.0.1:1", group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([HERE])
        for call in (consumer.commit, consumer.close):
            with pytest.raises(UserError, match=told):
                call(timeout_s=timeout)
        with pytest.raises(UserError, match=told):
            consumer.position(HERE, timeout)
        with pytest.raises(UserError, match=told):
            consumer.committed([HERE], timeout)
        assert consumer.assignment() == {HERE}


@pytest.mark.parametrize(
    "make",
    [
        lambda name: Producer("b:1", client_id=name),
        lambda name: aio.Producer("b:1", client_id=name),
        lambda name: Consumer("b:1", client_id=name),
        lambda name: Admin("b:1", client_id=name),
        lambda name: aio.Admin("b:1", client_id=name),
        lambda name: SimpleConsumer("b", 1, client_id=name),
    ],
)
def test_a_name_that_cannot_be_encoded_is_refused_before_anything_is_created(make: Any) -> None:
    threads = threading.active_count()
    with pytest.raises(
        UserError, match=r"client_id is '\\ud800', which UTF-8 cannot encode: surrog"
    ):
        make("\ud800")
    assert threading.active_count() == threads


def test_every_string_setting_of_a_consumer_can_be_encoded() -> None:
    for name in ("group_id", "client_rack", "group_instance_id"):
        with pytest.raises(UserError, match=f"{name} is '\\\\udc80'"):
            Consumer("b:1", **{name: "\udc80"})
        with pytest.raises(UserError, match=f"{name} has 32768 bytes: the limit is 32767"):
            Consumer("b:1", **{name: "x" * 32768})
    with pytest.raises(UserError, match="client_id is 7, and must be text"):
        Admin("b:1", client_id=7)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="client_id has 40000 bytes"):
        Producer(bootstrap_servers="b:1", client_id="é" * 20_000)


def test_a_listener_of_another_type_is_refused_before_the_subscription_changes() -> None:
    async def subscribe() -> None:
        consumer = AsyncConsumer("localhost:1", group_id="g")
        for given in (7, lambda: None):
            with pytest.raises(UserError, match="is not a RebalanceListener"):
                consumer.subscribe(["clicks"], listener=given)  # type: ignore[arg-type]
        assert consumer.subscription() == frozenset()
        await consumer.close()

    refused = pytest.raises(UserError, match="is not a RebalanceListener")
    with Consumer("localhost:1", group_id="g") as blocking, refused:
        blocking.subscribe(["clicks"], listener=7)  # type: ignore[arg-type]
    asyncio.run(subscribe())
