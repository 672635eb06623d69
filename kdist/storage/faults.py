"""What storage raises of its own: a small file that does not read as its format says.

A damaged `.log` is not among them: recovery cuts it, and a fetch of it answers `CorruptRecords`.
"""

from __future__ import annotations

from kdist.errors import UserError

_SHOWN_MAX = 40


class CorruptFile(UserError):
    """A checkpoint, snapshot or properties file whose content is not its format.

    Who can rebuild the file (checkpoints, epochs, snapshots: the log is the truth) catches this and
    does. Where nobody can, as with `meta.properties`, it reaches a person: so it is a `UserError`,
    and not a `DiskFailed`, for the disk answered and the rest of it is still trusted.
    """

    def __init__(self, path: str, line: int | None, reason: str) -> None:
        """`line` counts from 1; None for a binary file or for the file as a whole."""
        where = path if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


def shown(text: str) -> str:
    """What a file has in the place of what was looked for, quoted, and cut where it is long."""
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}...")
