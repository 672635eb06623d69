"""Users as stored in ZooKeeper: their SCRAM credentials, and the secret for those there are not.

A credential is a setting of its user, in `/config/users/<user>` beside the user's quotas, under the
mechanism's name. One that cannot be read is as if it were not there. For a name without one an
exchange goes on with salt that is made up from a secret, so that it fails where a wrong password
does; all brokers have the same secret, since a name's salt must not depend on who is asked.
"""

from __future__ import annotations

import base64
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kdist.broker.settings.stored import Overrides, decode_stored
from kdist.security.scram import HASHES, ScramCredential, ScramServer, parse_credential
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.errors import NodeExists
from kdist.zk.znodes import DEFAULT_ENTITY, IMPOSSIBLE

logger = logging.getLogger(__name__)

_ROW = znodes.USER_SETTINGS
_READS_AT_ONCE = 200
_SECRET_BYTES = 32
_NONCE_BYTES = 24

Credentials = Mapping[str, ScramCredential]
"""A user's, by mechanism."""


class StoredUsers:
    """Owner: the broker. While ZooKeeper is lost, the credentials that were read last stay.

    Each of `on_removed` is called with the mechanism and the name of a credential that is gone.
    """

    def __init__(self, zk: ZooKeeper, rng: random.Random) -> None:
        """`rng` makes the secret and nonces: the operating system's, except in a simulation."""
        self._zk = zk
        self._rng = rng
        self._secret = b""
        self._credentials: dict[str, Credentials] = {}  # by user
        self.on_removed: list[Callable[[str, str], None]] = []

    def begin(self, mechanism: str) -> ScramServer:
        """An exchange with a client that has chosen this mechanism."""
        nonce = base64.urlsafe_b64encode(self._rng.randbytes(_NONCE_BYTES)).decode()
        return ScramServer(mechanism, partial(self.credential, mechanism), nonce, self._secret)

    def credential(self, mechanism: str, name: str) -> ScramCredential | None:
        return self._credentials.get(name, {}).get(mechanism)

    # What ZooKeeper holds

    async def load_all(self) -> None:
        """Read all users' credentials, and the secret, which the first broker makes."""
        self._secret = self._secret or await find_secret(self._zk, self._rng)
        stored = await read_all(self._zk)
        for name in self._credentials.keys() - stored.keys():
            self._take(name, {})
        for name, settings in stored.items():
            self._take(name, settings)

    reload_all = load_all

    async def reload(self, *nodes: str) -> None:
        """Re-read the credentials of users, by the names of their znodes."""
        for node in nodes:
            name = user_of(node)
            if name is not None:
                await self.reload_user(name)

    async def reload_user(self, name: str) -> None:
        """Re-read the credentials of a user."""
        if is_user(name):
            self._take(name, (await read_some(self._zk, [name]))[name])

    def _take(self, name: str, settings: Overrides) -> None:
        credentials, faults = usable(settings)
        for fault in faults:
            logger.warning("ignored a credential of user %r: %s", name, fault)
        before = self._credentials.pop(name, {})
        if credentials:
            self._credentials[name] = credentials
        for mechanism in before.keys() - credentials.keys():
            logger.info("user %r has no %s credential any more", name, mechanism)
            for tell in self.on_removed:
                tell(mechanism, name)


def usable(settings: Overrides) -> tuple[Credentials, list[str]]:
    """The credentials among a user's settings, and a sentence for each that is not one (pure)."""
    found: dict[str, ScramCredential] = {}
    faults: list[str] = []
    for mechanism in HASHES.keys() & settings.keys():
        try:
            found[mechanism] = parse_credential(settings[mechanism])
        except ValueError as error:  # its text has no part of the credential
            faults.append(f"{mechanism}: {error}")
    return found, faults


def is_user(name: str) -> bool:
    """Whether a user can have this name: ZooKeeper and Kafka keep some for themselves (pure)."""
    return name not in IMPOSSIBLE and name != DEFAULT_ENTITY


def user_of(node: str) -> str | None:
    """The user that a znode's name stands for; None for none, such as the default (pure)."""
    names = _ROW.names(f"{_ROW.parent}/{node}")
    return names[0] if names is not None and is_user(names[0]) else None


async def read_all(zk: ZooKeeper) -> dict[str, Overrides]:
    """What is stored, by user."""
    nodes = await zk.children(_ROW.parent)
    return await read_some(zk, [name for node in nodes if (name := user_of(node)) is not None])


async def read_some(zk: ZooKeeper, names: Sequence[str]) -> dict[str, Overrides]:
    """What is stored of these users."""
    found: dict[str, Overrides] = {}
    for start in range(0, len(names), _READS_AT_ONCE):
        paths = {name: _ROW.path(name) for name in names[start : start + _READS_AT_ONCE]}
        znodes_read = await zk.get_many(list(paths.values()))
        for (name, path), znode in zip(paths.items(), znodes_read, strict=True):
            found[name] = decode_stored(_ROW, path, znode)
    return found


async def find_secret(zk: ZooKeeper, rng: random.Random) -> bytes:
    """The cluster's secret for made-up salt, which its first broker makes."""
    path = znodes.SECRET.path(znodes.SCRAM_SECRET)
    while True:
        found = await znodes.SECRET.read(zk, znodes.SCRAM_SECRET)
        if found is not None:
            return found.encode()
        made = base64.b64encode(rng.randbytes(_SECRET_BYTES)).decode()
        try:
            await zk.create(path, znodes.SECRET.encode(made), make_parents=True)
        except NodeExists:
            pass  # another broker was faster: use its secret
