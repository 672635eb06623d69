"""The first design's low-level consumer: fetches from one broker at given offsets, without state.

Applications use `consumer.SimpleConsumer`. `messages` is what it returns (pure).
"""

from kdist.classic.simple.consumer import (
    EARLIEST_TIME,
    LATEST_TIME,
    FetchRequest,
    OutOfRange,
    SimpleConsumer,
)
from kdist.classic.simple.messages import FetchedSet, Message, MessageAndOffset

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
