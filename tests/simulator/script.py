"""What of a seed's history is played: all of it, or what shrinking has left."""

from __future__ import annotations

from typing import NamedTuple


class Script(NamedTuple):
    """The same script of a seed is the same history. Each fault's randomness is its own, so that
    what is left out shifts nothing of the others."""

    faults: tuple[str, ...] | None = None  # by their names; None for all
    idle: tuple[str, ...] = ()  # clients that ask for nothing, or do not come and go
    ends_early: bool = False  # all is to be well after the last of the faults

    def has(self, fault: str) -> bool:
        return self.faults is None or fault in self.faults

    @property
    def options(self) -> list[str]:
        """As the simulator's command takes them, in any shell: no name has a space."""
        given = [f"--faults={','.join(self.faults)}"] if self.faults is not None else []
        given += [f"--idle={','.join(self.idle)}"] if self.idle else []
        return [*given, *(["--ends-early"] if self.ends_early else [])]


ALL = Script()
