"""The real `ZooKeeper`, over kazoo, which only the files `kazoo_*.py` import.

kazoo runs a thread per connection. That thread posts whatever it learns (answers, watch events,
state changes) to the loop itself, so that the loop sees it in the server's order. kazoo's own
handler would pass answers and watches to two more threads, and lose their order. No call here
blocks the loop: kazoo's `_async` calls only queue, and a session is ended in a thread.

A `KazooClient` is used for one session. kazoo would replace an expired session by itself; here that
is the broker's decision (`reconnect`): its thread opens no other (`KazooSession._connected`), the
old client is stopped and a new one is created.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo import exceptions as kazoo_errors  # type: ignore[import-untyped]
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.protocol.states import (  # type: ignore[import-untyped]
    EventType,
    KazooState,
    WatchedEvent,
    ZnodeStat,
)

from kdist.config.addresses import ConnectString
from kdist.errors import UserError
from kdist.zk.client import (
    Create,
    Delete,
    SessionKey,
    SessionState,
    Set,
    Stat,
    Watch,
    WatchEvent,
    WatchKind,
    Znode,
)
from kdist.zk.errors import (
    BadVersion,
    ConnectionLoss,
    InvalidAcl,
    Misconfigured,
    MultiFailed,
    NoAuth,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NoSuchServer,
    NotEmpty,
    Refused,
    SessionExpired,
    Unimplemented,
    Untrusted,
)
from kdist.zk.kazoo_handler import InlineHandler
from kdist.zk.kazoo_requests import MultiRead, MultiWrite, from_kazoo, to_kazoo
from kdist.zk.security import IN_CLEAR, ZooKeeperSecurity
from kdist.zk.session import (
    Answer,
    Children,
    Exists,
    Get,
    GetAcl,
    GetMany,
    Multi,
    Read,
    Request,
    SessionClient,
    SetAcl,
    Sync,
)

logger = logging.getLogger(__name__)

END_TIMEOUT_S = 5.0  # to tell a server that the session ends; after that it is left to expire

_NO_SESSION = SessionKey(0, b"")
_SERVER_MS = 2_000  # for each server to answer whoever wants to end a session

_SILENT_S = 60
_LINES_MAX = 100  # remembered; lines differ by server, and by why it did not answer
_RECONNECTS = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 1.0}

_WATCH_KINDS = {
    EventType.CREATED: WatchKind.CREATED,
    EventType.CHANGED: WatchKind.CHANGED,
    EventType.DELETED: WatchKind.DELETED,
    EventType.CHILD: WatchKind.CHILDREN,
    EventType.NONE: WatchKind.LOST,  # kazoo drops a connection's watches with this event
}

_REFUSALS: dict[type[Exception], Callable[[str], Refused]] = {
    kazoo_errors.NoNodeError: NoNode,
    kazoo_errors.NodeExistsError: NodeExists,
    kazoo_errors.BadVersionError: BadVersion,
    kazoo_errors.NotEmptyError: NotEmpty,
    kazoo_errors.NoChildrenForEphemeralsError: NoChildrenForEphemerals,
    kazoo_errors.UnimplementedError: Unimplemented,
    kazoo_errors.NoAuthError: NoAuth,
    kazoo_errors.InvalidACLError: InvalidAcl,
}
_LOSSES = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.SessionMovedError,
)
_ENDS = (kazoo_errors.SessionExpiredError, kazoo_errors.AuthFailedError)
_ROLLED_BACK = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)


class OncePerMinute(logging.Filter):
    """Drops a line of kazoo's that was already logged in the last minute.

    It logs every connection attempt, one a second: with ZooKeeper down for an hour, that put 7,000
    lines into a broker's log. `session.py` logs when a connection is lost and when it is back.
    Drops all below INFO, too: they show what is read and written, credentials and secrets included,
    and whoever may alter the cluster's settings may ask for them (KIP-412).
    """

    def __init__(self) -> None:
        super().__init__()
        self._logged_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return False
        line, now_s = record.getMessage(), record.created
        logged_s = self._logged_s.get(line)
        if logged_s is not None and 0 <= now_s - logged_s < _SILENT_S:  # the clock may be set back
            return False
        if len(self._logged_s) >= _LINES_MAX:
            self._logged_s.clear()
        self._logged_s[line] = now_s
        return True


# Without this, where logging is not configured, kazoo's retries would print up to ten lines before
# the one error that matters.
logging.getLogger("kazoo").addHandler(logging.NullHandler())
logging.getLogger("kazoo.client").addFilter(OncePerMinute())


class KazooSession:
    """One session: a `KazooClient`, and the queue from its thread to the loop."""

    def __init__(
        self,
        connect: ConnectString,
        session_timeout_ms: int,
        state_changed: Callable[[KazooSession, SessionState, SessionKey], None],
        key: SessionKey | None = None,
        security: ZooKeeperSecurity = IN_CLEAR,
    ) -> None:
        """`key` is that of a session to resume, instead of opening one."""
        self._loop = asyncio.get_running_loop()
        # kazoo notices that its server is silent after two thirds of the session timeout. In what
        # is left the next may be silent too, and the one after that must still be reached.
        self._patience_s = session_timeout_ms / 1000 / (2 * len(connect.servers))
        self._posted: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._is_awake = False  # `_take_posted` is scheduled
        self._is_over = False  # kazoo's thread has met the session's end
        self._is_told = False  # that it is connected
        self._untrusted: dict[tuple[str, int], str] = {}  # in this round, by host and port: why
        self.trouble = ""  # what else may be wrong
        # No server can be used as the settings are, and why; on the loop.
        self.hopeless: Callable[[Misconfigured], None] = lambda _: None
        self._state_changed = state_changed
        self.client = KazooClient(
            hosts=",".join(connect.servers),  # the chroot is `SessionClient`'s
            timeout=session_timeout_ms / 1000,
            handler=InlineHandler(self._patience_s, security.context),
            connection_retry=_RECONNECTS,
            client_id=key,
            **_shown(security),
        )
        self.client.add_listener(self._listen)
        self.timeout_ms = session_timeout_ms
        # These are private to kazoo, which offers no other place. If it names one otherwise, no
        # session opens; the integration tests of sessions notice if it no longer calls one.
        connection = self.client._connection
        self._connect, connection._connect = connection._connect, self._connected
        self._invoke, connection._invoke = connection._invoke, self._answered
        self._ping, connection._send_ping = connection._send_ping, self._ping_once_turned
        self._resolve, connection._expand_client_hosts = (
            connection._expand_client_hosts,
            self._resolved,
        )

    def _resolved(self) -> list[tuple[str, str, int]]:
        """In kazoo's thread, before each round of attempts: the servers' addresses.

        Without any, kazoo goes on without end and says nothing: a name that does not exist is a
        mistake, whereas one that cannot be looked up now may be a start before the network's.
        """
        found: list[tuple[str, str, int]] = self._resolve()
        servers = self.client.hosts
        if not found and all(_is_unknown(host) for host, _ in servers):
            named = ", ".join(f"{host}:{port}" for host, port in servers)
            self.post(self.hopeless, NoSuchServer(f"there is no host of {named}"))
        if self._untrusted.keys() >= set(servers):
            self.post(self.hopeless, Untrusted("; ".join(self._untrusted.values())))
        self._untrusted.clear()
        return found

    def _connected(self, host: str, address: str, port: int) -> tuple[float, float]:
        """In kazoo's thread. The only place where kazoo reveals the timeout the server granted.

        It says that it is connected before it has shown the credentials; the loop hears it after.

        Once the session is over there is no other: the loop may not have heard of it for as long
        as it hangs, and what it asks meanwhile would be carried out in a session that it does not
        know. kazoo fails those requests on this exception.
        """
        if self._is_over:
            raise kazoo_errors.SessionExpiredError
        try:
            read_timeout_ms, connect_timeout_ms = self._connect(host, address, port)
        except kazoo_errors.AuthFailedError:
            refused = f"{host}:{port} does not take the credentials of zookeeper.digest.file"
            self.post(self.hopeless, Untrusted(refused))
            raise
        except kazoo_errors.ConnectionDropped as dropped:
            if isinstance(dropped.__context__, ssl.SSLError):
                self._distrust(host, port, dropped.__context__)
            raise
        except UserError as error:
            raise kazoo_errors.ConnectionDropped(str(error)) from error
        self.timeout_ms = min(self.timeout_ms, round(read_timeout_ms * 3 / 2))
        self._untrusted.clear()
        self._is_told = True
        key = SessionKey(*self.client.client_id)
        self.post(self._state_changed, self, SessionState.CONNECTED, key)
        return read_timeout_ms, connect_timeout_ms

    def _distrust(self, host: str, port: int, error: ssl.SSLError) -> None:
        """One that hangs up in the handshake may be stopping; the others do not trust us, or we
        them."""
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            self.trouble = f": {host}:{port} hangs up on TLS, as a port in clear does"
        else:
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            self._untrusted[host, port] = f"no TLS with {host}:{port}: {reason}"

    def _answered(self, timeout_s: float, *request: object, **options: object) -> object:
        """In kazoo's thread, while it connects: what a server answers.

        One that stands still, or has only just started, may accept a connection and say nothing.
        kazoo would wait for the only server of a cluster until the session is over.
        """
        return self._invoke(min(timeout_s, self._patience_s), *request, **options)

    def _ping_once_turned(self, connect_timeout_s: float) -> None:
        """In kazoo's thread. A session lives as long as the loop turns, not as this thread does.

        A loop that hangs, in a write to a disk that does, serves nobody: others must lead then. So
        a ping waits for a tick of the loop, until the session would be over without it. kazoo pings
        after a third of the session timeout, so a loop that is busy for two thirds of it keeps the
        session. Meanwhile this thread reads and sends nothing; but all of that is the loop's.
        """
        turned = threading.Event()
        self.post(turned.set)
        if turned.wait(self.timeout_ms / 1000):
            self._ping(connect_timeout_s)

    def start(self) -> None:
        """Begin to connect; `state_changed` is called when it succeeds."""
        self.client.start_async()

    def _listen(self, state: str) -> None:
        """In kazoo's thread, before it connects again."""
        self._is_over = state == KazooState.LOST
        if self._is_over:
            self.post(self._state_changed, self, SessionState.EXPIRED, _NO_SESSION)
        elif state == KazooState.SUSPENDED and self._is_told:
            self._is_told = False
            self.post(self._state_changed, self, SessionState.SUSPENDED, _NO_SESSION)

    def post(self, callback: Callable[..., None], *args: object) -> None:
        """From kazoo's thread: have the loop make a call, unless the loop is closed.

        Hundreds of answers that arrive together wake the loop once, as each wake-up is a system
        call.
        """
        self._posted.append((callback, args))
        if not self._is_awake and not self._loop.is_closed():
            self._is_awake = True
            self._loop.call_soon_threadsafe(self._take_posted)

    def _take_posted(self) -> None:
        self._is_awake = False  # first: what is posted from here on wakes the loop again
        while self._posted:
            callback, args = self._posted.popleft()
            self._loop.call_soon(callback, *args)

    def end(self) -> asyncio.Future[None]:
        """Tell a server that the session is over and stop kazoo's thread; done when both are."""
        ended: asyncio.Future[None] = self._loop.create_future()
        self.client.remove_listener(self._listen)
        # A daemon: a server that does not answer must not keep the process from exiting.
        threading.Thread(
            target=self._end, args=(ended,), name="kdist-zookeeper-end", daemon=True
        ).start()
        return ended

    def _end(self, ended: asyncio.Future[None]) -> None:
        """In a thread of its own, as kazoo's `stop` waits for the connection's."""
        try:
            self.client.stop()
            self.client.close()
        except (kazoo_errors.KazooException, OSError) as error:
            logger.warning("could not end a ZooKeeper session, it will expire: %s", error)
        self.post(_finish, ended)


