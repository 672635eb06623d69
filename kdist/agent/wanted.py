"""What each broker of the host shall run, as the last run of the deployment has written it.

A file for each broker, `broker-d01.json`: the digests of release, settings and unit, which the
broker's process shows of what it does run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import NamedTuple

from kdist.errors import KdistError
from kdist.runtime.files import Files

logger = logging.getLogger(__name__)

_START, _END = "broker-", ".json"


class WantedBroker(NamedTuple):
    """The digests that the broker on `disk` shall show."""

    disk: str
    release: str
    settings: str
    unit: str


def read_wanted(files: Files, directory: str) -> list[WantedBroker]:
    """Every broker's; one whose file cannot be read is left out."""
    return list(_read(files, directory))


def _read(files: Files, directory: str) -> Iterator[WantedBroker]:
    try:
        names = [n for n in files.list(directory) if n.startswith(_START) and n.endswith(_END)]
    except (OSError, KdistError):
        return  # a host without brokers has no such directory
    for name in names:
        try:
            said = json.loads(files.read(f"{directory}/{name}"))
            digests = [str(said[each]) for each in WantedBroker._fields[1:]]
        except (OSError, KdistError, ValueError, TypeError, KeyError) as error:
            logger.debug("%s/%s: %r", directory, name, error)
        else:
            yield WantedBroker(name.removeprefix(_START).removesuffix(_END), *digests)
