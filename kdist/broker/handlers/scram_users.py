"""Describe- and AlterUserScramCredentials (keys 50, 51): users' SCRAM credentials (KIP-554).

Both read what is stored in ZooKeeper. Any broker describes; only the controller alters. One user's
changes are made together or not at all, with a notification to all brokers. A change carries salted
passwords: over a listener without TLS it is refused, unless `scram.alter.over.clear.enable`.

Source: Kafka's `ZkAdminManager`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from kdist.broker.settings.stored import Overrides, Owner, StoredSettings, unanswered
from kdist.broker.stored_users import is_user, read_all, read_some, usable
from kdist.errors import ApiError, Error
from kdist.protocol.alter_user_scram_credentials import (
    AlteredUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramDeletion,
    ScramUpsertion,
)
from kdist.protocol.describe_user_scram_credentials import (
    MECHANISMS,
    CredentialInfo,
    DescribedUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kdist.security.scram import (
    HASHES,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    credential_of_salted,
    format_credential,
)
from kdist.zk import znodes
from kdist.zk.client import ZooKeeper
from kdist.zk.errors import ZooKeeperError

logger = logging.getLogger(__name__)

_CODES = {name: code for code, name in MECHANISMS.items()}


class ScramUsersHandler:
    """Owner: the broker."""

    def __init__(
        self,
        zk: ZooKeeper,
        stored: StoredSettings,
        is_controller: Callable[[], bool],
        may_carry_secrets: Callable[[str], bool],
    ) -> None:
        """`may_carry_secrets`: whether salted passwords may come in on a listener."""
        self._zk = zk
        self._stored = stored
        self._is_controller = is_controller
        self._may_carry_secrets = may_carry_secrets

    async def describe(
        self, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        """Mechanisms and iterations of the users asked for, or of all that have credentials."""
        asked = Counter(each.name for each in request.users or ())
        try:
            stored = await (
                read_some(self._zk, [name for name in asked if is_user(name)])
                if asked
                else read_all(self._zk)
            )
        except ZooKeeperError as failure:
            error = unanswered(failure)
            return DescribeUserScramCredentialsResponse(
                error_code=error.error, error_message=error.detail, results=[]
            )
        results = [_described(name, stored.get(name, {}), asked) for name in {*stored, *asked}]
        return DescribeUserScramCredentialsResponse(
            error_code=Error.NONE,
            results=sorted(filter(None, results), key=lambda each: each.user),
        )

    async def alter(
        self, request: AlterUserScramCredentialsRequest, listener: str, by: str
    ) -> AlterUserScramCredentialsResponse:
        """One result for each user. `by`: who asks, for the log."""
        faults = self._faults(request, listener)
        results = []
        for name, changes in sorted(_by_user(request).items()):
            fault = faults.get(name)
            if fault is None:
                fault = await self._alter(name, changes)
            if fault is None:
                logger.info("%s has altered the credentials of user %r: %s", by, name, changes)
            error, detail = (Error.NONE, None) if fault is None else (fault.error, fault.detail)
            results.append(AlteredUser(user=name, error_code=error, error_message=detail))
        return AlterUserScramCredentialsResponse(results=results)

    def _faults(
        self, request: AlterUserScramCredentialsRequest, listener: str
    ) -> Mapping[str, ApiError]:
        """What is wrong with the request, or with what it says of single users."""
        users = _by_user(request)
        if not self._is_controller():
            return dict.fromkeys(users, ApiError(Error.NOT_CONTROLLER))
        if request.upsertions and not self._may_carry_secrets(listener):
            detail = (
                f"salted passwords are not taken in clear: listener {listener} has no TLS, and"
                " scram.alter.over.clear.enable is false"
            )
            return dict.fromkeys(users, ApiError(Error.POLICY_VIOLATION, detail))
        return {
            name: fault for name, changes in users.items() if (fault := _fault_of(name, changes))
        }

    async def _alter(self, name: str, changes: Changes) -> ApiError | None:
        try:
            owner = Owner(znodes.USER_SETTINGS, (name,))
            await self._stored.change(owner, partial(_after, changes))
        except ApiError as error:
            return error
        return None


# Descriptions (pure)


def _described(name: str, settings: Overrides, asked: Counter[str]) -> DescribedUser | None:
    """None for a user without credentials who was not asked for."""

    def result(error: Error, detail: str | None = None) -> DescribedUser:
        return DescribedUser(
            user=name, error_code=error, error_message=detail, credential_infos=infos
        )

    credentials, faults = usable(settings)
    infos = [
        CredentialInfo(mechanism=_CODES[each], iterations=credentials[each].iterations)
        for each in HASHES
        if each in credentials
    ]
    if asked[name] > 1:
        infos = []
        return result(Error.DUPLICATE_RESOURCE, "the request names the user twice")
    if faults:
        return result(Error.UNKNOWN_SERVER_ERROR, "what is stored is not a credential")
    if credentials:
        return result(Error.NONE)
    return result(Error.RESOURCE_NOT_FOUND, "the user has no credential") if asked else None


# Changes (pure)


class Changes(NamedTuple):
    """What a request does with one user."""

    deletions: list[ScramDeletion]
    upsertions: list[ScramUpsertion]

    def __str__(self) -> str:
        done = [f"{MECHANISMS[each.mechanism]} deleted" for each in self.deletions]
        done += [f"{MECHANISMS[each.mechanism]} set" for each in self.upsertions]
        return ", ".join(done)

    def mechanisms(self) -> Iterable[int]:
        yield from (each.mechanism for each in self.deletions)
        yield from (each.mechanism for each in self.upsertions)


def _by_user(request: AlterUserScramCredentialsRequest) -> Mapping[str, Changes]:
    users: dict[str, Changes] = {}
    for deletion in request.deletions:
        users.setdefault(deletion.name, Changes([], [])).deletions.append(deletion)
    for upsertion in request.upsertions:
        users.setdefault(upsertion.name, Changes([], [])).upsertions.append(upsertion)
    return users


def _fault_of(name: str, changes: Changes) -> ApiError | None:
    """The first fault, in Kafka's order."""
    if not is_user(name):
        return ApiError(Error.UNACCEPTABLE_CREDENTIAL, f"no user can be named {name!r}")
    counts = Counter(changes.mechanisms())
    if counts.keys() - MECHANISMS.keys():
        return ApiError(Error.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    iterations = [each.iterations for each in changes.upsertions]
    if any(each > ITERATIONS_MAX for each in iterations):
        return ApiError(Error.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if any(each < ITERATIONS_MIN for each in iterations):
        return ApiError(Error.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if any(count > 1 for count in counts.values()):
        detail = "A user credential cannot be altered twice in the same request"
        return ApiError(Error.DUPLICATE_RESOURCE, detail)
    return None


def _after(changes: Changes, before: Overrides) -> Overrides:
    """A user's settings after the changes; ApiError RESOURCE_NOT_FOUND. Others stay, as quotas."""
    after = dict(before)
    for deletion in changes.deletions:
        if after.pop(MECHANISMS[deletion.mechanism], None) is None:
            detail = "Attempt to delete a user credential that does not exist"
            raise ApiError(Error.RESOURCE_NOT_FOUND, detail)
    for each in changes.upsertions:
        mechanism = MECHANISMS[each.mechanism]
        credential = credential_of_salted(
            mechanism, each.salted_password, each.salt, each.iterations
        )
        after[mechanism] = format_credential(credential)
    return after