class KazooZooKeeper(SessionClient):
    """`ZooKeeper` over the network. Its owner is the loop that `connect` is called on."""

    def __init__(
        self,
        connect: ConnectString,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        security: ZooKeeperSecurity = IN_CLEAR,
    ) -> None:
        super().__init__(
            connect, session_timeout_ms, connection_timeout_ms, sets_acls=security.sets_acls
        )
        self._security = security
        self._session: KazooSession | None = None
        self._opened: asyncio.Future[None] | None = None

    @property
    def session_timeout_ms(self) -> int:
        session = self._session
        return self._session_timeout_ms if session is None else session.timeout_ms

    async def _open(self) -> None:
        session = KazooSession(
            self._connect, self._session_timeout_ms, self._on_state, security=self._security
        )
        self._session = session
        self._opened = opened = asyncio.get_running_loop().create_future()
        session.hopeless = partial(_fail_opening, opened)
        session.start()
        try:
            await self._wait_for(opened)
        except Misconfigured:
            raise
        except ConnectionLoss as loss:
            raise ConnectionLoss(f"{loss}{session.trouble}") from None
        finally:
            # A session that opened and was lost again meanwhile is SUSPENDED: kazoo reconnects it.
            is_open = opened.done() and not opened.cancelled() and opened.exception() is None
            if not is_open and self._session is session:
                self._session = None
                session.end()

    async def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await asyncio.wait([session.end()], timeout=END_TIMEOUT_S)

    def _on_state(self, session: KazooSession, state: SessionState, key: SessionKey) -> None:
        """A change of state, on the loop; ignored for a session that was given up."""
        if session is not self._session:
            return
        if state is SessionState.CONNECTED:
            self._session_key = key
            if self._opened is not None and not self._opened.done():
                self._opened.set_result(None)
        elif state is SessionState.EXPIRED:
            self._session = None
            session.end()
        self._enter(state)

    def _send(self, request: Request, answer: Answer) -> None:
        session = self._session
        assert session is not None, "CONNECTED means that there is a session"
        result = _call(session, request)
        result.rawlink(lambda done: session.post(_resolve, answer, request, done))


