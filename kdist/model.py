"""Values that every package passes. They hold data and say what is valid; they do nothing."""

from __future__ import annotations

import base64
import re
import uuid
from typing import NamedTuple

TOPIC_NAME_MAX = 249  # with "-<partition>" and a suffix the directory name must fit in 255 bytes
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")
_UUID_TEXT = re.compile(r"[A-Za-z0-9_-]{22}\Z")

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset((OFFSETS_TOPIC, TRANSACTIONS_TOPIC))  # the brokers' own

ZERO_UUID = uuid.UUID(int=0)
NO_TIMESTAMP = -1
NO_OFFSET = -1
NO_EPOCH = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER = -1

_DIGITS_MAX = 19  # of 64 bits


def read_digits(text: str) -> int | None:
    """A number in plain ASCII digits, such as an id, port or offset; None for anything else.

    Also None for more than 19 digits: `int` would raise an error of its own for thousands of them.
    """
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    return int(text) if is_number else None


def counted(number: int, noun: str) -> str:
    """`1 host`, `2 hosts`."""
    return f"{number} {noun}{'s' * (number != 1)}"


class Principal(NamedTuple):
    """Who sends a request: a kind, such as "User", and a name."""

    kind: str
    name: str


ANONYMOUS = Principal("User", "ANONYMOUS")
"""Whoever has not authenticated."""


class TopicPartition(NamedTuple):
    """One partition of one topic; sorts by topic, then number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetRange(NamedTuple):
    """Offsets from `start` up to, not including, `end`."""

    start: int
    end: int


class Broker(NamedTuple):
    """A broker as clients and peers see it, with its failure domain (design D1)."""

    id: int
    host: str
    port: int
    rack: str | None = None


class LeaderAndIsr(NamedTuple):
    """A partition's leader and ISR, as in its `state` znode.

    `eligible` replicas have left the ISR while it was below its minimum, so that they have all that
    is committed, and may be elected (KIP-966). `is_recovering`: the leader was elected though
    committed records may be lost by it (KIP-704), and has not said that it has recovered.
    `emptied` replicas got a new disk while nobody led: they are not elected. `lossy` ones left the
    ISR as they may lack what they had not flushed, and have not been in it since: they are elected
    once nobody else can ever be. The last two are for controllers only.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    zk_version: int
    eligible: tuple[int, ...] = ()
    is_recovering: bool = False
    emptied: tuple[int, ...] = ()
    lossy: tuple[int, ...] = ()


def topic_name_fault(name: str) -> str | None:
    """Why `name` cannot be a topic's, as the end of a sentence; None if it can.

    Source: Kafka's `Topic.validate`: 1 to 249 of `[a-zA-Z0-9._-]`, and neither `.` nor `..`.
    """
    if not name:
        return "is empty"
    if name in (".", ".."):
        return "is '.' or '..'"
    if len(name) > TOPIC_NAME_MAX:
        return f"is longer than {TOPIC_NAME_MAX} characters"
    if not _TOPIC_NAME.match(name):
        return "has a character other than ASCII letters, digits, '.', '_' and '-'"
    return None


def flat(name: str) -> str:
    """A topic's name with '.' as '_', as in Kafka's metric names: it must be unique too."""
    return name.replace(".", "_")


def format_uuid(value: uuid.UUID) -> str:
    """A topic or directory id as Kafka prints it: 22 characters of base64url, without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode("ascii").rstrip("=")


def parse_uuid(text: str) -> uuid.UUID | None:
    """The id that `format_uuid` printed; None for any other text."""
    if not _UUID_TEXT.match(text):
        return None
    value = uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    # 22 characters hold 132 bits: only the text whose last 4 bits are zero is valid for an id.
    return value if format_uuid(value) == text else None
