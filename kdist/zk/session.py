"""What the real client and the fake share: states, waiting requests, chroot, missing parents.

A subclass sends requests (`_send`) and opens and ends sessions; this class decides when. Its state
belongs to the event loop: nothing here may be called from another thread.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, cast

from kdist.config.addresses import ConnectString
from kdist.zk.client import (
    ANY_VERSION,
    Create,
    Delete,
    Operation,
    Outcome,
    SessionKey,
    SessionState,
    Set,
    Stat,
    StateListener,
    Watch,
    WatchEvent,
    Znode,
)
from kdist.zk.errors import (
    ConnectionLoss,
    MultiFailed,
    NodeExists,
    NoNode,
    Refused,
    SessionExpired,
    TooLarge,
    Unimplemented,
)
from kdist.zk.znode_acls import ZnodeAcl, acl_of

logger = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 1_000_000  # below jute.maxbuffer, 1,048,575 on servers
_OPERATION_BYTES = 64  # an upper bound for what the protocol and our ACLs add to path and data

Result = TypeVar("Result")


class Get(NamedTuple):
    """Read data and stat."""

    path: str
    watch: Watch | None


class GetMany(NamedTuple):
    """Read data and stat of several znodes, None for those that are missing."""

    paths: tuple[str, ...]

    @property
    def path(self) -> str:
        return self.paths[0]


class Exists(NamedTuple):
    """Read the stat, None if there is no znode."""

    path: str
    watch: Watch | None


class Children(NamedTuple):
    """Read the children's names."""

    path: str
    watch: Watch | None


class GetAcl(NamedTuple):
    """Read who may read and write."""

    path: str


class SetAcl(NamedTuple):
    """Replace who may read and write."""

    path: str
    acl: ZnodeAcl


class Sync(NamedTuple):
    """Have the server apply all that the leader has decided."""

    path: str


class Multi(NamedTuple):
    """Carry out all of the operations or none."""

    operations: tuple[Operation, ...]

    @property
    def path(self) -> str:
        return self.operations[0].path


Read = Get | GetMany | Exists | Children | GetAcl
Write = Sync | Create | Set | Delete | SetAcl | Multi  # the leader's part
Request = Read | Write
Answer = asyncio.Future[object]


class _Queued(NamedTuple):
    """A request made while SUSPENDED, and where its outcome goes."""

    request: Request
    answer: Answer