async def end_session(
    connect: ConnectString,
    key: SessionKey,
    timeout_ms: int,
    security: ZooKeeperSecurity = IN_CLEAR,
) -> bool:
    """End a session whose own process has died; False if it was over already.

    `ConnectionLoss` if no server has answered after `timeout_ms`: the session is left to expire.
    """
    answered: asyncio.Future[SessionKey] = asyncio.get_running_loop().create_future()

    def hear(_session: KazooSession, state: SessionState, found: SessionKey) -> None:
        if state is not SessionState.SUSPENDED and not answered.done():
            answered.set_result(found)

    session = KazooSession(connect, min(_SERVER_MS, timeout_ms), hear, key, security)
    session.start()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            found = await answered
            await session.end()
    except TimeoutError:
        raise ConnectionLoss(
            f"no ZooKeeper server of {connect} answered within {timeout_ms} ms"
        ) from None
    finally:
        if answered.cancelled():
            session.end()  # its thread would go on trying
    return found.id == key.id


def _fail_opening(opened: asyncio.Future[None], error: Misconfigured) -> None:
    if not opened.done():
        opened.set_exception(error)


class _Hidden(str):
    """kazoo logs its requests at the level debug, by their `repr`."""

    def __repr__(self) -> str:
        return "…"


def _shown(security: ZooKeeperSecurity) -> dict[str, object]:
    """The credentials as `KazooClient` takes them."""
    if security.digest is None:
        return {}
    if not security.is_sasl:
        return {"auth_data": [("digest", _Hidden(security.digest))]}
    user, _, password = security.digest.partition(":")
    return {"sasl_options": {"mechanism": "DIGEST-MD5", "username": user, "password": password}}


