"""The groups of the partitions that this broker leads, and which partitions these are.

A partition is loading, then owned, until it is unloaded; its groups come all at once when loading
ends, and go all at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from kdist.errors import Error
from kdist.groups.group import Group
from kdist.groups.loading import Loading
from kdist.groups.world import World


class Registry:
    """Owned by the coordinator."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._loading: dict[int, Loading] = {}
        self._owned: set[int] = set()
        self._groups: dict[str, Group] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def is_loading(self) -> bool:
        """Whether any partition's groups are not here yet."""
        return bool(self._loading)

    def find(self, group_id: str) -> tuple[Error, Group | None]:
        """The group if there is one; else the error if it could not be here, or not yet."""
        group = self._groups.get(group_id)
        if group is not None:
            return Error.NONE, group
        partition = self._world.partition_for(group_id)
        if partition in self._loading:
            return Error.COORDINATOR_LOAD_IN_PROGRESS, None
        return Error.NONE if partition in self._owned else Error.NOT_COORDINATOR, None

    def get(self, group_id: str) -> Group | None:
        """The group, if it is here."""
        return self._groups.get(group_id)

    def create(self, group_id: str, now_ms: int) -> Group:
        """A new group in an owned partition."""
        assert group_id not in self._groups
        group = self._groups[group_id] = Group(group_id, now_ms)
        return group

    def remove(self, group: Group) -> None:
        """Forget the group."""
        del self._groups[group.group_id]

    def begin_loading(self, partition: int) -> Loading:
        """The partition is led by this broker now. One that is loading begins anew."""
        assert partition not in self._owned, f"partition {partition} is loaded"
        loading = self._loading[partition] = Loading(partition)
        return loading

    def finish_loading(self, loading: Loading, now_ms: int) -> list[Group]:
        """Take the loaded groups in; none if the partition was unloaded or begun anew since."""
        if self._loading.get(loading.partition) is not loading:
            return []
        del self._loading[loading.partition]
        self._owned.add(loading.partition)
        groups = loading.groups(now_ms)
        self._groups.update((each.group_id, each) for each in groups)
        return groups

    def unload(self, partition: int) -> list[Group]:
        """The partition is led elsewhere now. Returns the groups that were here."""
        self._loading.pop(partition, None)
        self._owned.discard(partition)
        partition_for = self._world.partition_for
        gone = [each for each in self if partition_for(each.group_id) == partition]
        for group in gone:
            self.remove(group)
        return gone

    def loadings(self) -> list[Loading]:
        """What is being loaded."""
        return list(self._loading.values())

    def partitions(self) -> list[int]:
        """All partitions that are owned or loading."""
        return sorted(self._owned | self._loading.keys())
