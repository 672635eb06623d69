"""Kafka's first design under its own names: streams that never end, groups that live in ZooKeeper.

    from kdist.classic import Consumer, Message, MessageSet, Producer

    producer.send("topic1", MessageSet([Message(b"test message str")]))

    for message in Consumer.create_message_streams("topic1", 1)[0]:
        data = message.payload()

New programs use `kdist.Producer` and `kdist.Consumer`.
"""

from __future__ import annotations

from kdist.classic import connector
from kdist.classic.connector import (
    Blacklist,
    ConsumerConnector,
    ConsumerRebalanceListener,
    ConsumerTimeout,
    Stream,
    Whitelist,
)
from kdist.classic.producer import MessageSet, Producer
from kdist.classic.simple import (
    EARLIEST_TIME,
    LATEST_TIME,
    FetchRequest,
    OutOfRange,
    SimpleConsumer,
)
from kdist.client.producer.message import CallbackHandler, Message

__all__ = [
    "EARLIEST_TIME",
    "LATEST_TIME",
    "Blacklist",
    "CallbackHandler",
    "Consumer",
    "ConsumerConnector",
    "ConsumerRebalanceListener",
    "ConsumerTimeout",
    "FetchRequest",
    "Message",
    "MessageSet",
    "OutOfRange",
    "Producer",
    "SimpleConsumer",
    "Stream",
    "Whitelist",
]


class Consumer:
    """The papers' name for what makes connectors, and the streams of a new one."""

    create = staticmethod(connector.create)
    create_message_streams = staticmethod(connector.create_message_streams)