def _is_unknown(host: str) -> bool:
    """Whether the resolver answers that there is no such name; it may also not answer."""
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        return error.errno in (socket.EAI_NONAME, socket.EAI_NODATA)
    return False


def _call(session: KazooSession, request: Request) -> Any:
    """Queue a request; kazoo's `AsyncResult` of it."""
    return (_call_read if isinstance(request, Read) else _call_write)(session, request)


def _call_write(session: KazooSession, request: Request) -> Any:
    client = session.client
    match request:
        case Create(path, data, ephemeral, sequential, acl):
            return client.create_async(path, data, to_kazoo(acl), ephemeral, sequential)
        case Set(path, data, version):
            return client.set_async(path, data, version)
        case Delete(path, version):
            return client.delete_async(path, version)
        case SetAcl(path, acl):
            return client.set_acls_async(path, to_kazoo(acl))
        case Sync(path):
            return client.sync_async(path)
        case Multi(operations):
            return _queue(client, MultiWrite(operations))


def _call_read(session: KazooSession, request: Request) -> Any:
    client = session.client
    match request:
        case Get(path, watch):
            return client.get_async(path, _watch(session, path, watch))
        case Exists(path, watch):
            return client.exists_async(path, _watch(session, path, watch))
        case Children(path, watch):
            return client.get_children_async(path, _watch(session, path, watch))
        case GetAcl(path):
            return client.get_acls_async(path)
        case GetMany(paths):
            return _queue(client, MultiRead(paths))


