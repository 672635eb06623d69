"""Known bugs of moving partitions, to be planted: what Kafka's history and our rules warn of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kdist.broker.handlers import fetch
from kdist.controller import reassignments
from kdist.controller.channels import ControllerChannelManager
from kdist.controller.context import Assigned, Topic
from kdist.controller.writing import FencedWriter, _rewriting, _state_operations
from tests.simulator.bug import Bug, Planted


def _drop_at_once(_: Callable[..., Any]) -> Callable[..., Any]:
    def becoming(
        assigned: Assigned, replicas: Any, adding: Any, removing: Any, origin: Any
    ) -> Assigned:
        kept = tuple(each for each in replicas if each not in removing)
        gone = (*assigned.removed, *assigned.replicas)
        removed = tuple(each for each in dict.fromkeys(gone) if each not in kept)
        return Assigned(kept, (), (), (), removed)

    return becoming


def _forget_removed(becoming: Callable[..., Assigned]) -> Callable[..., Assigned]:
    return lambda *given: becoming(*given)._replace(removed=())


def _keep_the_isr(next_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, after, epoch: next_(state, after._replace(isr=state.isr), epoch)


def _keep_the_leader(_: Callable[..., int]) -> Callable[..., int]:
    return lambda _cluster, state, _replicas: state.leader


def _write_one_after_the_other(_: Callable[..., Any]) -> Callable[..., Any]:
    async def write_moves(self: FencedWriter, topic: Topic, states: Any) -> Topic:
        await self._write(_rewriting(topic)[0])
        for each in sorted(states.items()):
            await self._write(_state_operations(*each, set()))
        return topic._replace(zk_version=topic.zk_version + 1)

    return write_moves


def _throttle_everybody(_: Callable[..., bool]) -> Callable[..., bool]:
    def maybe_hold_back(self: Any, partition: Any, asked: Any) -> bool:
        log = partition.log
        if not (partition.adding and log.start_offset <= asked.fetch_offset < log.end_offset):
            return False
        self._note_follower(partition, asked)
        return True

    return maybe_hold_back


PLANTED_IN_MOVES: dict[str, Planted] = {
    "the former replicas are dropped as a move begins": Bug(
        reassignments, "_becoming", _drop_at_once
    ),
    "who was moved away is forgotten": Bug(reassignments, "_becoming", _forget_removed),
    "former replicas are not deleted (13972)": Bug(
        ControllerChannelManager, "remove", lambda _: lambda *_given: None
    ),
    "the ISR keeps who was moved away": Bug(reassignments, "next_state", _keep_the_isr),
    "the leader stays though it was moved away": Bug(
        reassignments, "_leader_among", _keep_the_leader
    ),
    "a move is cancelled whoever is in sync": Bug(
        reassignments, "_may_drop", lambda _: lambda *_given: True
    ),
    "assignment and states are written one after the other": Bug(
        FencedWriter, "write_moves", _write_one_after_the_other
    ),
    "a throttle holds back replicas in sync": Bug(
        fetch._Fetch, "_maybe_hold_back", _throttle_everybody
    ),
}
