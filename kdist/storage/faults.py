"""Storage's own exception: a small file whose content is not in its format.

Not for damage in a `.log`: recovery cuts that off, and a fetch of it answers `CorruptRecords`.
"""

from __future__ import annotations

from kdist.errors import UserError

_SHOWN_MAX = 40


class CorruptFile(UserError):
    """A checkpoint, snapshot or properties file whose content is not in its format.

    Files that can be rebuilt from the log (checkpoints, epochs, snapshots) are: callers catch this.
    For others, as `meta.properties`, it reaches the user, so it is a `UserError`. It is no
    `DiskFailed`, since the disk did answer, and its other files are still trusted.
    """

    def __init__(self, path: str, line: int | None, reason: str) -> None:
        """`line` counts from 1; None for a binary file or for the file as a whole."""
        where = path if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


def shown(text: str) -> str:
    """What a file contains instead of the expected text, quoted for a message, cut if long."""
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}...")
