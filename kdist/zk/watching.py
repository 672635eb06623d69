"""A persistent watch: it reports the value now and after each change.

ZooKeeper's watches fire once and are lost with the connection. A `Watcher` reads the value and sets
the watch in one request, reports the value, and does so again after every event and every new
connection or session. The last value is always reported; values that are replaced before they are
read are not. The same value may be reported twice: a broker that left and came back between two
reads leaves the same list of children.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from kdist.zk.client import SessionState, Watch, WatchEvent, Znode, ZooKeeper
from kdist.zk.errors import ConnectionLoss, NoNode, SessionExpired

Value = TypeVar("Value")


class Watcher(ABC, Generic[Value]):
    """Reports one path's value, or None while the znode does not exist, until `stop`.

    `report` is called on the loop; an exception in it goes to the loop's exception handler and ends
    the watcher.
    """

    def __init__(self, zk: ZooKeeper, path: str, report: Callable[[Value | None], None]) -> None:
        self._zk = zk
        self._path = path
        self._report = report
        self._is_stale = asyncio.Event()
        self._is_stale.set()
        self._is_watched = False  # a watch is set, or being set, and has not fired
        self._remove_listener = zk.add_listener(self._on_state)
        self._task = asyncio.get_running_loop().create_task(self._keep_reporting())
        self._task.add_done_callback(self._end)

    @abstractmethod
    async def _read(self, watch: Watch | None) -> Value:
        """Read the value and set the watch, if there is one to be set; `NoNode`."""

    def stop(self) -> None:
        """Report nothing from here on."""
        self._task.cancel()

    def report_again(self) -> None:
        """Read and report once more, for a receiver that could not use the value yet."""
        self._is_stale.set()

    def _on_state(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._is_watched = False  # watches do not outlive a connection
            self._is_stale.set()

    def _on_event(self, _event: WatchEvent) -> None:
        """A lost watch leads to a new read too, which waits for the connection."""
        self._is_watched = False
        self._is_stale.set()

    async def _keep_reporting(self) -> None:
        while True:
            await self._is_stale.wait()
            # Cleared before the read, so that an event during or after it causes another one.
            self._is_stale.clear()
            try:
                value = await self._read_or_none()
            except (ConnectionLoss, SessionExpired):
                self._is_watched = False
                continue  # CONNECTED makes it stale again
            self._report(value)

    async def _read_or_none(self) -> Value | None:
        """Read the value, or None, with a watch set at that moment or before, in either case."""
        while True:
            watch = None if self._is_watched else self._on_event
            self._is_watched = True  # first: it may fire before this task is back
            try:
                return await self._read(watch)
            except NoNode:
                if await self._zk.exists(self._path, watch) is None:
                    return None
                self._is_watched = False
            # Created between the two requests.

    def _end(self, task: asyncio.Task[None]) -> None:
        self._remove_listener()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            task.get_loop().call_exception_handler(
                {"message": f"watching {self._path}", "exception": error, "task": task}
            )


class DataWatcher(Watcher[Znode]):
    """Reports data and stat."""

    async def _read(self, watch: Watch | None) -> Znode:
        return await self._zk.get(self._path, watch)


class ChildrenWatcher(Watcher[list[str]]):
    """Reports the children's names, sorted."""

    async def _read(self, watch: Watch | None) -> list[str]:
        return await self._zk.children(self._path, watch)
