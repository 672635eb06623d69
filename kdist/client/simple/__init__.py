"""The first design's low level: one broker, asked for what is at an offset, and nothing kept.

`consumer.SimpleConsumer` is what applications use. `messages` is what it gives (pure).
"""

from kdist.client.simple.consumer import (
    EARLIEST_TIME,
    LATEST_TIME,
    FetchRequest,
    OutOfRange,
    SimpleConsumer,
)
from kdist.client.simple.messages import FetchedSet, Message, MessageAndOffset

__all__ = [
    "EARLIEST_TIME",
    "LATEST_TIME",
    "FetchRequest",
    "FetchedSet",
    "Message",
    "MessageAndOffset",
    "OutOfRange",
    "SimpleConsumer",
]
