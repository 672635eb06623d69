"""Scenarios as transcripts: commands at the margin, what follows from each indented below it.

    join a v=0
    pass 3000
        a joined generation 1 by range, leader a, members a

`check` carries out the commands of such a text and compares it with what really followed. A name
stands for a client; it keeps the member id and the generation that its last JoinGroup gave it, and
member ids are shown by those names. The group is "readers", and does not wait for more members.

What a test begins with is one line, below which nothing is shown, as it must go as it should:

    completing a b/two        a, and b with the instance id "two", wait for their assignment
    stable a b                they have it, a that of p0 and b that of p1
    empty a                   a was the last member
    committed t-0:1 u-0:3     by a client outside
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable
from typing import Any

from groups_world import GroupsWorld, home_of, load

from kdist.errors import Error
from kdist.groups.coordinator import Caller
from kdist.groups.group import COMPLETING, EMPTY, STABLE, GroupState
from kdist.model import TopicPartition
from kdist.protocol.compiler import codec_for
from kdist.protocol.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kdist.protocol.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kdist.protocol.group_records import (
    GroupMetadataKey,
    OffsetCommitKey,
    read_group_value,
    read_key,
    read_offset_value,
)
from kdist.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kdist.protocol.join_group import (
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
)
from kdist.protocol.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
)
from kdist.protocol.list_groups import ListGroupsRequest, ListGroupsResponse
from kdist.protocol.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
)
from kdist.protocol.offset_delete import (
    ForgottenPartition,
    ForgottenTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from kdist.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
)
from kdist.protocol.sync_group import (
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)

GROUP = "readers"
Options = dict[str, str]


def check(script: str) -> None:
    """Assert that what is written below each command is what follows from it."""
    assert play(script) == textwrap.dedent(script).strip() + "\n"


def play(script: str) -> str:
    """The transcript of what really happens."""
    player, lines = Player(), []
    for line in textwrap.dedent(script).strip().splitlines():
        if not line.startswith(" ") and line:
            lines += [line, *(f"    {outcome}" for outcome in player.run(line))]
        elif not line:
            lines.append("")
    return "\n".join(lines) + "\n"


class Player:
    """Carries out one command after the other and notes what follows."""

    def __init__(self) -> None:
        self.world = GroupsWorld(initial_rebalance_delay_ms=0)
        self.world.log.on_append = self._note_append
        self.coordinator = self.world.coordinator
        self.ids: dict[str, str] = {}
        self.names: dict[str, str] = {"": "nobody"}
        self.generations: dict[str, int] = {}
        self.outcomes: list[str] = []

    def run(self, line: str) -> list[str]:
        """What follows from the command."""
        command, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        getattr(self, f"_{command}")(plain, options)
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def _completing(self, plain: list[str], options: Options) -> None:
        for each in plain:
            name, _, instance = each.partition("/")
            static = {"v": "5", "instance": instance} if instance else {}
            self._join([name], static | options)
        self._pass(["0"], {})
        self._has_members(COMPLETING, plain)

    def _stable(self, plain: list[str], options: Options) -> None:
        self._completing(plain, options)
        names = [each.partition("/")[0] for each in plain]
        given = ",".join(f"{name}:p{number}" for number, name in enumerate(names))
        for name in names:
            self._sync([name], {"give": given})
        outcomes = [f"{name} is assigned p{number}" for number, name in enumerate(names)]
        assert [each for each in self.outcomes if not each.startswith("log: ")] == outcomes
        self._has_members(STABLE, plain)

    def _empty(self, plain: list[str], options: Options) -> None:
        self._completing(plain, options)
        for each in plain:
            self._leave([each.partition("/")[0]], {})
        self._has_members(EMPTY, [])

    def _has_members(self, state: GroupState, members: list[str]) -> None:
        """The group is in that state, and nobody waits for an answer; forget how it came to be."""
        group = self.coordinator._registry.groups[GROUP]
        found = [(self._name(each.member_id), each.instance_id) for each in group.members.values()]
        shown = [f"{name}/{instance}" if instance else name for name, instance in found]
        assert (group.state, shown) == (state, members), self.outcomes
        assert not group.joining | group.syncing
        self.outcomes.clear()

    def _committed(self, plain: list[str], options: Options) -> None:
        self._commit(["outside", *plain], options)
        offsets = self.coordinator._registry.groups[GROUP].offsets
        found = [f"{each.topic}-{each.partition}:{offsets.get(each).offset}" for each in offsets]
        assert found == plain, self.outcomes
        self.outcomes.clear()

    def _pass(self, plain: list[str], _options: Options) -> None:
        self.world.tasks.run_for_ms(int(plain[0]))

    def _log(self, plain: list[str], _options: Options) -> None:
        """`log holds`, `log continues`, `log fails ERROR`, `log works`."""
        log = self.world.log
        match plain:
            case ["holds"]:
                log.is_holding = True
            case ["continues"]:
                log.is_holding = False
                log.release()
            case ["fails", name]:
                log.error = Error[name]
            case ["works"]:
                log.error = Error.NONE

    def _unload(self, _plain: list[str], _options: Options) -> None:
        self.coordinator.unload(home_of(self.coordinator, GROUP))

    def _load(self, _plain: list[str], _options: Options) -> None:
        partition = home_of(self.coordinator, GROUP)
        load(self.coordinator, partition, self.world.log.batches(partition))

    def _begin_loading(self, _plain: list[str], _options: Options) -> None:
        self.coordinator.begin_loading(home_of(self.coordinator, GROUP))

    def _set(self, _plain: list[str], options: Options) -> None:
        changed = {name: int(value) for name, value in options.items()}
        self.world.settings = dataclasses.replace(self.world.settings, **changed)
        self.world.given.settings = self.world.settings

    def _join(self, plain: list[str], options: Options) -> None:
        name = plain[0]
        request = JoinGroupRequest(
            group_id=options.get("group", GROUP),
            session_timeout_ms=int(options.get("session", 10_000)),
            rebalance_timeout_ms=int(options.get("rebalance", 60_000)),
            member_id=self._id(name, options),
            group_instance_id=options.get("instance"),
            protocol_type=options.get("type", "consumer"),
            protocols=[_protocol(each) for each in _listed(options.get("by", "range"))],
        )
        caller = self._caller(name, options)
        reply = self._once(caller, lambda response: self._note_join(name, response))
        self.coordinator.join_group(request, caller, reply)

    def _sync(self, plain: list[str], options: Options) -> None:
        name = plain[0]
        given = [pair.split(":") for pair in _listed(options.get("give", ""))]
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self._generation(name, options),
            member_id=self._id(name, options),
            group_instance_id=options.get("instance"),
            protocol_type=options.get("type"),
            protocol_name=options.get("by"),
            assignments=[
                SyncGroupAssignment(member_id=self.ids[to], assignment=what.encode())
                for to, what in given
            ],
        )
        caller = self._caller(name, options)
        reply = self._once(caller, lambda response: self._note_sync(name, response))
        self.coordinator.sync_group(request, caller, reply)

    def _heartbeat(self, plain: list[str], options: Options) -> None:
        name = plain[0]
        request = HeartbeatRequest(
            group_id=options.get("group", GROUP),
            generation_id=self._generation(name, options),
            member_id=self._id(name, options),
            group_instance_id=options.get("instance"),
        )

        def note(response: HeartbeatResponse) -> None:
            self.outcomes.append(f"{name} heartbeat {Error.of(response.error_code).name}")

        caller = self._caller(name, options)
        self.coordinator.heartbeat(request, caller, self._once(caller, note))

    def _leave(self, plain: list[str], options: Options) -> None:
        caller = self._caller(plain[0] if plain else "admin", options)
        leaving = [LeavingMember(member_id=self._id(name, options)) for name in plain]
        if "instance" in options and not plain:
            leaving = [LeavingMember(member_id="", group_instance_id=options["instance"])]
        elif "instance" in options:
            leaving[0].group_instance_id = options["instance"]
        request = LeaveGroupRequest(group_id=options.get("group", GROUP), members=leaving)
        if caller.version < 3:
            request = LeaveGroupRequest(group_id=GROUP, member_id=leaving[0].member_id)

        def note(response: LeaveGroupResponse) -> None:
            results = [Error.of(each.error_code).name for each in response.members]
            error = Error.of(response.error_code).name
            self.outcomes.append(f"leave {error}{': ' if results else ''}{' '.join(results)}")

        self.coordinator.leave_group(request, caller, self._once(caller, note))

    def _commit(self, plain: list[str], options: Options) -> None:
        """`commit a t-0:5`; "outside" for a client that is no member."""
        name, *positions = plain
        request = OffsetCommitRequest(
            group_id=options.get("group", GROUP),
            generation_id=self._generation(name, options),
            member_id=self._id(name, options),
            group_instance_id=options.get("instance"),
            retention_time_ms=int(options.get("retention", -1)),
            topics=[_topic_commit(each, options) for each in positions],
        )

        def note(response: OffsetCommitResponse) -> None:
            results = [
                f"{topic.name}-{each.partition_index} {Error.of(each.error_code).name}"
                for topic in response.topics
                for each in topic.partitions
            ]
            self.outcomes.append(f"{name} committed {', '.join(results)}")

        caller = self._caller(name, options)
        self.coordinator.offset_commit(request, caller, self._once(caller, note))

    def _fetch(self, plain: list[str], options: Options) -> None:
        """`fetch t-0 t-1`, `fetch` for all, `fetch t-0 stable=1`."""
        asked = [each.rsplit("-", 1) for each in plain]
        request = OffsetFetchRequest(
            group_id=options.get("group", GROUP),
            topics=[OffsetFetchTopic(name=t, partition_indexes=[int(p)]) for t, p in asked] or None,
            require_stable="stable" in options,
        )

        def note(response: OffsetFetchResponse) -> None:
            results = [
                _shown_offset(t.name, each) for t in response.topics for each in t.partitions
            ]
            error = Error.of(response.error_code)
            self.outcomes.append(
                f"offsets {', '.join(results) or 'none'}" + (f" {error.name}" if error else "")
            )

        caller = self._caller("admin", {"v": "7"} | options)
        self.coordinator.offset_fetch(request, caller, self._once(caller, note))

    def _describe(self, plain: list[str], _options: Options) -> None:
        request = DescribeGroupsRequest(groups=plain or [GROUP])

        def note(response: DescribeGroupsResponse) -> None:
            for each in response.groups:
                error = "" if each.error_code == 0 else f" {Error.of(each.error_code).name}"
                members = "".join(f", {self._shown_member(member)}" for member in each.members)
                kind = f" {each.protocol_type or '-'} by {each.protocol_data or '-'}"
                self.outcomes.append(
                    f"{each.group_id} {each.group_state or '-'}{kind}{members}{error}"
                )

        caller = self._caller("admin", {"v": "4"})
        self.coordinator.describe_groups(request, caller, self._once(caller, note))

    def _list(self, plain: list[str], options: Options) -> None:
        def note(response: ListGroupsResponse) -> None:
            shown = [
                f"{e.group_id} {e.group_state} {e.protocol_type or '-'}" for e in response.groups
            ]
            error = Error.of(response.error_code)
            self.outcomes.append(f"groups {', '.join(shown) or 'none'} {error.name}")

        types = [options["type"]] if "type" in options else []
        request = ListGroupsRequest(states_filter=plain, types_filter=types)
        caller = self._caller("admin", {"v": "4"})
        self.coordinator.list_groups(request, caller, self._once(caller, note))

    def _expire(self, _plain: list[str], _options: Options) -> None:
        self.coordinator.start()
        self.world.tasks.run_for_ms(self.world.settings.offsets_retention_check_interval_ms)
        self.coordinator._deletion.stop()

    def _delete(self, plain: list[str], _options: Options) -> None:
        self.coordinator.forget_partitions([_partition(each) for each in plain])

    def _remove(self, plain: list[str], _options: Options) -> None:
        """DeleteGroups: `remove [GROUP ...]`."""

        def note(response: DeleteGroupsResponse) -> None:
            shown = [f"{e.group_id} {Error.of(e.error_code).name}" for e in response.results]
            self.outcomes.append(f"removed {', '.join(shown) or 'none'}")

        caller = self._caller("admin", {"v": "2"})
        request = DeleteGroupsRequest(groups_names=plain or [GROUP])
        self.coordinator.delete_groups(request, caller, self._once(caller, note))

    def _forget(self, plain: list[str], options: Options) -> None:
        """OffsetDelete: `forget t-0 t-1`, for the group or `group=`."""

        def note(response: OffsetDeleteResponse) -> None:
            shown = [
                f"{topic.name}-{each.partition_index} {Error.of(each.error_code).name}"
                for topic in response.topics
                for each in topic.partitions
            ]
            whole = Error.of(response.error_code)
            self.outcomes.append(f"forgot {', '.join(shown) or whole.name}")

        caller = self._caller("admin", {"v": "0"})
        topics = [
            ForgottenTopic(name=topic, partitions=[ForgottenPartition(partition_index=index)])
            for topic, index in map(_partition, plain)
        ]
        request = OffsetDeleteRequest(group_id=options.get("group", GROUP), topics=topics)
        self.coordinator.offset_delete(request, caller, self._once(caller, note))

    def _subscribe(self, plain: list[str], _options: Options) -> None:
        """`subscribe t u`: what the group's members read, as if their metadata said so."""
        self.coordinator._registry.groups[GROUP].subscribed_topics = frozenset(plain)

    def _id(self, name: str, options: Options) -> str:
        return options.get("id", self.ids.get(name, ""))

    def _generation(self, name: str, options: Options) -> int:
        return int(options.get("generation", self.generations.get(name, -1)))

    def _caller(self, name: str, options: Options) -> Caller:
        return Caller(int(options.get("v", 3)), name, f"/{name}")

    def _once(self, caller: Caller, note: Callable[[Any], None]) -> Callable[[Any], None]:
        """A reply that may be called once, with what its version has bytes for."""
        calls: list[object] = []

        def reply(response: object) -> None:
            calls.append(response)
            assert len(calls) == 1, f"answered twice: {calls}"
            codec_for(type(response), caller.version).encode(response, bytearray())
            note(response)

        return reply

    def _note_join(self, name: str, response: JoinGroupResponse) -> None:
        error = Error.of(response.error_code)
        if response.member_id and error in (Error.NONE, Error.MEMBER_ID_REQUIRED):
            self.ids[name] = response.member_id
            self.names.setdefault(response.member_id, name)
        if error is not Error.NONE:
            self.outcomes.append(f"{name} join {error.name}")
            return
        self.generations[name] = response.generation_id
        members = " ".join(
            f"{self._name(each.member_id)}{_said(each.metadata)}" for each in response.members
        )
        self.outcomes.append(
            f"{name} joined generation {response.generation_id} by {response.protocol_name},"
            f" leader {self._name(response.leader)}"
            + (f", members {members}" if members else "")
            + (", skips assignment" if response.skip_assignment else "")
        )

    def _note_sync(self, name: str, response: SyncGroupResponse) -> None:
        error = Error.of(response.error_code)
        what = response.assignment.decode() or "nothing"
        self.outcomes.append(f"{name} sync {error.name}" if error else f"{name} is assigned {what}")

    def _note_append(self, _partition: int, records: list[tuple[bytes, bytes | None]]) -> None:
        for key, value in records:
            self.outcomes.append(f"log: {self._shown_record(read_key(key), value)}")

    def _shown_record(self, key: object, value: bytes | None) -> str:
        if isinstance(key, OffsetCommitKey):
            position = "gone" if value is None else str(read_offset_value(value).offset)
            return f"{key.group} {key.topic}-{key.partition} {position}"
        assert isinstance(key, GroupMetadataKey)
        if value is None:
            return f"{key.group} gone"
        read = read_group_value(value)
        given = "".join(
            f" {self._name(each.member_id)}:{each.assignment.decode()}" for each in read.members
        )
        return f"{key.group} generation {read.generation}{given or ' empty'}"

    def _shown_member(self, member: Any) -> str:
        metadata, given = member.member_metadata.decode(), member.member_assignment.decode()
        instance = f"={member.group_instance_id}" if member.group_instance_id else ""
        return f"{self._name(member.member_id)}{instance}({metadata}) {given or '-'}"

    def _name(self, member_id: str) -> str:
        """A client's name; one that was not answered yet goes by its prefix."""
        return self.names.get(member_id) or f"{member_id[:-37]}'"


def _listed(text: str) -> list[str]:
    return text.split(",") if text else []


def _protocol(text: str) -> JoinGroupProtocol:
    name, _, metadata = text.partition(":")
    return JoinGroupProtocol(name=name, metadata=metadata.encode())


def _said(metadata: bytes) -> str:
    return f"({metadata.decode()})" if metadata else ""


def _partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def _topic_commit(text: str, options: Options) -> OffsetCommitTopic:
    where, _, offset = text.partition(":")
    partition = _partition(where)
    commit = OffsetCommitPartition(
        partition_index=partition.partition,
        committed_offset=int(offset),
        committed_metadata=options.get("metadata"),
    )
    return OffsetCommitTopic(name=partition.topic, partitions=[commit])


def _shown_offset(topic: str, result: Any) -> str:
    error = Error.of(result.error_code)
    return f"{topic}-{result.partition_index} {error.name if error else result.committed_offset}"
