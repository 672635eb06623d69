"""A ZooKeeper client as the rest of kdist sees it: its values, and the `ZooKeeper` interface.

`kazoo_client.py` is the real one, `testing/` has one in memory; both pass one contract
(`tests/unit/zk/zk_contract.py`). A client belongs to one event loop: calls, watches and state
listeners run there, in the order in which the server answered.

What a caller may rely on:
- requests of one client are carried out in the order they were made, each at most once;
- a watch is called at most once, and before the answer to any later read that shows the change;
- a request made while SUSPENDED waits for the connection, at most the session timeout. After that,
  or if the connection is lost while the request is in flight, it raises `ConnectionLoss`, and its
  outcome is unknown;
- a request made by a task that was then cancelled may still be carried out.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from kdist.zk.znode_acls import OPEN, ZnodeAcl

ANY_VERSION = -1
IN_FLIGHT_MAX = 500  # requests at a time; a ZooKeeper server's own limit is 1,000

T = TypeVar("T")


class SessionState(enum.Enum):
    """The state of a client; its listeners get each change."""

    CLOSED = "closed"  # before `connect` and after `close`: requests raise `SessionExpired`
    CONNECTED = "connected"  # requests are sent
    SUSPENDED = "suspended"  # connection lost; the session may be over, so do not rely on it
    EXPIRED = "expired"  # its ephemerals are gone; `reconnect` opens a new session


class SessionKey(NamedTuple):
    """A session's id, and the password with which another client may resume it, and end it."""

    id: int
    password: bytes


class WatchKind(enum.Enum):
    """What a watch has seen."""

    CREATED = "created"
    CHANGED = "changed"  # the znode's data was set
    DELETED = "deleted"
    CHILDREN = "children"  # a child was created or deleted
    LOST = "lost"  # the watch was lost with its connection: anything may have happened


class WatchEvent(NamedTuple):
    """What a watch is called with."""

    kind: WatchKind
    path: str


class Stat(NamedTuple):
    """What ZooKeeper keeps about a znode. Times are the server's, in ms since the epoch."""

    version: int  # how often the data was set
    children_version: int  # how often a child was created or deleted
    czxid: int  # the transaction that created it; of a broker's registration: the broker epoch
    mzxid: int  # the transaction that last set its data, or created it
    ephemeral_owner: int  # the owning session's id; 0 if persistent
    created_ms: int
    modified_ms: int
    children_count: int


class Znode(NamedTuple):
    """A znode's content."""

    data: bytes
    stat: Stat


class Check(NamedTuple):
    """In a `multi`: refuse all of it unless the znode exists and has this version."""

    path: str
    version: int = ANY_VERSION


class Create(NamedTuple):
    """Create a znode; its parent must exist. `sequential` appends a ten-digit counter."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False
    acl: ZnodeAcl = OPEN  # a client that sets ACLs sets this one by the path


class Set(NamedTuple):
    """Replace a znode's data if its version is the given one."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Remove a znode without children if its version is the given one."""

    path: str
    version: int = ANY_VERSION


Operation = Check | Create | Set | Delete
Outcome = str | Stat | None  # of a Create: the path; of a Set: the new stat; else None
Watch = Callable[[WatchEvent], None]
StateListener = Callable[[SessionState], None]


class ZooKeeper(Protocol):
    """One session at a time with an ensemble. Paths are absolute, below the chroot.

    Any request may raise `ConnectionLoss` or `SessionExpired` (see `errors.py`), `TooLarge`, and,
    where znodes have ACLs, `NoAuth`.
    """

    @property
    def state(self) -> SessionState: ...

    @property
    def session_id(self) -> int:
        """The current or last session's id, the `ephemeral_owner` of its ephemerals; 0 if none."""
        ...

    @property
    def session_key(self) -> SessionKey:
        """The current or last session's id and password; `SessionKey(0, b"")` if none."""
        ...

    @property
    def session_timeout_ms(self) -> int:
        """How long the servers keep a silent session: the timeout asked for, or less."""
        ...

    def add_listener(self, listener: StateListener) -> Callable[[], None]:
        """Call `listener` on the loop with each new state; returns a function that removes it."""
        ...

    async def connect(self) -> None:
        """Open the first session and create the chroot if it is missing.

        `ConnectionLoss` if no server answers within the connection timeout; the state is then
        CLOSED as before.
        """
        ...

    async def reconnect(self) -> None:
        """Open a new session after EXPIRED. As `connect`; on failure the state stays EXPIRED."""
        ...

    async def close(self) -> None:
        """End the session and its watches; if a server is reached, its ephemerals go at once."""
        ...

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        """The created path. `NodeExists`, `NoNode` (no parent), `NoChildrenForEphemerals`.

        Parents that `make_parents` creates are persistent and empty; they stay if the rest fails.
        """
        ...

    async def get(self, path: str, watch: Watch | None = None) -> Znode:
        """Data and stat; watches for CHANGED and DELETED. `NoNode`: then nothing is watched."""
        ...

    async def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        """Data and stat of each, None where there is no znode; in one request.

        A consistent snapshot, except from servers before ZooKeeper 3.6, which are asked for each
        znode. For up to some hundreds of paths.
        """
        ...

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """The stat or None; watches for CREATED, CHANGED and DELETED."""
        ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names, sorted; watches for CHILDREN and DELETED. `NoNode`: then nothing is watched."""
        ...

    async def sync(self, path: str) -> None:
        """Have the server catch up with the leader, in the order of this client's requests.

        A read after it shows every write that was carried out before `sync` was called. Without it
        a server may answer from a state some seconds old, though never older than what this
        session has read. ZooKeeper catches up with everything, whichever path is given.
        """
        ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """`NoNode`, `BadVersion`."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """`NoNode`, `BadVersion`, `NotEmpty`."""
        ...

    async def acl(self, path: str) -> ZnodeAcl:
        """Who may read and write the znode itself. `NoNode`, `NoAuth`."""
        ...

    async def set_acl(self, path: str, acl: ZnodeAcl) -> None:
        """Replace it. `NoNode`, `NoAuth`."""
        ...

    async def multi(self, operations: Sequence[Operation]) -> list[Outcome]:
        """All of the operations or none. `MultiFailed` says which was refused, and why."""
        ...


async def gather(reads: Iterable[Coroutine[Any, Any, T]]) -> Sequence[T]:
    """The results, in order; at most `IN_FLIGHT_MAX` reads are in flight at once."""
    waiting, found = iter(reads), list[T]()
    while some := list(islice(waiting, IN_FLIGHT_MAX)):
        found += await asyncio.gather(*some)
    return found
