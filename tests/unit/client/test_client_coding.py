"""Encoders and decoders of one argument, and those that are told where the data belongs."""

from __future__ import annotations

import functools
import json
import pickle
from typing import Any

import pytest

from kdist.client.coding import CodingContext, WithContext, checked_coder
from kdist.client.consumer.batch import Batch, NotDecoded
from kdist.client.consumer.opening import Opening, open_fetched
from kdist.client.consumer.settings import checked_decoders, read_config
from kdist.errors import UserError, WrongType
from kdist.model import TopicPartition
from kdist.records.build import build_batch
from tests.unit.client.producer_world import Scene, play

pytestmark = pytest.mark.played(by=play)

ZERO = TopicPartition("t", 0)
HEADERS = [("source", b"web"), ("source", None)]


def tell(data: Any, context: CodingContext) -> Any:
    return json.dumps([str(data), context.topic, context.role, len(context.headers)]).encode()


class Codec:
    """As a schema registry's encoders are: objects that are called."""

    def __call__(self, data: Any, context: CodingContext, *, strict: bool = True) -> Any:
        return tell(data, context)

    def method(self, data: Any, context: CodingContext) -> Any:
        return tell(data, context)


@pytest.mark.parametrize(
    "coder",
    [tell, Codec(), Codec().method, lambda data, where: tell(data, where), functools.partial(tell)],
)
def test_what_needs_a_second_argument_is_given_the_context(coder: Any) -> None:
    checked = checked_coder("value_encoder", coder)
    assert isinstance(checked, WithContext)
    assert json.loads(checked.call(7, CodingContext("t", "key", ()))) == ["7", "t", "key", 0]
    assert checked_coder("value_encoder", checked) is checked


@pytest.mark.parametrize(
    "coder",
    [
        *(str.encode, bytes.decode, json.loads, json.dumps, int, bytes, str),
        lambda *data: data[0],
        lambda data: data,
        lambda data, encoding="utf-8": data,
        functools.partial(tell, context=1),
    ],
)
def test_what_needs_one_argument_is_given_one(coder: Any) -> None:
    assert checked_coder("value_encoder", coder) is coder


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(UserError, match="key_decoder is 'utf-8', and must be a callable"):
        read_config({"key_decoder": "utf-8"})


async def test_a_producers_encoders_are_told_topic_role_and_headers(scene: Scene, /) -> None:
    async with scene.producer(key_encoder=tell, value_encoder=tell) as producer:
        await producer.send_and_wait("t", 1, key=2, headers=HEADERS)
        await producer.send_and_wait("t", None, key=3)
        await (await producer.send_many("t", [4], keys=[None]))
        found = [(record.value, record.key) for record in scene.brokers.kept[ZERO].records]
    assert found == [
        (b'["1", "t", "value", 2]', b'["2", "t", "key", 2]'),
        (None, b'["3", "t", "key", 0]'),
        (b'["4", "t", "value", 0]', None),
    ]


def read(*decoders: Any, count: int = 1) -> Batch:
    """A batch from offset 1 on, of which the first record is not to be returned."""
    values = [b"%d" % number for number in range(3)]
    headers: list[Any] = [(), HEADERS, ()]
    data = build_batch(values, [b"a", b"b", None], headers, timestamp_ms=0)
    opening = Opening(ZERO, 1, decoders=checked_decoders(*decoders))
    (ready,) = open_fetched(data, opening)
    assert ready.batch is not None
    return ready.batch


def test_a_consumers_decoders_are_told_topic_role_and_headers() -> None:
    def decode(data: bytes, context: CodingContext) -> tuple[Any, ...]:
        return data, *context

    batch = read(decode, decode)
    pairs = tuple(HEADERS)
    assert batch.values() == [(b"1", "t", "value", pairs), (b"2", "t", "value", ())]
    assert [record.key for record in batch] == [(b"b", "t", "key", pairs), None]


def test_decoders_with_a_context_can_be_pickled_and_refuse_a_record() -> None:
    batch = pickle.loads(pickle.dumps(read(None, refuse_two)))
    assert [each.value for each in batch.part(1, 2)] == ["1"]
    with pytest.raises(NotDecoded, match="t-0, offset 2: the decoder failed"):
        batch.values()


def refuse_two(data: bytes, context: CodingContext) -> str:
    if data == b"2":
        raise ValueError(context.role)
    return data.decode()


async def test_a_wrong_type_is_a_users_error_and_a_type_error(scene: Scene, /) -> None:
    async with scene.producer() as producer:
        for kind in (UserError, TypeError, WrongType):
            with pytest.raises(kind, match="value_encoder"):
                await producer.send("t", "text")
            with pytest.raises(kind, match="timeout_s must be a number of seconds"):
                await producer.flush(timeout_s="soon")  # type: ignore[arg-type]
