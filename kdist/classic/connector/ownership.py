"""The ownership of a partition by one of our streams, from its claim to its release.

`position` is the offset to commit: behind the last processed message. A message counts as processed
when its stream is asked for the next one, so a message in progress when a consumer dies is
delivered again: at least once. The loop opens, holds and closes it; the thread that iterates
over the stream advances the position. No lock is needed: each attribute has one writer, and at
worst the loop reads a position that is one message too low.
"""

from __future__ import annotations

import asyncio

from kdist.client.consumer.batch import ConsumedRecord
from kdist.model import TopicPartition


class Ownership:
    """One period of ownership. A partition that is claimed again gets a new `Ownership`."""

    def __init__(self, partition: TopicPartition, owner: str) -> None:
        self.partition = partition
        self.owner = owner  # the stream's name in the registry
        self.is_open = True  # once False, it stays so
        self.may_give = True  # False too while another might own the partition
        self.lock = asyncio.Lock()  # one commit at a time
        self.session_id = 0  # the ZooKeeper session that it was claimed in
        # The offset in the registry and its znode's version; None if there is none.
        self.committed: int | None = None
        self.version: int | None = None
        self.is_in_doubt = False  # whether the last commit was carried out
        # Written by the stream's thread, once the loop has set `start`.
        self.start: int | None = None  # messages before this offset are processed
        self.done: ConsumedRecord | None = None  # and so is this one, and those between
        self.in_progress: ConsumedRecord | None = None  # the message last handed to the application

    @property
    def position(self) -> int | None:
        """The offset behind the last processed message; None until the start is known."""
        done = self.done  # read first, as `finish` writes `start` first
        return self.start if done is None else done.offset + 1

    def settle(self) -> None:
        """Count the message given last as processed."""
        if self.in_progress is not None:
            self.done = self.in_progress

    def finish(self, end: int) -> None:
        """Count all messages before `end` as processed."""
        self.start = end
        self.done = self.in_progress = None

    def hold(self, *, is_held: bool) -> None:
        """Suspend or resume the delivery of messages."""
        self.may_give = self.is_open and not is_held

    def close(self) -> None:
        """End the ownership: deliver no more messages."""
        self.is_open = self.may_give = False
