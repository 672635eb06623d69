"""What can go wrong between kdist and ZooKeeper: one family of exceptions.

A caller handles three kinds differently:
- refusals (`NoNode`, `BadVersion`, ...): nothing was changed, and the reason is known;
- `ConnectionLoss`: the request may or may not have been carried out. Read the present state and
  decide again; conditional writes (a version, `Check`) make a retry safe;
- `SessionExpired`: the session's ephemeral znodes are gone or going. Nothing more happens until
  `reconnect` opens a new session, which owns nothing of what the old one owned.
"""

from __future__ import annotations

from kdist.errors import KdistError


class ZooKeeperError(KdistError):
    """The base of all exceptions of the zk package."""


class ConnectionLoss(ZooKeeperError):
    """No answer came: the outcome of the request is unknown."""


class Misconfigured(ConnectionLoss):
    """No server can be used as the settings are: at a start there is no use in waiting."""


class Untrusted(Misconfigured):
    """No server takes the credentials or the certificate, or none has one that is trusted."""


class NoSuchServer(Misconfigured):
    """There is no host of the name of any server: the address is wrong, or the resolver is."""


class SessionExpired(ZooKeeperError):
    """The session is over (expired, closed, or never opened); the request was not carried out."""


class Refused(ZooKeeperError):
    """ZooKeeper refused the request. Reasons that callers distinguish have a subclass."""

    reason = ""

    def __init__(self, path: str, reason: str = "") -> None:
        """`reason` is given if it is not the class's."""
        super().__init__(path, reason)
        self.path = path
        self.reason = reason or self.reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class NoNode(Refused):
    """The znode, or the parent of one to create, does not exist."""

    reason = "there is no such znode"


class NodeExists(Refused):
    """The znode to create exists already."""

    reason = "the znode exists already"


class BadVersion(Refused):
    """The znode's version is not the expected one: someone else wrote it."""

    reason = "the znode was changed by someone else"


class NotEmpty(Refused):
    """The znode to delete has children."""

    reason = "the znode has children"


class NoChildrenForEphemerals(Refused):
    """The parent of the znode to create is ephemeral."""

    reason = "an ephemeral znode cannot have children"


class NoAuth(Refused):
    """The znode's ACL, or its parent's, does not allow it to any identity of the session."""

    reason = "ZooKeeper does not allow it with these credentials, or without any"


class InvalidAcl(Refused):
    """The ACL names the creator, and the session has no identity."""

    reason = "an ACL for its creator needs credentials that the ZooKeeper server takes"


class Unimplemented(Refused):
    """The server is too old to know the request."""

    reason = "the server does not know this request"


class TooLarge(Refused):
    """The request exceeds what a server accepts, which would close the connection each time."""

    def __init__(self, path: str, size_bytes: int, max_bytes: int) -> None:
        super().__init__(path, f"a request of {size_bytes} bytes is over the limit of {max_bytes}")


class MultiFailed(ZooKeeperError):
    """One operation of a `multi` was refused, so none was carried out."""

    def __init__(self, index: int, error: Refused) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error

    def __str__(self) -> str:
        return f"operation {self.index}: {self.error}"


class Fenced(ZooKeeperError):
    """Another controller has been elected since: the write was not carried out."""

    def __init__(self, epoch_zk_version: int) -> None:
        super().__init__(
            f"/controller_epoch is no longer at version {epoch_zk_version}: there is a newer"
            " controller"
        )


class CorruptZnode(ZooKeeperError):
    """A znode's bytes are not in the format that its row in `znodes.py` declares."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