class SessionClient(ABC):
    """The half of a `ZooKeeper` that does not depend on how requests are sent."""

    def __init__(
        self,
        connect: ConnectString,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        *,
        sets_acls: bool = False,
    ) -> None:
        self._connect = connect
        self._sets_acls = sets_acls
        self._session_timeout_ms = session_timeout_ms
        self._connection_timeout_ms = connection_timeout_ms
        self._state = SessionState.CLOSED
        self._session_key = SessionKey(0, b"")
        self._listeners: list[StateListener] = []
        self._queued: deque[_Queued] = deque()
        self._in_flight: dict[Answer, None] = {}  # in the order they were sent

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        return self._session_key.id

    @property
    def session_key(self) -> SessionKey:
        return self._session_key

    @property
    def session_timeout_ms(self) -> int:
        return self._session_timeout_ms

    def add_listener(self, listener: StateListener) -> Callable[[], None]:
        self._listeners.append(listener)

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    # -- what a subclass does

    @abstractmethod
    def _send(self, request: Request, answer: Answer) -> None:
        """Send a request, whose paths are full; `answer` gets the outcome unless it is done."""

    @abstractmethod
    async def _open(self) -> None:
        """Open a new session: call `_enter(CONNECTED)` and return, or raise `ConnectionLoss`."""

    @abstractmethod
    async def _end(self) -> None:
        """End the session, if there is one, telling a server if one can be reached."""

    # -- sessions

    async def connect(self) -> None:
        assert self._state is SessionState.CLOSED, "connect is for the first session"
        try:
            await self._open_with_chroot()
        except BaseException:  # a cancellation may come after the session was opened
            await self.close()
            raise

    async def reconnect(self) -> None:
        assert self._state is SessionState.EXPIRED, "reconnect is for after EXPIRED"
        await self._open_with_chroot()

    async def _open_with_chroot(self) -> None:
        await self._open()
        while self._connect.chroot:
            try:
                await self._make_path("/")
                break
            except ConnectionLoss:
                pass  # try again: `_make_path` waits for the connection, then looks what exists

    async def _wait_for(self, opened: asyncio.Future[None]) -> None:
        """Await `opened`; `ConnectionLoss` if no server answers in time."""
        try:
            async with asyncio.timeout(self._connection_timeout_ms / 1000):
                await opened
        except TimeoutError:
            raise ConnectionLoss(
                f"no ZooKeeper server of {self._connect} answered within "
                f"{self._connection_timeout_ms} ms"
            ) from None

    async def close(self) -> None:
        if self._state is not SessionState.CLOSED:
            self._enter(SessionState.CLOSED)
            await self._end()
            self._fail_in_flight()

    def _enter(self, state: SessionState) -> None:
        """Change the state; waiting requests are sent before any that listeners make."""
        if state is self._state:
            return
        logger.info("session 0x%x with %s: %s", self.session_id, self._connect, state.value)
        self._state = state
        if state is SessionState.CONNECTED:
            while self._queued:
                self._send_in_flight(*self._queued.popleft())
        else:
            self._fail_requests()
        for listener in list(self._listeners):
            listener(state)

    def _fail_requests(self) -> None:
        """Fail requests in flight, as their outcome is unknown; and waiting ones unless SUSPENDED.

        At `close`, those in flight are left alone: the server answers them before the session ends.
        """
        if self._state is not SessionState.CLOSED:
            self._fail_in_flight()
        if self._state is not SessionState.SUSPENDED:
            while self._queued:
                answer = self._queued.popleft().answer
                if not answer.done():
                    answer.set_exception(self._session_over())

    def _fail_in_flight(self) -> None:
        for answer in list(self._in_flight):  # done ones are removed in the loop's next tick
            if not answer.done():
                answer.set_exception(ConnectionLoss(f"lost the connection to {self._connect}"))

    def _send_in_flight(self, request: Request, answer: Answer) -> None:
        if not answer.done():  # its task may have been cancelled while it waited
            self._in_flight[answer] = None
            answer.add_done_callback(self._in_flight.pop)
            self._send(request, answer)

    def _session_over(self) -> SessionExpired:
        return SessionExpired(f"the session with {self._connect} is {self._state.value}")

    # -- requests

    async def _request(self, request: Request) -> object:
        """Carry out a request with full paths; errors name the path as the caller knows it."""
        try:
            _check_size(request)
            return await self._carry_out(self._with_acl(request) if self._sets_acls else request)
        except Refused as error:
            error.path = self._connect.shown(error.path)
            raise
        except MultiFailed as failure:
            failure.error.path = self._connect.shown(failure.error.path)
            raise

    def _with_acl(self, request: Request) -> Request:
        """Every znode that is created passes here."""
        match request:
            case Create():
                return self._created_with_acl(request)
            case Multi(operations):
                return Multi(
                    tuple(
                        self._created_with_acl(each) if isinstance(each, Create) else each
                        for each in operations
                    )
                )
        return request

    def _created_with_acl(self, create: Create) -> Create:
        return create._replace(acl=acl_of(self._connect.shown(create.path)))

    async def _carry_out(self, request: Request) -> object:
        """Send now, or wait for the connection; `client.py` says what this may raise."""
        loop = asyncio.get_running_loop()
        answer: Answer = loop.create_future()
        if self._state is SessionState.CONNECTED:
            self._send_in_flight(request, answer)
            return await answer
        if self._state is not SessionState.SUSPENDED:
            raise self._session_over()
        queued = _Queued(request, answer)
        self._queued.append(queued)
        timer = loop.call_later(self._session_timeout_ms / 1000, self._time_out, queued)
        try:
            return await answer
        finally:
            timer.cancel()

    def _time_out(self, queued: _Queued) -> None:
        """The session timeout has passed: fail the request unless it was sent meanwhile."""
        if queued in self._queued:
            self._queued.remove(queued)
            if not queued.answer.done():
                queued.answer.set_exception(
                    ConnectionLoss(f"{queued.request.path}: no connection to {self._connect}")
                )

    async def _ask(self, request: Request, kind: type[Result]) -> Result:
        answer = await self._request(request)
        assert isinstance(answer, kind), f"{request} was answered with {answer!r}"
        return answer

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        request = Create(self._connect.full(path), data, ephemeral, sequential)
        try:
            created = await self._ask(request, str)
        except NoNode:
            if not make_parents:
                raise
            await self._make_path(path.rpartition("/")[0] or "/")
            created = await self._ask(request, str)
        return self._connect.own(created)

    async def _make_path(self, path: str) -> None:
        """Create a persistent znode and its ancestors where they are missing."""
        full = self._connect.full(path)
        names = full.strip("/").split("/") if full != "/" else []
        for depth in range(1, len(names) + 1):
            ancestor = "/" + "/".join(names[:depth])
            if await self._request(Exists(ancestor, None)) is None:
                try:
                    await self._request(Create(ancestor))
                except NodeExists:
                    pass  # somebody else was faster

    async def get(self, path: str, watch: Watch | None = None) -> Znode:
        return await self._ask(Get(self._connect.full(path), self._chrooted(watch)), Znode)

    async def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        if not paths:
            return []
        try:
            found: list[Znode | None] = await self._ask(
                GetMany(tuple(self._connect.full(path) for path in paths)), list
            )
        except Unimplemented:
            return await asyncio.gather(*(self._get_or_none(path) for path in paths))
        return found

    async def _get_or_none(self, path: str) -> Znode | None:
        try:
            return await self.get(path)
        except NoNode:
            return None

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        request = Exists(self._connect.full(path), self._chrooted(watch))
        return cast(Stat | None, await self._request(request))

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        request = Children(self._connect.full(path), self._chrooted(watch))
        return sorted(await self._ask(request, list))

    async def sync(self, path: str) -> None:
        await self._request(Sync(self._connect.full(path)))

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        return await self._ask(Set(self._connect.full(path), data, version), Stat)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._request(Delete(self._connect.full(path), version))

    async def acl(self, path: str) -> ZnodeAcl:
        found: ZnodeAcl = await self._ask(GetAcl(self._connect.full(path)), tuple)
        return found

    async def set_acl(self, path: str, acl: ZnodeAcl) -> None:
        await self._request(SetAcl(self._connect.full(path), acl))

    async def multi(self, operations: Sequence[Operation]) -> list[Outcome]:
        if not operations:
            return []
        if self._connect.chroot:
            full = self._connect.full
            operations = [op._replace(path=full(op.path)) for op in operations]
        outcomes: list[Outcome] = await self._ask(Multi(tuple(operations)), list)
        return [self._connect.own(o) if isinstance(o, str) else o for o in outcomes]

    def _chrooted(self, watch: Watch | None) -> Watch | None:
        """Wrap a watch so that it gets paths below the chroot; a new object for each request."""
        if watch is None:
            return None

        def called(event: WatchEvent) -> None:
            if self._state is not SessionState.CLOSED:
                watch(WatchEvent(event.kind, self._connect.own(event.path)))

        return called


def _check_size(request: Request) -> None:
    if isinstance(request, GetMany):
        size = sum(_OPERATION_BYTES + len(path) for path in request.paths)
    else:
        operations = request.operations if isinstance(request, Multi) else (request,)
        size = sum(
            _OPERATION_BYTES + len(op.path) + (len(op.data) if isinstance(op, Create | Set) else 0)
            for op in operations
        )
    if size > REQUEST_BYTES_MAX:
        raise TooLarge(request.path, size, REQUEST_BYTES_MAX)
