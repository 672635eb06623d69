"""Sends admin requests to the broker in charge: the controller, a coordinator, or each broker.

A request that was answered with an error is not retried, unless it went to the wrong broker: a
retry might report, for example, that a topic exists which the first attempt created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

from kdist.client.cluster import Cluster
from kdist.client.coordinators import find_coordinator
from kdist.errors import ApiError, Error, UserError

TIMEOUT_MS = 20_000  # for the controller to tell all brokers

T = TypeVar("T")

_ELSEWHERE = frozenset(
    (
        Error.NOT_CONTROLLER,
        Error.NOT_COORDINATOR,
        Error.COORDINATOR_NOT_AVAILABLE,
        Error.COORDINATOR_LOAD_IN_PROGRESS,
    )
)


async def ask_controller(cluster: Cluster, request: Any, read: Callable[[Any], T]) -> T:
    """What `read` returns for the controller's answer; waits until there is a controller.

    If `read` raises NOT_CONTROLLER, the controller is looked up again, and asked.
    """

    async def controller() -> int:
        await cluster.metadata()
        if cluster.controller_id not in cluster.brokers:
            raise ApiError(Error.NOT_CONTROLLER, "the cluster has no controller at the moment")
        return cluster.controller_id

    return await _ask(cluster, controller, request, read)


async def ask_coordinator(
    cluster: Cluster, group: str, request: Any, read: Callable[[Any], T]
) -> T:
    """What `read` returns for the answer of a group's coordinator."""
    return await _ask(cluster, lambda: group_coordinator(cluster, group), request, read)


async def _ask(
    cluster: Cluster,
    find: Callable[[], Awaitable[int]],
    request: Any,
    read: Callable[[Any], T],
) -> T:
    async def attempt() -> T | ApiError:
        client = await cluster.client(await find())
        try:
            return read(await client.send(request))
        except ApiError as error:
            if error.error in _ELSEWHERE:
                raise
            return error

    outcome = await cluster.retried(attempt)
    if isinstance(outcome, ApiError):
        raise outcome
    return outcome


async def group_coordinator(cluster: Cluster, group: str) -> int:
    """The id of the broker that coordinates a group, once there is one."""
    return await cluster.retried(lambda: find_coordinator(cluster, group))


async def ask_brokers(
    cluster: Cluster,
    ask: Callable[[int], Awaitable[T]],
    brokers: Collection[int] | None = None,
    patience_s: float | None = None,
) -> dict[int, T | ApiError]:
    """Each broker's answer, or its error, by broker id; with None, of all brokers.

    A broker that takes longer than `patience_s` seconds fails with REQUEST_TIMED_OUT. Raises
    `UserError` for a broker that is not in the cluster.
    """
    await cluster.retried(cluster.metadata)
    wanted = sorted(cluster.brokers if brokers is None else set(brokers))
    for broker in wanted:
        if broker not in cluster.brokers:
            known = ", ".join(map(str, sorted(cluster.brokers)))
            raise UserError(f"there is no broker {broker}: the cluster has {known}")

    async def one(broker: int) -> T | ApiError:
        try:
            async with asyncio.timeout(patience_s):
                return await cluster.retried(lambda: ask(broker))
        except ApiError as error:
            return error
        except TimeoutError:
            sentence = f"broker {broker} did not answer within {patience_s:g} s"
            return ApiError(Error.REQUEST_TIMED_OUT, sentence)

    answers = await asyncio.gather(*map(one, wanted))
    return dict(zip(wanted, answers, strict=True))
