"""The broker's ZooKeeper session, kept in a file so that it can be ended for a process that died.

    <log.dir>/zookeeper-session   {"version":1,"broker":3,"boot":"...","id":"0x1","password":"..."}

Written, readable by the broker's user only, before anything is registered in a session; removed by
an orderly stop, once nothing is registered any more. A process that is killed leaves it behind:
`kdist end-session`, for whoever supervises the process, ends that session, so that the cluster
need not wait for the session timeout; and the next start knows by it what is its own last run's.

The file counts only for its own broker and while the host has not been booted since. So a clone of
the disk in another machine ends nobody's session. It is read under the directory's lock, which a
running broker holds; and it names one session: if a newer start has made another by then, ending
this one does it no harm.
"""

from __future__ import annotations

import json
import logging
from typing import NamedTuple

from kdist.config.addresses import ConnectString
from kdist.config.broker_config import BrokerConfig
from kdist.errors import DiskFull, UserError
from kdist.runtime.files import Files
from kdist.storage import names
from kdist.zk.client import SessionKey
from kdist.zk.kazoo_client import end_session
from kdist.zk.security import read_security

logger = logging.getLogger(__name__)

END_TIMEOUT_MS = 5_000  # an ended process's session expires soon anyway

_VERSION = 1


class SessionFile(NamedTuple):
    """Where a broker's session is kept, and whose it must be. Owner: the broker's `Membership`."""

    files: Files
    directory: str
    broker_id: int
    boot_id: str

    @property
    def path(self) -> str:
        return f"{self.directory}/{names.ZOOKEEPER_SESSION}"

    def save(self, key: SessionKey) -> None:
        """Keep the session's key. On a full disk it is not kept. Blocks."""
        fields = {
            "version": _VERSION,
            "broker": self.broker_id,
            "boot": self.boot_id,
            "id": hex(key.id),
            "password": key.password.hex(),
        }
        content = json.dumps(fields, separators=(",", ":")).encode("ascii")
        try:
            # Not durable: after a power loss the host has been booted since.
            self.files.replace(self.path, content, durable=False, is_secret=True)
        except DiskFull as error:
            logger.warning("%s: if this process dies, its session has to expire", error)

    def load(self) -> SessionKey | None:
        """The last session of this broker since the host was booted; None if there was none."""
        try:
            fields = json.loads(self.files.read(self.path))
            if [fields[name] for name in ("version", "broker", "boot")] != [
                *(_VERSION, self.broker_id, self.boot_id)
            ]:
                return None
            return SessionKey(int(fields["id"], 16), bytes.fromhex(fields["password"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):  # torn by a power loss
            return None

    def remove(self) -> None:
        """Forget the session: there is nothing in it that others would wait for."""
        if self.files.exists(self.path):
            self.files.remove(self.path)


async def end_last_session(config: BrokerConfig, files: Files, boot_id: str) -> str:
    """End the session that a broker's process left when it died; says, in a sentence, what it did.

    `UserError` if the broker runs; `ConnectionLoss` if ZooKeeper does not answer.
    """
    broker = f"broker {config.broker.id}"
    kept = SessionFile(files, config.broker.directory, config.broker.id, boot_id)
    if kept.load() is None:
        return f"{broker} has left no session"
    try:
        lock = files.lock(f"{kept.directory}/{names.LOCK}")
    except BlockingIOError:
        raise UserError(
            f"{broker} runs: {kept.directory} is locked, so its session is not ended"
        ) from None
    try:
        key = kept.load()
    finally:
        lock.release()
    if key is None:
        return f"{broker} has left no session"
    connect = ConnectString.parse(config.zookeeper.connect)
    security = read_security(config.zookeeper, files.read)
    if await end_session(connect, key, END_TIMEOUT_MS, security):
        return f"the session of {broker}, 0x{key.id:x}, is ended"
    return f"the session of {broker}, 0x{key.id:x}, was over already"
