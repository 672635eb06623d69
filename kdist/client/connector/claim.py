"""A partition that one of our streams owns, from its claim to its release.

`position` is the offset to commit: behind the last message that is done with. A message is done
with when its stream is asked for the next one, so what is worked on as a consumer dies is given
again: at least once. The loop opens, holds and closes; the thread that iterates over the stream
moves the position. No lock: each attribute has one writer, and what the loop reads late is a
position that is a message too low.
"""

from __future__ import annotations

import asyncio

from kdist.client.consumer.batch import ConsumedRecord
from kdist.model import TopicPartition


class Claim:
    """One ownership. A partition that is owned again has another."""

    def __init__(self, partition: TopicPartition, owner: str) -> None:
        self.partition = partition
        self.owner = owner  # the stream, as the registry calls it
        self.is_open = True  # once False, it stays so
        self.may_give = True  # False too while another might own the partition
        self.lock = asyncio.Lock()  # one commit after the other
        self.session_id = 0  # that it was claimed in
        # What the registry has: the offset and its znode's version; None: nothing.
        self.committed: int | None = None
        self.version: int | None = None
        self.is_in_doubt = False  # whether the last commit was carried out
        # Written by the stream's thread, once `start` was found out.
        self.start: int | None = None  # all before it is done with
        self.done: ConsumedRecord | None = None  # and so is this, and all between
        self.given: ConsumedRecord | None = None

    @property
    def position(self) -> int | None:
        """The next offset, if all that is done with is; None until it is known where to begin."""
        done = self.done  # first: who moves both writes `start` before
        return self.start if done is None else done.offset + 1

    def settle(self) -> None:
        """What was given last is done with."""
        if self.given is not None:
            self.done = self.given

    def finish(self, end: int) -> None:
        """All before `end` is done with."""
        self.start = end
        self.done = self.given = None

    def hold(self, *, is_held: bool) -> None:
        """Give nothing for now, or give again."""
        self.may_give = self.is_open and not is_held

    def close(self) -> None:
        """Give nothing more."""
        self.is_open = self.may_give = False
