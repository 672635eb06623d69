"""The users and ACLs that a secured `kdist standalone` begins with, stored before any broker.

They are stored once: what is changed later, by `kdist users` and `kdist acls`, stays changed. The
brokers' user comes last, so where that is, all has been stored.

The client is an application on a machine to try things on: it may create, write and read every
topic, and be in every group. It cannot delete or alter anything, nor touch Kafka's own topics,
whose names begin with `__`.
"""

from __future__ import annotations

from collections.abc import Mapping

from kdist.broker.membership import make_paths, make_starting_paths
from kdist.broker.settings.stored import Overrides, Owner, StoredSettings
from kdist.broker.stored_security import Acls, change_acls
from kdist.broker.stored_users import read_some, usable
from kdist.cli.standalone.security import ADMIN, BROKER, CLIENT, MECHANISM
from kdist.errors import UserError
from kdist.runtime.process import secure_rng
from kdist.security.acls import (
    WILDCARD,
    Acl,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from kdist.security.scram import (
    SALT_RANDOM_BYTES,
    ScramCredential,
    format_credential,
    new_credential,
    salt_from,
)
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper

_ALLOW, _DENY = Permission.ALLOW, Permission.DENY
_EVERY_TOPIC = Pattern(ResourceType.TOPIC, WILDCARD, PatternType.LITERAL)
_EVERY_GROUP = Pattern(ResourceType.GROUP, WILDCARD, PatternType.LITERAL)
_KAFKAS_OWN = Pattern(ResourceType.TOPIC, "__", PatternType.PREFIXED)

_OF_CLIENT: tuple[tuple[Pattern, Permission, Operation], ...] = (
    (_KAFKAS_OWN, _DENY, Operation.ALL),
    (_EVERY_TOPIC, _ALLOW, Operation.CREATE),
    (_EVERY_TOPIC, _ALLOW, Operation.READ),
    (_EVERY_TOPIC, _ALLOW, Operation.WRITE),
    (_EVERY_TOPIC, _ALLOW, Operation.DESCRIBE_CONFIGS),
    (_EVERY_GROUP, _ALLOW, Operation.READ),
)


async def store_first_users(zk: ZooKeeper, passwords: Mapping[str, str]) -> None:
    """Store them, unless that has been done. `UserError` if it was with another password."""
    await make_starting_paths(zk)
    await make_paths(zk, znodes.ACL_PATHS)
    credentials, _ = usable((await read_some(zk, [BROKER]))[BROKER])
    if MECHANISM in credentials:
        _require_password(credentials[MECHANISM], passwords[BROKER])
        return
    for pattern, permission, operation in _OF_CLIENT:
        await _store_acl(zk, pattern, Acl(f"User:{CLIENT}", WILDCARD, operation, permission))
    for name in (CLIENT, ADMIN, BROKER):
        await _store_user(zk, name, passwords[name])


def _require_password(stored: ScramCredential, password: str) -> None:
    if new_credential(MECHANISM, password, stored.salt, stored.iterations) != stored:
        raise UserError(
            f"the brokers cannot log in: the password of {BROKER} in ZooKeeper's data is not that"
            " in security/users.json. Put the old file back, or name another directory with --data"
        )


async def _store_acl(zk: ZooKeeper, pattern: Pattern, acl: Acl) -> None:
    def plan(before: Acls) -> Acls:
        return before | {acl}

    await change_acls(zk, pattern, plan)


async def _store_user(zk: ZooKeeper, name: str, password: str) -> None:
    salt = salt_from(secure_rng().randbytes(SALT_RANDOM_BYTES))
    credential = format_credential(new_credential(MECHANISM, password, salt))

    async def reload(_: Owner) -> None:
        """No broker is here."""

    def plan(before: Overrides) -> Overrides:
        return {**before, MECHANISM: credential}

    await StoredSettings(zk, reload).change(Owner(znodes.USER_SETTINGS, (name,)), plan)
