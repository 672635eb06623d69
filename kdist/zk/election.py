"""Controller election: the claim, its epoch, and fencing of writes by a replaced controller.

A claim is one transaction: create the ephemeral `/controller`, and raise `/controller_epoch` by 1
if it still has the version that was read. So each controller has an epoch of its own, greater than
all before. The version of `/controller_epoch` fences its writes: every later write of a controller
is a `multi` that begins with a check of that version (`fenced_multi`). A controller that was
paused, cut off or expired, and does not know it, cannot change anything.

Source: Kafka's `registerControllerAndIncrementControllerEpoch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kdist.zk import znodes
from kdist.zk.client import Check, Create, Delete, Operation, Outcome, Set, Stat, ZooKeeper
from kdist.zk.errors import ConnectionLoss, Fenced, MultiFailed, NodeExists, NoNode
from kdist.zk.values import ControllerInfo

_CONTROLLER = znodes.CONTROLLER.path()
_EPOCH = znodes.CONTROLLER_EPOCH.path()


class Leadership(NamedTuple):
    """An elected controller's epoch, and the znode version that fences its writes."""

    epoch: int
    epoch_zk_version: int


async def claim(zk: ZooKeeper, broker_id: int, now_ms: int) -> Leadership | None:
    """Become the controller; None if another broker is the controller.

    If this session is the controller already, returns its leadership. After `ConnectionLoss` the
    claim may have succeeded: call again once the client is CONNECTED.
    """
    epoch, epoch_stat = await _epoch(zk)
    info = ControllerInfo(broker_id, now_ms)
    try:
        outcomes = await zk.multi(
            [
                Create(_CONTROLLER, znodes.CONTROLLER.encode(info), ephemeral=True),
                Set(_EPOCH, znodes.CONTROLLER_EPOCH.encode(epoch + 1), epoch_stat.version),
            ]
        )
    except MultiFailed:
        return await find_leadership(zk)
    except ConnectionLoss:
        # The claim may stand, and the server that the session is with now not have applied it.
        await zk.sync(_CONTROLLER)
        return await find_leadership(zk)
    written = outcomes[1]
    assert isinstance(written, Stat), "a Set gives the new stat"
    return Leadership(epoch + 1, written.version)


async def find_leadership(zk: ZooKeeper) -> Leadership | None:
    """This session's leadership, if it is the controller.

    It is if the transaction that created `/controller` also wrote the epoch last. So the two reads
    need not be atomic.
    """
    epoch, epoch_stat = await _epoch(zk)
    stat = await zk.exists(_CONTROLLER)
    if stat is None or stat.ephemeral_owner != zk.session_id or stat.czxid != epoch_stat.mzxid:
        return None
    return Leadership(epoch, epoch_stat.version)


async def _epoch(zk: ZooKeeper) -> tuple[int, Stat]:
    """The current epoch, which is 0 before the first controller."""
    while True:
        try:
            data, stat = await zk.get(_EPOCH)
        except NoNode:
            try:
                await zk.create(_EPOCH, znodes.CONTROLLER_EPOCH.encode(0))
            except NodeExists:
                pass  # another broker's first claim
        else:
            return znodes.CONTROLLER_EPOCH.decode(_EPOCH, data), stat


async def current_controller(zk: ZooKeeper) -> ControllerInfo | None:
    """The current controller; None if there is none."""
    return await znodes.CONTROLLER.read(zk)


async def resign(zk: ZooKeeper, leadership: Leadership) -> None:
    """Give up `/controller`, so that another is elected now. No effect if one was already."""
    try:
        await fenced_multi(zk, leadership.epoch_zk_version, [Delete(_CONTROLLER)])
    except Fenced:
        pass  # somebody else is the controller already
    except MultiFailed as failure:
        if not isinstance(failure.error, NoNode):
            raise


async def fenced_multi(
    zk: ZooKeeper, epoch_zk_version: int, operations: Sequence[Operation]
) -> list[Outcome]:
    """A controller's write, carried out only if no other controller has been elected since.

    `Fenced` if one was; `MultiFailed` with the index in `operations` if one of them was refused.
    """
    try:
        outcomes = await zk.multi([Check(_EPOCH, epoch_zk_version), *operations])
    except MultiFailed as failure:
        if failure.index == 0:
            raise Fenced(epoch_zk_version) from None
        raise MultiFailed(failure.index - 1, failure.error) from None
    return outcomes[1:]
