"""A consumer's settings and arguments: which are accepted, and which refused before any effect."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kdist import Admin, Producer, aio
from kdist.classic import SimpleConsumer
from kdist.client.admin.clients import AsyncAdmin
from kdist.client.cluster import Address
from kdist.client.consumer import settings as consuming
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
from kdist.client.consumer.settings import ConsumerSettings, read_settings
from kdist.client.discovery import given_brokers
from kdist.client.offsets import OffsetAndMetadata
from kdist.client.producer import settings as producing
from kdist.errors import UserError
from kdist.model import TopicPartition

HERE = TopicPartition("clicks", 0)


class Whole:
    """Another library's integer."""

    def __index__(self) -> int:
        return 7


def _consumer(given: Any) -> object:
    return consuming.read_settings({"bootstrap_servers": given}).bootstrap_servers


def _producer(given: Any) -> object:
    return producing.read_settings({"bootstrap_servers": given}).plain.bootstrap_servers


def _admin(given: Any) -> object:
    return AsyncAdmin(given).settings.bootstrap_servers


_CLIENTS = pytest.mark.parametrize("read", [_consumer, _producer, _admin])


def test_the_defaults_are_those_of_the_java_consumer() -> None:
    found = read_settings({})
    assert found == ConsumerSettings()
    assert (found.session_timeout_ms, found.heartbeat_interval_ms) == (45_000, 3_000)
    assert (found.max_poll_records, found.auto_offset_reset) == (500, "latest")
    assert found.partition_assignment_strategy == ("range", "cooperative-sticky")


def test_names_with_dots_and_text_are_accepted_as_in_a_properties_file() -> None:
    found = read_settings({"group.id": " g", "max.poll.records": "7", "check_crcs": "false"})
    assert (found.group_id, found.max_poll_records, found.check_crcs) == (" g", 7, False)


def test_a_single_strategy_is_accepted_as_a_list_of_one() -> None:
    found = read_settings({"partition_assignment_strategy": "sticky"})
    assert found.partition_assignment_strategy == ("sticky",)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"grup_id": "g"}, "a consumer has no setting 'grup_id': did you mean group_id?"),
        ({"grup.id": "g"}, "a consumer has no setting 'grup.id': did you mean group.id?"),
        ({"zzz": 1}, "a consumer has no setting 'zzz'"),
        ({"group_id": ""}, "group_id is empty: give a name, or None for no group"),
        ({"group_id": 5}, "group_id is 5, and must be text or None"),
        ({"client_id": 5}, "client_id is 5, and must be text"),
        (
            {"auto_offset_reset": "smallest"},
            "auto_offset_reset is 'smallest', and must be one of earliest, latest, none",
        ),
        ({"enable_auto_commit": 1}, "enable_auto_commit is 1, and must be True or False"),
        (
            {"max_poll_records": 0},
            "max_poll_records is 0, and must be an integer from 1 to 2147483647",
        ),
        (
            {"fetch_min_bytes": True},
            "fetch_min_bytes is True, and must be an integer from 0 to 2147483647",
        ),
        (
            {"partition_assignment_strategy": ["best"]},
            "partition_assignment_strategy is ['best'], and must be any of range,"
            " roundrobin, sticky, cooperative-sticky",
        ),
        (
            {"partition_assignment_strategy": []},
            "partition_assignment_strategy is empty: name one or more",
        ),
        (
            {"group_instance_id": "i"},
            "group_instance_id needs a group_id",
        ),
        (
            {"session_timeout_ms": 3000},
            "heartbeat_interval_ms is 3000, and must be less than session_timeout_ms, 3000",
        ),
    ],
)
def test_a_wrong_setting_is_refused_in_a_sentence(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        read_settings(given)
    assert str(caught.value) == sentence


def test_a_single_name_in_place_of_topics_is_refused() -> None:
    with pytest.raises(UserError, match=r"topics must be a list: \['clicks'\]"):
        checked_topics("clicks")


def test_a_negative_offset_is_not_committed() -> None:
    with pytest.raises(UserError, match="-1 is not an offset to commit for t-0"):
        to_commit({TopicPartition("t", 0): -1})


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


async def test_the_asyncio_consumer_refuses_the_same() -> None:
    async with AsyncConsumer("localhost:1") as consumer:
        with pytest.raises(UserError, match="max_records"):
            await consumer.poll(0, max_records=0)
        with pytest.raises(UserError, match="max_batches"):
            await consumer.poll_batches(0, max_batches=0)
        with pytest.raises(UserError, match="is no time"):
            await consumer.seek_to_time(-1)
        with pytest.raises(UserError, match="is no time"):
            await consumer.offsets_for_times({HERE: -1})


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


@_CLIENTS
def test_brokers_are_text_or_a_list(read: Callable[[Any], Any]) -> None:
    for given in ("a:1,b:2", " a:1, b:2,", ["a:1", "b:2"], ("a:1,b:2",), iter(["a:1", "b:2"])):
        found = read(given)
        assert found == ("a:1", "b:2")
        assert given_brokers(found, "") == (Address("a", 1), Address("b", 2))


@_CLIENTS
@pytest.mark.parametrize("given", [7, b"a:1", [1], {"a:1": 1}, ["a:1", None], [["a:1"]]])
def test_any_other_type_is_refused(read: Callable[[Any], object], given: Any) -> None:
    is_dict = isinstance(given, dict)
    told = "bootstrap_servers is a dict" if is_dict else "bootstrap_servers is .*, and must be host"
    with pytest.raises(UserError, match=told):
        read(given)


@_CLIENTS
@pytest.mark.parametrize("given", [None, "", " , ", []])
def test_missing_brokers_are_an_error(read: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(UserError, match="say where the brokers are"):
        given_brokers(read(given), "")


@_CLIENTS
@pytest.mark.parametrize("given", ["a", "a:0", "a:b", "a:1:2", "a:1 b:2"])
def test_an_invalid_address_is_refused(read: Callable[[Any], Any], given: str) -> None:
    with pytest.raises(UserError, match="give host:port"):
        given_brokers(read(given), "")
