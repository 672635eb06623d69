"""The same fetch again and again: one partition from one broker, each sent as the answer comes.

A consumer of one partition that keeps up asks the same each time, but for the offset. So the frame
is kept and only its blanks are filled, and no task is woken for an answer: the loop's work for a
record is halved, and the thread that waits for the record has the interpreter so much sooner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kdist.errors import ApiError
from kdist.model import TopicPartition
from kdist.network.client import Client
from kdist.protocol import fetch
from kdist.protocol.fetch import FetchRequest, FetchResponse
from kdist.protocol.fetch_forms import OFFSET, difference, from_offset


class RepeatedFetch:
    """Fetches that differ in nothing but their offset. Owner: the loop; one `run` at a time."""

    def __init__(
        self,
        client: Client,
        request: FetchRequest,
        key: TopicPartition,
        epoch: int,
        timeout_ms: float,
    ) -> None:
        self._kind = client, key, epoch
        self._client = client
        self._version = version = client.version_of(fetch.API)
        self._timeout_ms = timeout_ms
        zeros, ones = (client.encode(from_offset(request, each), version, 0) for each in (0, -1))
        self._frame = zeros
        self._offset_at, _ = difference(zeros, ones)

    def is_of(self, client: Client, key: TopicPartition, epoch: int) -> bool:
        """Whether these are of that partition, in this epoch of its leader, over that client."""
        return self._kind == (client, key, epoch)

    async def run(
        self,
        offset: int,
        take: Callable[[FetchResponse], int | None],
        tell: Callable[[], None],
    ) -> None:
        """Fetch from `offset`, and from each that `take` gives for an answer until it gives None.

        `tell` is called once the next is under way: a thread that it wakes up would only wait for
        the interpreter before. Raises what `take` does, and `ApiError` if an answer does not come.
        """
        self._take, self._tell = take, tell
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ask(offset)
        await self._ended

    def _ask(self, offset: int) -> None:
        OFFSET.pack_into(self._frame, self._offset_at, offset)
        self._client.repeat(self._frame, fetch.API, self._version, self, self._timeout_ms)

    # As one who waits for an answer

    def done(self) -> bool:
        """Whether nobody wants to hear it any more."""
        return self._ended.done()

    def set_result(self, answer: FetchResponse) -> None:
        """It came."""
        try:
            offset = self._take(answer)
            if offset is None:
                self._ended.set_result(None)
            else:
                self._ask(offset)
        except ApiError as error:
            self._ended.set_exception(error)
        except BaseException as error:
            self._ended.set_exception(error)  # a bug: whoever waits must not do so for ever
            raise
        finally:
            self._tell()

    def set_exception(self, error: ApiError) -> None:
        """None will come."""
        self._ended.set_exception(error)
