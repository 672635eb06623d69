"""SCRAM credentials of users: describe them, set passwords, delete them (KIP-554).

A password does not leave the client: a broker gets it salted and hashed, which is as good as the
password for whoever listens. So brokers of kdist take it over TLS alone, unless a setting allows
more.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kdist.client.admin.asking import ask_controller
from kdist.client.admin.outcomes import fault_of, listed, settled
from kdist.client.cluster import Cluster
from kdist.errors import ApiError, UserError
from kdist.protocol.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramDeletion,
    ScramUpsertion,
)
from kdist.protocol.describe_user_scram_credentials import (
    MECHANISMS,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from kdist.runtime.process import system_rng
from kdist.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_RANDOM_BYTES,
    salt_from,
    salt_password,
)

Iterations = dict[str, int]
"""A user's credentials: how often the password was hashed, by mechanism."""

DEFAULT_MECHANISM = "SCRAM-SHA-512"
_CODES = {name: code for code, name in MECHANISMS.items()}


async def describe_user_scram_credentials(
    cluster: Cluster, names: Iterable[str] | None = None
) -> dict[str, Iterations]:
    """The iterations of each credential, by user and mechanism; without `names` of all users.

    RESOURCE_NOT_FOUND for a name that has no credential.
    """
    await cluster.retried(cluster.metadata)
    request = description(None if names is None else listed(names))

    async def ask() -> dict[str, Iterations]:
        return read_described(await (await cluster.any_client()).send(request))

    return await cluster.retried(ask)


async def upsert_user_scram_credentials(
    cluster: Cluster,
    passwords: Mapping[str, str],
    mechanism: str = DEFAULT_MECHANISM,
    iterations: int = ITERATIONS_MIN,
) -> None:
    """Set users' passwords for a mechanism; users succeed and fail one by one."""
    request = alteration(passwords, {mechanism: iterations}, system_rng())
    await ask_controller(cluster, request, read_altered)


async def delete_user_scram_credentials(
    cluster: Cluster, names: Iterable[str], mechanism: str = DEFAULT_MECHANISM
) -> None:
    """Delete users' credentials for a mechanism; users succeed and fail one by one.

    Brokers of kdist close the connections that were opened with them.
    """
    await ask_controller(cluster, deletion(listed(names), [mechanism]), read_altered)


# Requests and answers (pure)


def description(names: Collection[str] | None) -> DescribeUserScramCredentialsRequest:
    """What asks for these users, or for all."""
    users = None if names is None else [UserName(name=name) for name in names]
    return DescribeUserScramCredentialsRequest(users=users)


def read_described(response: DescribeUserScramCredentialsResponse) -> dict[str, Iterations]:
    """What `describe_user_scram_credentials` returns, or raises."""
    error = fault_of(response.error_code, "users", response.error_message)
    if error is not None:
        raise error
    return settled({each.user: _described(each) for each in response.results})


def _described(result: Any) -> Iterations | ApiError:
    found = {
        MECHANISMS.get(each.mechanism, f"mechanism {each.mechanism}"): each.iterations
        for each in result.credential_infos
    }
    fault = fault_of(result.error_code, f"user {result.user}", result.error_message)
    return found if fault is None else fault


def alteration(
    passwords: Mapping[str, str], mechanisms: Mapping[str, int], rng: random.Random
) -> AlterUserScramCredentialsRequest:
    """What sets passwords for mechanisms, with iterations each. The system's `rng` makes salts."""
    return AlterUserScramCredentialsRequest(
        deletions=[],
        upsertions=[
            _upsertion(name, password, mechanism, iterations, rng)
            for name, password in passwords.items()
            for mechanism, iterations in mechanisms.items()
        ],
    )


def deletion(names: Iterable[str], mechanisms: Iterable[str]) -> AlterUserScramCredentialsRequest:
    """What deletes users' credentials for mechanisms."""
    codes = [_code(each) for each in mechanisms]
    return AlterUserScramCredentialsRequest(
        deletions=[ScramDeletion(name=name, mechanism=code) for name in names for code in codes],
        upsertions=[],
    )


def _upsertion(
    name: str, password: str, mechanism: str, iterations: int, rng: random.Random
) -> ScramUpsertion:
    if not password:
        raise UserError(f"the password of user {name} is empty")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        allowed = f"{ITERATIONS_MIN} to {ITERATIONS_MAX}"
        raise UserError(f"{iterations} iterations are not allowed: {allowed} are")
    salt = salt_from(rng.randbytes(SALT_RANDOM_BYTES))
    return ScramUpsertion(
        name=name,
        mechanism=_code(mechanism),
        iterations=iterations,
        salt=salt,
        salted_password=salt_password(mechanism, password, salt, iterations),
    )


def _code(mechanism: str) -> int:
    if mechanism not in _CODES:
        known = ", ".join(_CODES)
        raise UserError(f"{mechanism!r} is not a SCRAM mechanism: there are {known}")
    return _CODES[mechanism]


def read_altered(response: AlterUserScramCredentialsResponse) -> None:
    """Raise what `alter_user_scram_credentials` raises."""
    settled(
        {
            each.user: fault_of(each.error_code, f"user {each.user}", each.error_message)
            for each in response.results
        }
    )
