"""The servers of a `MemoryEnsemble`: which of them are up, who leads, what each has applied.

The leader decides every write, one after the other, while a majority follows it; else writes wait.
Each follower is sent the decisions in that order, applies them after a lag of its own, and serves
reads from what it has applied so far. A server that hears nothing of the leader, or a leader that
hears nothing of a majority, goes on serving for a while, as it does not know; then it drops its
clients. Servers that serve nobody elect a leader if they are a majority and reach each other, and
each server takes over the leader's state before it serves again. So a leader that lost its
followers may still serve reads when its successor already decides writes.

Invariant: `tree` holds every transaction that was decided. A new leader has it whole, since a
majority had logged each transaction when it was decided.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from functools import partial

from kdist.testing.memory_link import Link
from kdist.testing.memory_tree import Changes, Tree
from kdist.zk.client import WatchEvent

TICK_S = 0.2  # between two looks at who is there
SILENCE_S_MAX = 3.0  # that a server bears before it drops its clients; at least half of it
_ELECTED_SHARE = 0.3  # of the ticks in which servers could elect a leader

IsCut = Callable[[str, str], bool]


class Server:
    """One server, on the host `name`."""

    def __init__(self, name: str, applied: Tree) -> None:
        self.name = name
        self.applied = applied  # the leader's is the ensemble's; a follower's is a copy behind it
        self.epoch = 0  # counts leaders; of the one it follows
        self.is_up = True
        self.is_serving = False  # clients
        self.lag_ms_max = 0.0
        self.to_leader: Link
        self.from_leader: Link
        self.silent_since_s: float | None = None
        self.silence_s_max = 0.0


class Servers(ABC):
    """The half of a `MemoryEnsemble` that knows no clients. A single server leads while it is up.

    `is_cut` says whether nothing passes between two hosts. Servers and messages run on `loop`.
    """

    def __init__(
        self,
        names: Sequence[str],
        rng: random.Random,
        delay_ms_max: float,
        is_cut: IsCut,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._rng = rng
        self._delay_ms_max = delay_ms_max
        self._is_cut = is_cut
        self._given_loop = loop
        self._context = Context()  # of no client's process
        self._tree = Tree()
        self._servers = {name: Server(name, self._tree) for name in names}
        self._leader: Server | None = None
        self._epoch = 0
        self._undecided: deque[Callable[[], None]] = deque()
        self._has_begun = False

    # -- what a subclass does

    @abstractmethod
    def _drop_clients(self, server: Server) -> None:
        """The server ends all its connections."""

    @abstractmethod
    def _trigger_watches(self, server: Server, events: Iterable[WatchEvent]) -> None:
        """The server has applied changes: call the watches that its clients set."""

    @abstractmethod
    def _keep_sessions(self, *, are_timed: bool) -> None:
        """There is a leader, which begins to time all sessions anew; or there is none."""

    # -- faults

    def crash(self, name: str) -> None:
        """End a server's process."""
        server = self._servers[name]
        server.is_up = False
        self._stop_serving(server)

    def restart(self, name: str) -> None:
        """Start a server again; it serves once it follows a leader or is elected."""
        server = self._servers[name]
        if server.is_up:
            return
        server.is_up = True
        if len(self._servers) == 1 and self._has_begun:
            self._lead(server, [server])

    def lag(self, name: str, ms_max: float) -> None:
        """Let a server take up to this long to apply each transaction while it follows."""
        self._servers[name].lag_ms_max = ms_max

    # -- what was decided

    @property
    def tree(self) -> Tree:
        """The znodes as the leader has them."""
        return self._tree

    @tree.setter
    def tree(self, tree: Tree) -> None:
        """Replace all data, on every server."""
        self._tree = tree
        for server in self._servers.values():
            server.applied = tree if server is self._leader else tree.copy()

    @property
    def leader(self) -> str | None:
        """The name of the server that decides writes."""
        return self._leader.name if self._leader else None

    def delay_ms(self) -> float:
        """How long a message takes."""
        return self._rng.uniform(0, self._delay_ms_max)

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return self._given_loop or asyncio.get_running_loop()

    def _begin(self) -> None:
        """Have all servers follow the first, once there is a loop for that."""
        if self._has_begun:
            return
        self._has_begun = True
        up = [each for each in self._servers.values() if each.is_up]
        if self._is_majority(len(up)):
            self._lead(up[0], up)
        if len(self._servers) > 1:
            self._call_later(TICK_S, self._tick)

    def _forward(self, server: Server, decide: Callable[[], None]) -> None:
        """Have the leader `decide` once a majority follows it, in the order of arrival."""
        if server is self._leader:
            self._decide(decide)
        else:
            server.to_leader.send(partial(self._decide, decide))

    def _decide(self, decide: Callable[[], None]) -> None:
        self._undecided.append(decide)
        self._decide_all()

    def _decide_all(self) -> None:
        while self._undecided and self._has_majority():
            self._undecided.popleft()()

    def _publish(self, events: Sequence[WatchEvent]) -> None:
        """The leader has written a transaction to `tree`."""
        leader, tree = self._leader, self._tree
        followers = self._followers()
        if followers:
            changes = tree.changes()
            for each in followers:
                apply = partial(self._apply, each, tree.zxid, changes, events)
                each.from_leader.send(apply)
        if leader is not None:
            self._trigger_watches(leader, events)

    def _apply(
        self, server: Server, zxid: int, changes: Changes, events: Sequence[WatchEvent]
    ) -> None:
        server.applied.apply(zxid, changes)
        self._trigger_watches(server, events)

    def _then(self, server: Server, call: Callable[[], None]) -> None:
        """`call` when the server has applied all that was decided so far; never if it fails."""
        if server is self._leader:
            call()
        elif self._follows(server):
            server.from_leader.send(call)

    def _has_applied(self, server: Server, zxid: int) -> bool:
        return server is self._leader or server.applied.zxid >= zxid

    # -- who leads

    def _follows(self, server: Server) -> bool:
        """Whether it is a follower of the present leader, as far as either knows."""
        return server.is_serving and server.epoch == self._epoch and server is not self._leader

    def _followers(self) -> list[Server]:
        return [each for each in self._servers.values() if self._follows(each)]

    def _is_in_touch(self, server: Server) -> bool:
        """Whether messages pass between it and its leader; of the leader: and a majority."""
        leader = self._leader
        if server is leader:
            return self._has_majority()
        return (
            leader is not None
            and self._follows(server)
            and not self._is_cut(server.name, leader.name)
        )

    def _has_majority(self) -> bool:
        leader = self._leader
        if leader is None or len(self._servers) == 1:
            return leader is not None
        count = sum(each is leader or self._is_in_touch(each) for each in self._servers.values())
        return self._is_majority(count)

    def _is_majority(self, count: int) -> bool:
        return count > len(self._servers) / 2

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, call, context=self._context)

    def _tick(self) -> None:
        self._call_later(TICK_S, self._tick)
        for server in self._servers.values():
            if server.is_serving and self._is_silent_too_long(server):
                self._stop_serving(server)
        leader = self._leader
        idle = [each for each in self._servers.values() if each.is_up and not each.is_serving]
        if leader is not None:
            for server in idle:
                if not self._is_cut(server.name, leader.name):
                    self._follow(server)
        self._maybe_elect([each for each in idle if not each.is_serving])
        self._decide_all()

    def _is_silent_too_long(self, server: Server) -> bool:
        if self._is_in_touch(server):
            server.silent_since_s = None
            return False
        now_s = self._loop.time()
        if server.silent_since_s is None:
            server.silent_since_s = now_s
            server.silence_s_max = self._rng.uniform(SILENCE_S_MAX / 2, SILENCE_S_MAX)
        return now_s - server.silent_since_s > server.silence_s_max

    def _maybe_elect(self, idle: Sequence[Server]) -> None:
        groups = [
            (each, [other for other in idle if not self._is_cut(each.name, other.name)])
            for each in idle
        ]
        electable = [pair for pair in groups if self._is_majority(len(pair[1]))]
        if electable and self._rng.random() < _ELECTED_SHARE:
            self._lead(*self._rng.choice(electable))

    def _lead(self, server: Server, group: Sequence[Server]) -> None:
        """The server leads from now on, and the others of the group follow it."""
        if self._leader is not None:  # it does not know yet that it was replaced
            self._leader.applied = self._tree.copy()
        self._epoch += 1
        self._leader = server
        self._undecided.clear()
        self._serve(server, self._tree)
        for each in group:
            if each is not server:
                self._follow(each)
        self._keep_sessions(are_timed=True)

    def _follow(self, server: Server) -> None:
        self._serve(server, self._tree.copy())

    def _serve(self, server: Server, applied: Tree) -> None:
        server.applied = applied
        server.epoch = self._epoch
        server.is_serving = True
        server.silent_since_s = None
        is_stopped = partial(self._is_stopped, server)
        server.to_leader = Link(self._loop, self._context, self.delay_ms, is_stopped)
        server.from_leader = Link(
            self._loop,
            self._context,
            lambda: self.delay_ms() + self._rng.uniform(0, server.lag_ms_max),
            is_stopped,
        )

    def _is_stopped(self, server: Server) -> bool:
        return not self._is_in_touch(server)

    def _stop_serving(self, server: Server) -> None:
        """It serves nobody, and so do those who followed it as far as they can know."""
        if not server.is_serving:
            return
        server.is_serving = False
        server.to_leader.cut()
        server.from_leader.cut()
        self._drop_clients(server)
        if server is self._leader:
            followers = [each for each in self._followers() if self._is_in_touch(each)]
            self._leader = None
            self._undecided.clear()
            self._keep_sessions(are_timed=False)
            for each in followers:
                self._stop_serving(each)