def _queue(client: KazooClient, request: object) -> Any:
    """Queue a request as kazoo's own `_async` calls do."""
    result = client.handler.async_result()
    client._call(request, result)
    return result


def _watch(
    session: KazooSession, path: str, watch: Watch | None
) -> Callable[[WatchedEvent], None] | None:
    """The callback for kazoo's thread. Uses `path`, as the event of a lost watch has none."""
    if watch is None:
        return None
    return lambda event: session.post(watch, WatchEvent(_WATCH_KINDS[event.type], path))


def _finish(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _resolve(answer: Answer, request: Request, result: Any) -> None:
    """Translate kazoo's outcome for the caller, which may be gone."""
    if answer.done():
        return
    if result.exception is None:
        _resolve_value(answer, request, result.value)
    else:
        answer.set_exception(_translated(result.exception, request.path))


def _resolve_value(answer: Answer, request: Request, value: Any) -> None:
    if isinstance(request, Multi):
        refused = [(i, v) for i, v in enumerate(value) if isinstance(v, Exception)]
        for index, error in refused:
            if not isinstance(error, _ROLLED_BACK):
                answer.set_exception(_failed(request, index, error))
                return
        assert not refused, f"no operation of a refused multi is to blame: {value}"
        answer.set_result([_outcome(v) for v in value])
    elif isinstance(request, Get):
        answer.set_result(_znode(value))
    elif isinstance(request, GetMany):
        _resolve_many(answer, request, value)
    elif isinstance(request, GetAcl):
        answer.set_result(from_kazoo(value[0]))
    else:
        answer.set_result(_stat(value) if isinstance(value, ZnodeStat) else value)


def _resolve_many(answer: Answer, request: GetMany, values: list[Any]) -> None:
    for path, value in zip(request.paths, values, strict=True):
        if isinstance(value, Exception):
            answer.set_exception(_translated(value, path))
            return
    answer.set_result([None if value is None else _znode(value) for value in values])


def _failed(request: Multi, index: int, error: Exception) -> Exception:
    translated = _translated(error, request.operations[index].path)
    return MultiFailed(index, translated) if isinstance(translated, Refused) else translated


def _outcome(value: object) -> str | Stat | None:
    if isinstance(value, ZnodeStat):
        return _stat(value)
    return value if isinstance(value, str) else None


def _znode(value: tuple[bytes, ZnodeStat]) -> Znode:
    data, stat = value
    return Znode(data, _stat(stat))


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(
        version=stat.version,
        children_version=stat.cversion,
        czxid=stat.czxid,
        mzxid=stat.mzxid,
        ephemeral_owner=stat.ephemeralOwner,
        created_ms=stat.ctime,
        modified_ms=stat.mtime,
        children_count=stat.numChildren,
    )


def _translated(error: Exception, path: str) -> Exception:
    """kazoo's exception as this package's; one that no server sent is returned unchanged."""
    refusal = _REFUSALS.get(type(error))
    if refusal is not None:
        return refusal(path)
    if isinstance(error, _LOSSES):
        return ConnectionLoss(f"{path}: lost the connection ({type(error).__name__})")
    if isinstance(error, _ENDS):
        return SessionExpired(f"{path}: the session is over ({type(error).__name__})")
    if isinstance(error, kazoo_errors.ZookeeperError):
        return Refused(path, f"ZooKeeper says {type(error).__name__}")
    return error
