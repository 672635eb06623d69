"""Every call of a producer, a consumer and what they return refuses an argument of a wrong type.

The sentence names the argument and what is wanted, and comes before any broker is asked. For admin
clients see test_client_admin_arguments.py, for settings test_client_exports.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

import kdist
from kdist import Consumer, Producer, TopicPartition, aio
from kdist.errors import UserError
from tests.unit.client.producer_world import Scene, play

NOWHERE = "127.0.0.1:1"
HERE = TopicPartition("t", 0)
NO_TEXT = (5, 1.5, True, None, b"t", object())


class Wrong(NamedTuple):
    """What an argument must not be, and what the sentence then says."""

    told: str
    values: tuple[Any, ...]


TOPIC = Wrong("a topic is of type .*, not str", NO_TEXT)
TIMEOUT = Wrong("timeout(_s)? must be a number of seconds or None, not ", ("1", b"1", True, [1]))
OF_METRICS = {
    "metrics": {},
    "metrics_text": {"others": Wrong("others must be clients of kdist", (5, "c", None, object()))},
}
PARTITION = Wrong(r"give TopicPartition\(topic, number\)", (*NO_TEXT, "t", ["t"], ("t", "0"), [0]))
PARTITIONS = Wrong(
    r"partitions must be a list of TopicPartition|give TopicPartition\(topic, number\)",
    (*NO_TEXT, "t", HERE, ["t"], [("t",)], [("t", "0")], [("t", True)]),
)
OFFSETS = Wrong(
    "offsets to commit must be a dict by partition|is not an offset|is not a partition",
    (5, "t", [HERE], {"t": 1}, {HERE: "1"}, {HERE: None}, {HERE: True}),
)
COUNT = Wrong("max_(records|batches) must be 1 or more, not ", ("1", 1.5, True, [1]))
DATA = "a (key|value) is of type .*, not bytes or None"
TEXTS = ("t", 5, 1.5, True, ["t"], object())
FUNCTION = Wrong(r"is a callable, not |must be a callable, not ", (5, "f", [print], object()))

TABLE: dict[str, dict[str, dict[str, Wrong]]] = {
    "Producer": {
        "send": {
            "topic": TOPIC,
            "value": Wrong(DATA, TEXTS),
            "key": Wrong(DATA, TEXTS),
            "headers": Wrong("header", (5, True, "h", b"h", {"h": b""}, [5], [("h",)], [(5, b"")])),
            "partition": Wrong("a partition must be an int, not ", ("0", 1.5, True, [0])),
            "timestamp": Wrong("a timestamp must be an int of ms", ("0", 1.5, True, [0])),
        },
        "send_many": {
            "topic": TOPIC,
            "values": Wrong("values must be an iterable|value 0 is of type", (5, "v", b"v", [5])),
            "keys": Wrong("keys must be an iterable|key 0 is of type", (5, "k", b"k", [5])),
        },
        "flush": {"timeout_s": TIMEOUT},
        "close": {"timeout_s": TIMEOUT},
        **OF_METRICS,
    },
    "Consumer": {
        "poll": {"timeout_s": TIMEOUT, "max_records": COUNT},
        "poll_batches": {"timeout_s": TIMEOUT, "max_batches": COUNT},
        "subscribe": {
            "topics": Wrong(
                "topics must be a list|topic .* is not text", (*NO_TEXT, "t", [5], [b"t"])
            ),
            "listener": Wrong("is not a RebalanceListener", (5, "f", object())),
        },
        **OF_METRICS,
        "unsubscribe": {},
        "assign": {"partitions": PARTITIONS},
        "pause": {"partitions": PARTITION},
        "resume": {"partitions": PARTITION},
        "partitions_for": {"topic": Wrong("topic .* is not text", (*NO_TEXT, ["t"], {"t": 1}))},
        "subscription": {},
        "assignment": {},
        "paused": {},
        "seek": {
            "partition": PARTITION,
            "offset": Wrong("is not an offset", ("1", 1.5, True, None, [1])),
            "leader_epoch": Wrong("is not a leader epoch", ("1", 1.5, True, None, [1])),
        },
        "seek_to_beginning": {"partitions": PARTITION},
        "seek_to_end": {"partitions": PARTITION},
        "seek_to_time": {
            "timestamp_ms": Wrong("is no time", ("1", None, [1])),
            "partitions": PARTITION,
        },
        "position": {"partition": PARTITION, "timeout_s": TIMEOUT},
        "lag": {"partition": PARTITION},
        "high_watermark": {"partition": PARTITION},
        "offsets_for_times": {
            "timestamps_ms": Wrong(
                "times must be a dict by partition|is no time|is not a partition",
                (5, "t", None, [HERE], {"t": 1}, {HERE: "1"}, {HERE: None}),
            )
        },
        "beginning_offsets": {"partitions": PARTITIONS},
        "end_offsets": {"partitions": PARTITIONS},
        "commit": {"offsets": OFFSETS, "timeout_s": TIMEOUT},
        "commit_async": {"offsets": OFFSETS, "on_committed": FUNCTION},
        "committed": {"partitions": PARTITIONS, "timeout_s": TIMEOUT},
        "wakeup": {},
        "close": {"timeout_s": TIMEOUT},
    },
}
GOOD: Mapping[str, Any] = {
    "topic": "t",
    "value": b"",
    "values": [b""],
    "partition": HERE,
    "partitions": [HERE],
    "offset": 0,
    "timestamp_ms": 0,
    "timestamps_ms": {HERE: 0},
    "topics": ["t"],
}
CALLS = [
    pytest.param(kind, method, argument, value, wrong.told, id=f"{kind}-{method}-{argument}-{at}")
    for kind, methods in TABLE.items()
    for method, row in methods.items()
    for argument, wrong in row.items()
    for at, value in enumerate(wrong.values)
]


def parameters(method: Any) -> list[inspect.Parameter]:
    """Those of a method, without the client."""
    return [*inspect.signature(method).parameters.values()][1:]


@pytest.mark.parametrize("kind", TABLE)
def test_the_table_has_every_argument_of_every_call(kind: str) -> None:
    of = getattr(kdist, kind)
    found = {name: getattr(of, name) for name in dir(of) if not name.startswith("_")}
    assert {name: [*row] for name, row in TABLE[kind].items()} == {
        name: [each.name for each in parameters(method)] for name, method in found.items()
    }


def call(client: Any, method: str, argument: str, value: Any) -> Any:
    """Call with one argument of a wrong type."""
    named = {}
    for each in parameters(getattr(type(client), method)):
        given = value if each.name == argument else GOOD.get(each.name)
        if each.kind is each.VAR_POSITIONAL:
            first = (GOOD["timestamp_ms"],) if method == "seek_to_time" else ()
            if each.name == argument:
                return getattr(client, method)(*first, value)
        elif each.name == argument or each.default is each.empty:
            named[each.name] = given
    return getattr(client, method)(**named)


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, Any]]:
    with Producer(NOWHERE) as producer, Consumer(NOWHERE, group_id="g") as consumer:
        yield {"Producer": producer, "Consumer": consumer}


@pytest.mark.parametrize(("kind", "method", "argument", "value", "told"), CALLS)
def test_an_argument_of_a_wrong_type_is_named_with_what_is_wanted(
    clients: dict[str, Any], kind: str, method: str, argument: str, value: Any, told: str
) -> None:
    with pytest.raises(UserError, match=told):
        call(clients[kind], method, argument, value)


async def awaited(client: Any, method: str, argument: str, value: Any) -> None:
    outcome = call(client, method, argument, value)
    if inspect.isawaitable(outcome):
        await outcome


async def test_the_clients_for_asyncio_refuse_the_same() -> None:
    async with aio.Producer(NOWHERE) as producer, aio.Consumer(NOWHERE, group_id="g") as consumer:
        for kind, method, argument, value, told in (each.values for each in CALLS):
            client = producer if kind == "Producer" else consumer
            with pytest.raises(UserError, match=str(told)):
                await awaited(client, str(method), str(argument), value)


@pytest.mark.played(by=play)
async def test_the_futures_of_records_refuse_them_too(scene: Scene, /) -> None:
    calls = {"result": TIMEOUT, "exception": TIMEOUT, "add_done_callback": FUNCTION}
    async with scene.producer() as producer:
        for future in (await producer.send("t", b""), await producer.send_many("t", [b""])):
            for method, wrong in calls.items():
                for value in wrong.values:
                    with pytest.raises(UserError, match=wrong.told):
                        getattr(future, method)(value)
