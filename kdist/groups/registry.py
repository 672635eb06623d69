"""The partitions of `__consumer_offsets` that this broker leads, and their groups.

A partition is loading, then owned, until it is unloaded. Its groups appear all at once when loading
ends, and disappear all at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from kdist.errors import Error
from kdist.groups.context import GroupsContext
from kdist.groups.group import Group
from kdist.groups.loading import Loading


class Registry:
    """Owned by the coordinator."""

    def __init__(self, context: GroupsContext) -> None:
        self._context = context
        self._loading: dict[int, Loading] = {}
        self._owned: set[int] = set()
        self._groups: dict[str, Group] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def find(self, group_id: str) -> tuple[Error, Group | None]:
        """The group; else None and why: NONE if it does not exist, or NOT_COORDINATOR, or
        COORDINATOR_LOAD_IN_PROGRESS.
        """
        group = self._groups.get(group_id)
        if group is not None:
            return Error.NONE, group
        partition = self._context.partition_for(group_id)
        if partition in self._loading:
            return Error.COORDINATOR_LOAD_IN_PROGRESS, None
        return Error.NONE if partition in self._owned else Error.NOT_COORDINATOR, None

    def get(self, group_id: str) -> Group | None:
        """The group, if it exists and is coordinated here."""
        return self._groups.get(group_id)

    def create(self, group_id: str, now_ms: int) -> Group:
        """A new group in an owned partition."""
        assert group_id not in self._groups
        group = self._groups[group_id] = Group(group_id, now_ms)
        return group

    def remove(self, group: Group) -> None:
        del self._groups[group.group_id]

    def begin_loading(self, partition: int) -> Loading:
        """This broker now leads the partition. If it is loading already, loading starts over."""
        assert partition not in self._owned, f"partition {partition} is loaded"
        loading = self._loading[partition] = Loading(partition)
        return loading

    def finish_loading(self, loading: Loading, now_ms: int) -> list[Group]:
        """Add and return the loaded groups; none if this loading was abandoned in the meantime."""
        if self._loading.get(loading.partition) is not loading:
            return []
        del self._loading[loading.partition]
        self._owned.add(loading.partition)
        groups = loading.groups(now_ms)
        self._groups.update((each.group_id, each) for each in groups)
        return groups

    def unload(self, partition: int) -> list[Group]:
        """This broker no longer leads the partition. Returns its groups, now removed."""
        self._loading.pop(partition, None)
        self._owned.discard(partition)
        partition_for = self._context.partition_for
        gone = [each for each in self if partition_for(each.group_id) == partition]
        for group in gone:
            self.remove(group)
        return gone

    def loadings(self) -> list[Loading]:
        """The loadings that are not finished."""
        return list(self._loading.values())

    def partitions(self) -> list[int]:
        """All partitions that are owned or loading."""
        return sorted(self._owned | self._loading.keys())
