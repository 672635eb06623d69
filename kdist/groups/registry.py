"""The partitions of `__consumer_offsets` that this broker leads, and their groups.

A partition is loading, then owned, until it is unloaded. Its groups appear all at once when loading
ends, and disappear all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kdist.errors import Error
from kdist.groups.context import GroupsContext
from kdist.groups.group import Group, Home
from kdist.groups.loading import Loading
from kdist.groups.states import DEAD
from kdist.groups.totals import Totals


class Registry:
    """Owned by the coordinator."""

    def __init__(self, context: GroupsContext) -> None:
        self._context = context
        self._loading: dict[int, Loading] = {}
        self._owned: dict[int, Home] = {}
        self._groups: dict[str, Group] = {}  # those of all homes
        # Called before a group is looked up: what is to be done of it yet comes first.
        self.catch_up: Callable[[str], None] = lambda _group_id: None

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def groups(self) -> dict[str, Group]:
        """All that are coordinated here, by id."""
        return self._groups

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def find(self, group_id: str) -> tuple[Error, Group | None]:
        """The group; else None and why: NONE if it does not exist, or NOT_COORDINATOR, or
        COORDINATOR_LOAD_IN_PROGRESS.
        """
        self.catch_up(group_id)
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

    def totals(self) -> Totals:
        """What all groups add up to."""
        of_each = [home.totals for home in self._owned.values()]
        return Totals(
            sum(each.members for each in of_each),
            sum(each.offsets for each in of_each),
            sum(each.rebalancing for each in of_each),
        )

    def create(self, group_id: str, now_ms: int) -> Group:
        """A new group in an owned partition."""
        assert group_id not in self._groups
        home = self._owned[self._context.partition_for(group_id)]
        group = self._groups[group_id] = home.groups[group_id] = Group(group_id, now_ms, home)
        return group

    def remove(self, group: Group) -> None:
        """It is DEAD from here on, as long works may still have to do with it."""
        group.become(DEAD, self._context.clock.now_ms())
        del self._groups[group.group_id]
        del group.home.groups[group.group_id]

    def begin_loading(self, partition: int) -> Loading:
        """This broker now leads the partition. If it is loading already, loading starts over."""
        assert partition not in self._owned, f"partition {partition} is loaded"
        loading = self._loading[partition] = Loading(partition)
        return loading

    def is_wanted(self, loading: Loading) -> bool:
        """Whether it was neither finished nor abandoned."""
        return self._loading.get(loading.partition) is loading

    def finish_loading(self, loading: Loading) -> bool:
        """Add the loaded groups; False if this loading was abandoned in the meantime."""
        if not self.is_wanted(loading):
            return False
        del self._loading[loading.partition]
        self._owned[loading.partition] = loading.home
        self._groups.update(loading.home.groups)
        return True

    def unload(self, partition: int) -> list[Group]:
        """This broker no longer leads the partition. Returns its groups, now removed and DEAD.

        With 100,000 groups this takes 10 ms; what else there is to do for each is for the caller.
        """
        self._loading.pop(partition, None)
        home = self._owned.pop(partition, None)
        if home is None:
            return []
        home.is_left = True
        gone = list(home.groups.values())
        for group in gone:
            group.state = DEAD
            del self._groups[group.group_id]
        return gone

    def loadings(self) -> list[Loading]:
        """The loadings that are not finished."""
        return list(self._loading.values())

    def partitions(self) -> list[int]:
        """All partitions that are owned or loading."""
        return sorted(self._owned.keys() | self._loading.keys())
