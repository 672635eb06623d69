"""How much of the deployment the host did not accept, as its last run has written it.

A file for each role, `kdist_tuning.json`: a list of sentences.
"""

from __future__ import annotations

import json
import logging

from kdist.errors import KdistError
from kdist.runtime.files import Files

logger = logging.getLogger(__name__)

_END = ".json"


def count_not_applied(files: Files, directory: str) -> dict[str, int]:
    """By role; a file that cannot be read counts as one thing that is not as it was wanted."""
    found = {}
    try:
        names = [name for name in files.list(directory) if name.endswith(_END)]
    except (OSError, KdistError):
        return {}  # a host that no role has set up
    for name in names:
        role = name.removesuffix(_END)
        try:
            found[role] = len(json.loads(files.read(f"{directory}/{name}")))
        except (OSError, KdistError, ValueError, TypeError) as error:
            logger.debug("%s/%s: %r", directory, name, error)
            found[role] = 1
    return found
