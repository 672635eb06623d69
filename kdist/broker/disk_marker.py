"""The marker at a disk's root, compared before anything on the disk is touched.

    /data/d01/disk.json    {"cluster": "prod-dc1", "broker": 201, "disk": "d01"}

Without it a broker whose disk is not mounted would begin a new, empty log on the root disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from kdist.config.disk import DiskSettings
from kdist.errors import UserError
from kdist.runtime.files import Files


class WrongDisk(UserError):
    """The disk is missing or another's: starting again does not help, so systemd does not."""

    EXIT_STATUS = 78  # sysexits.h EX_CONFIG


def check_marker(settings: DiskSettings, broker_id: int, files: Files) -> None:
    """`WrongDisk` unless the marker is there and this broker's; nothing if none is asked for."""
    path = settings.marker
    if path is None:
        return
    marker = _read(path, files)
    wanted = {"cluster": settings.cluster, "broker": broker_id, "disk": settings.id}
    for name, value in wanted.items():
        if value is not None and marker.get(name) != value:
            raise WrongDisk(
                f"{path} is of {name} {marker.get(name)!r}, and this is {name} {value!r}:"
                " check which disk is mounted here"
            )


def _read(path: str, files: Files) -> Mapping[str, object]:
    try:
        marker = json.loads(files.read(path))
    except (FileNotFoundError, PermissionError):  # the directory below a mount is closed to all
        raise WrongDisk(f"{path} is not there: is the disk mounted?") from None
    except ValueError:
        raise WrongDisk(f"{path} is not JSON: whose disk this is cannot be told") from None
    if not isinstance(marker, dict):
        raise WrongDisk(f"{path} is not a JSON object: whose disk this is cannot be told")
    return marker
