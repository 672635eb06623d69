"""The partitions of `__consumer_offsets` that this broker leads, and their groups.

A partition is loading, then owned, until it is unloaded. Its groups appear all at once when loading
ends, and disappear all at once.

A partition may have 100,000 groups, and a group as many offsets: what concerns them all is done in
slices. A `_Sweep` is such work that a group must not be seen without: whoever asks for a group has
it done for that one first.
"""

from __future__ import annotations

from collections.abc import Callable

from kdist.errors import Error
from kdist.groups.context import GroupsContext
from kdist.groups.group import DEAD, Group, Home, Totals
from kdist.groups.records import Loading
from kdist.runtime.steps import CountedSteps

Find = Callable[[str], tuple[Error, Group | None]]  # as `Registry.find`


class _Sweep:
    """Work on many groups."""

    def __init__(self, groups: dict[str, Group], visit: Callable[[Group], CountedSteps]) -> None:
        """`visit` may find the group DEAD, at first and after each step."""
        self._left = dict(reversed(groups.items()))  # which are taken from the end
        self._visit = visit
        self._visited: str | None = None
        self._steps: CountedSteps = iter(())

    def steps(self) -> CountedSteps:
        """Visit those that are left."""
        while self._left:
            self._visited, group = self._left.popitem()
            self._steps = self._visit(group)
            yield from self._steps
            yield 1

    def catch_up(self, group_id: str) -> None:
        """Do at once what is left to do of one group."""
        if self._visited == group_id:
            _exhaust(self._steps)
        group = self._left.pop(group_id, None)
        if group is not None:
            _exhaust(self._visit(group))


class Registry:
    """Owned by the coordinator."""

    def __init__(self, context: GroupsContext) -> None:
        self._context = context
        self._loading: dict[int, Loading] = {}
        self._owned: dict[int, Home] = {}
        self.groups: dict[str, Group] = {}  # those of all homes, by id
        self._sweeps: list[_Sweep] = []

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def find(self, group_id: str) -> tuple[Error, Group | None]:
        """The group; else None and why: NONE if it does not exist, or NOT_COORDINATOR, or
        COORDINATOR_LOAD_IN_PROGRESS.
        """
        for sweep in self._sweeps:
            sweep.catch_up(group_id)
        group = self.groups.get(group_id)
        if group is not None:
            return Error.NONE, group
        partition = self._context.partition_for(group_id)
        if partition in self._loading:
            return Error.COORDINATOR_LOAD_IN_PROGRESS, None
        return Error.NONE if partition in self._owned else Error.NOT_COORDINATOR, None

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
        assert group_id not in self.groups
        home = self._owned[self._context.partition_for(group_id)]
        group = self.groups[group_id] = home.groups[group_id] = Group(group_id, now_ms, home)
        return group

    def remove(self, group: Group) -> None:
        """It is DEAD from here on, as long works may still have to do with it."""
        group.become(DEAD, self._context.clock.now_ms())
        del self.groups[group.group_id]
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
        self.groups.update(loading.home.groups)
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
            del self.groups[group.group_id]
        return gone

    def sweep(
        self, groups: dict[str, Group], visit: Callable[[Group], CountedSteps]
    ) -> CountedSteps:
        """CountedSteps that visit these groups, as `_Sweep` says."""
        sweep = _Sweep(groups, visit)
        self._sweeps.append(sweep)
        return self._steps_of(sweep)

    def _steps_of(self, sweep: _Sweep) -> CountedSteps:
        yield from sweep.steps()
        self._sweeps.remove(sweep)

    def loadings(self) -> list[Loading]:
        """The loadings that are not finished."""
        return list(self._loading.values())

    def partitions(self) -> list[int]:
        """All partitions that are owned or loading."""
        return sorted(self._owned.keys() | self._loading.keys())


def _exhaust(steps: CountedSteps) -> None:
    for _ in steps:
        pass
