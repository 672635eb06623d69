"""Repeats a fetch of one partition from one broker, sending the next as soon as an answer comes.

A consumer of one partition that keeps up sends the same request each time, but for the offset. So
the frame is kept and only patched, and no task is woken for an answer. That halves the loop's work
for a record, and the thread that waits for the record gets the interpreter lock that much sooner.
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
    """Fetches that differ only in their offset. Owner: the loop; one `run` at a time."""

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
        self._version = version = client.version_of(fetch.API, fetch.NEWEST_BY_NAME)
        self._timeout_ms = timeout_ms
        zeros, ones = (client.encode(from_offset(request, each), version, 0) for each in (0, -1))
        self._frame = zeros
        self._offset_at, _ = difference(zeros, ones)

    def is_of(self, client: Client, key: TopicPartition, epoch: int) -> bool:
        """Whether these fetch that partition, in that leader epoch, over that connection."""
        return self._kind == (client, key, epoch)

    async def run(
        self,
        offset: int,
        take: Callable[[FetchResponse], int | None],
        tell: Callable[[], None],
    ) -> None:
        """Fetch from `offset`, then from each offset that `take` returns for an answer, until None.

        `tell` is called once the next request is sent: a thread woken before would only wait for
        the interpreter lock. Raises what `take` raises, and `ApiError` if no answer comes.
        """
        self._take, self._tell = take, tell
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ask(offset)
        await self._ended

    def _ask(self, offset: int) -> None:
        OFFSET.pack_into(self._frame, self._offset_at, offset)
        self._client.repeat(self._frame, fetch.API, self._version, self, self._timeout_ms)

    # What `Client` calls, as of a future

    def done(self) -> bool:
        """Whether the run has ended, so that no answer is wanted any more."""
        return self._ended.done()

    def set_result(self, answer: FetchResponse) -> None:
        try:
            offset = self._take(answer)
            if offset is None:
                self._ended.set_result(None)
            else:
                self._ask(offset)
        except ApiError as error:
            self._ended.set_exception(error)
        except BaseException as error:
            self._ended.set_exception(error)  # a bug: the waiter must not wait for ever
            raise
        finally:
            self._tell()

    def set_exception(self, error: ApiError) -> None:
        self._ended.set_exception(error)
