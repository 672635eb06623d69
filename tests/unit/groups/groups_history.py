"""Random histories of a group: clients that join, sync, heartbeat, commit, crash and come back.

Each client does as real ones do with what it is answered, and now and then something foolish. What
is told to clients is noted, and checked against what a group promises:
- every request is answered once, and none waits for ever;
- a generation has one leader, and grows;
- an assignment is what that generation's leader made for that member;
- what was answered as committed is fetched, also by a coordinator that loads the log.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from groups_world import GroupsWorld, home_of, load

from kdist.errors import Error
from kdist.groups.coordinator import Caller, GroupCoordinator
from kdist.groups.group import COMPLETING, EMPTY, PREPARING, STABLE, Group
from kdist.protocol.compiler import codec_for
from kdist.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kdist.protocol.join_group import JoinGroupProtocol, JoinGroupRequest, JoinGroupResponse
from kdist.protocol.leave_group import LeaveGroupRequest, LeaveGroupResponse, LeavingMember
from kdist.protocol.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
)
from kdist.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from kdist.protocol.sync_group import SyncGroupAssignment, SyncGroupRequest, SyncGroupResponse

GROUP = "history"
SESSION_MS, REBALANCE_MS = 6_000, 15_000
STARTS_OVER = {Error.UNKNOWN_MEMBER_ID, Error.FENCED_INSTANCE_ID, Error.GROUP_MAX_SIZE_REACHED}


class Client:
    """One client; `is_busy` while a request of it waits."""

    def __init__(self, history: History, name: str) -> None:
        self.history = history
        self.name = name
        self.version = history.rng.choice([0, 1, 3, 4, 5, 7, 9])
        is_static = self.version >= 5 and history.rng.random() < 0.5
        self.instance_id = f"{name}-static" if is_static else None
        self.start_over()

    def start_over(self) -> None:
        """As after a crash, or told to forget who it was."""
        self.life = object()  # answers to an earlier life go nowhere
        self.member_id, self.generation, self.is_leader = "", -1, False
        self.is_in_step, self.is_busy = False, False
        self.members: list[str] = []

    def act(self) -> None:
        """Do something that the client's state allows."""
        rng = self.history.rng
        if rng.random() < 0.02:
            self.start_over()
        elif self.is_busy:
            return
        elif rng.random() < 0.02 and self.member_id:
            self.leave()
        elif self.generation < 0:
            self.join()
        elif not self.is_in_step:
            self.sync()
        else:
            usual = [self.heartbeat, self.commit] * 4
            rng.choice([*usual, self.sync, self.join])()

    def join(self) -> None:
        changed = str(self.history.rng.randrange(3)).encode()
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[
                JoinGroupProtocol(name=name, metadata=changed)
                for name in self.history.rng.sample(["range", "sticky", "common"], 2)
            ]
            + [JoinGroupProtocol(name="always", metadata=changed)],
        )
        self._send(self.history.coordinator.join_group, request, self.version, self._joined)

    def _joined(self, response: JoinGroupResponse) -> None:
        error = Error.of(response.error_code)
        if error is Error.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        elif error is not Error.NONE:
            self._refused(error)
        else:
            self.member_id, self.generation = response.member_id, response.generation_id
            self.is_leader = response.leader == response.member_id
            self.members = [each.member_id for each in response.members]
            self.is_in_step = False
            self.history.note_generation(response)

    def sync(self) -> None:
        given = [
            SyncGroupAssignment(member_id=each, assignment=self._share_of(each).encode())
            for each in self.members
            if self.is_leader
        ]
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            assignments=given,
        )
        self._send(self.history.coordinator.sync_group, request, 4, self._synced)

    def _share_of(self, member_id: str) -> str:
        """An assignment that names its leader and its member."""
        return f"{self.generation}|{self.member_id}|{member_id}"

    def _synced(self, response: SyncGroupResponse) -> None:
        error = Error.of(response.error_code)
        if error is not Error.NONE:
            self._refused(error)
            return
        self.is_in_step = True
        self.history.check_assignment(self, response.assignment.decode())

    def heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=GROUP, generation_id=self.generation, member_id=self.member_id
        )
        self._send(self.history.coordinator.heartbeat, request, 4, self._heard)

    def _heard(self, response: HeartbeatResponse) -> None:
        if response.error_code:
            self._refused(Error.of(response.error_code))

    def commit(self) -> None:
        partition, offset = self.history.rng.randrange(3), self.history.next_offset()
        position = OffsetCommitPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=self.name
        )
        request = OffsetCommitRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            topics=[OffsetCommitTopic(name="t", partitions=[position])],
        )
        done = partial(self._committed, self.life, partition, offset)
        self.is_busy = True
        self.history.send(self.history.coordinator.offset_commit, request, 8, done)

    def _committed(
        self, life: object, partition: int, offset: int, response: OffsetCommitResponse
    ) -> None:
        error = Error.of(response.topics[0].partitions[0].error_code)
        if error is Error.NONE:  # also if nobody is there any more to hear it
            kept = self.history.committed
            kept[partition] = max(offset, kept.get(partition, -1))
        if life is self.life:
            self.is_busy = False
            if error is not Error.NONE:
                self._refused(error)

    def leave(self) -> None:
        member = LeavingMember(member_id=self.member_id, group_instance_id=self.instance_id)
        request = LeaveGroupRequest(group_id=GROUP, members=[member])
        self.start_over()
        self._send(self.history.coordinator.leave_group, request, 5, self._left)

    def _left(self, response: LeaveGroupResponse) -> None:
        assert response.error_code in (Error.NONE, Error.NOT_COORDINATOR)

    def _refused(self, error: Error) -> None:
        if error in STARTS_OVER:
            self.start_over()
        self.generation, self.is_in_step = -1, False  # join again

    def _send(
        self, method: Any, request: object, version: int, on_answer: Callable[[Any], None]
    ) -> None:
        life = self.life
        self.is_busy = True

        def answered(response: Any) -> None:
            if life is self.life:
                self.is_busy = False
                on_answer(response)

        self.history.send(method, request, version, answered)


class History:
    """A run: one group, some clients, a log that stalls and fails, a coordinator that moves."""

    def __init__(self, seed: int, clients: int) -> None:
        self.rng = random.Random(seed)
        delay_ms = self.rng.choice([0, 3000])
        self.world = GroupsWorld(seed, initial_rebalance_delay_ms=delay_ms, max_size=clients)
        self.coordinator = self.world.coordinator
        self.clients = [Client(self, f"c{number}") for number in range(clients)]
        self.waiting = 0
        self.answers: Counter[str] = Counter()
        self.newest_generation = 0
        self.leaders: dict[int, str] = {}
        self.committed: dict[int, int] = {}
        self._offset = 0

    def run(self, steps: int) -> None:
        """Random steps, then a calm end."""
        for _step in range(steps):
            self.world.tasks.run_for_ms(self.rng.choice([0, 1, 50, 500, 2500]))
            draw = self.rng.random()
            if draw < 0.02:
                self._move()
            elif draw < 0.06:
                self._trouble_the_log()
            else:
                self.rng.choice(self.clients).act()
            self.check_group()
        self._calm()

    def send(
        self, method: Any, request: object, version: int, on_answer: Callable[[Any], None]
    ) -> None:
        """Make the request, and see that it is answered once, as its version can say it."""
        self.waiting += 1
        answers: list[object] = []

        def reply(response: object) -> None:
            answers.append(response)
            assert len(answers) == 1, "answered twice"
            codec_for(type(response), version).encode(response, bytearray())
            self.waiting -= 1
            self.answers[_kind(response)] += 1
            on_answer(response)

        method(request, Caller(version, "client", "/10.0.0.1"), reply)

    def note_generation(self, response: JoinGroupResponse) -> None:
        """A generation has one leader; a static one may come back under another id."""
        generation = response.generation_id
        assert generation >= self.newest_generation
        self.newest_generation = generation
        if not response.skip_assignment and response.members:
            leader = self.leaders.setdefault(generation, response.leader)
            assert leader == response.leader

    def check_assignment(self, client: Client, share: str) -> None:
        """It was made in the client's generation, by its leader, for this member."""
        if not share:
            return  # the leader did not know of it
        generation, leader, member_id = share.split("|")
        assert int(generation) == client.generation
        assert leader == self.leaders[client.generation]
        is_same = member_id == client.member_id
        assert is_same or (client.instance_id or "") in member_id, "given to somebody else"

    def next_offset(self) -> int:
        self._offset += 1
        return self._offset

    def group(self) -> Group | None:
        return self.coordinator._registry.groups.get(GROUP)

    def check_group(self) -> None:
        """What holds for a group between any two events."""
        group = self.group()
        totals = self.coordinator._registry.totals()
        assert totals.members == (len(group.members) if group else 0)
        assert totals.offsets == (len(group.offsets) if group else 0)
        if group is None:
            return
        assert totals.rebalancing == (group.state in (PREPARING, COMPLETING))
        members = group.members.keys()
        assert group.joining.keys() <= members
        assert group.syncing.keys() <= members
        assert group.unsynced.keys() <= members
        assert not group.pending.keys() & members
        assert not group.syncing or group.state is COMPLETING
        assert (group.leader_id in members) if members else group.leader_id is None
        assert group.state is not EMPTY or not members
        assert group.state not in (STABLE, COMPLETING) or members
        assert (group.join_timer is not None) == (group.state is PREPARING)
        assert all(each.member_id == key for key, each in group.members.items())
        statics = {m.instance_id: m.member_id for m in group.members.values() if m.instance_id}
        assert group.static_ids == statics
        if group.state is STABLE:
            joining = (group.members[each] for each in group.joining)
            assert all(member.is_static for member in joining)

    def fetched(self, coordinator: GroupCoordinator) -> dict[int, int]:
        """What the coordinator says is committed."""
        found: dict[int, int] = {}

        def reply(response: OffsetFetchResponse) -> None:
            for topic in response.topics:
                found.update((p.partition_index, p.committed_offset) for p in topic.partitions)

        request = OffsetFetchRequest(group_id=GROUP, topics=None)
        coordinator.offset_fetch(request, Caller(7, "admin", "/h"), reply)
        return found

    def _trouble_the_log(self) -> None:
        log = self.world.log
        match self.rng.randrange(4):
            case 0:
                log.is_holding = True
            case 1:
                log.error = self.rng.choice([Error.NOT_ENOUGH_REPLICAS, Error.REQUEST_TIMED_OUT])
            case _:
                self._mend_the_log()

    def _mend_the_log(self) -> None:
        self.world.log.is_holding, self.world.log.error = False, Error.NONE
        self.world.log.release()

    def _move(self) -> None:
        """The partition goes to another broker and comes back."""
        self._mend_the_log()
        partition = home_of(self.coordinator, GROUP)
        self.coordinator.unload(partition)
        assert self.waiting == 0, "a move answers everybody"
        self.world.tasks.run_for_ms(self.rng.choice([0, 1000]))
        load(self.coordinator, partition, self.world.log.batches(partition))
        # Generations that nobody stored may come again.
        group = self.group()
        self.newest_generation = group.generation if group is not None else 0
        for generation in [each for each in self.leaders if each > self.newest_generation]:
            del self.leaders[generation]
        for client in self.clients:
            client.generation, client.is_in_step = -1, False
        assert self.fetched(self.coordinator) == self.committed

    def _calm(self) -> None:
        """Nobody asks for anything any more; whoever waits is answered in the end."""
        self._mend_the_log()
        assert self.fetched(self.coordinator) == self.committed
        self.world.tasks.run_for_ms(300_000 + REBALANCE_MS + SESSION_MS)
        self.check_group()
        assert self.waiting == 0, "somebody waits for ever"
        group = self.group()
        assert group is None or (group.state is EMPTY and not group.pending)


def _kind(response: Any) -> str:
    """The response's class and error."""
    if isinstance(response, OffsetCommitResponse):
        code = response.topics[0].partitions[0].error_code
    else:
        code = response.error_code
    return f"{type(response).__name__} {Error.of(code).name}"
