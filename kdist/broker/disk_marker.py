"""The marker file at a disk's root, checked before anything on the disk is touched.

    /data/d01/disk.json    {"cluster": "prod-dc1", "broker": 201, "disk": "d01"}

Without it, a broker whose disk is not mounted would create an empty log on the root filesystem.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from kdist.config.disk import DiskSettings
from kdist.errors import UserError
from kdist.runtime.files import Files


class WrongDisk(UserError):
    """The disk is missing, or not this broker's. A restart is of no use: systemd makes none."""

    EXIT_STATUS = 78  # sysexits.h EX_CONFIG


def check_marker(settings: DiskSettings, broker_id: int, files: Files) -> None:
    """Raise `WrongDisk` if `disk.marker` is set and the file is missing or not this broker's."""
    path = settings.marker
    if path is None:
        return
    marker = _read(path, files)
    wanted = {"cluster": settings.cluster, "broker": broker_id, "disk": settings.id}
    for name, value in wanted.items():
        if value is not None and marker.get(name) != value:
            raise WrongDisk(
                f"{path} names {name} {marker.get(name)!r}, but this is {name} {value!r}:"
                " check which disk is mounted here"
            )


def _read(path: str, files: Files) -> Mapping[str, object]:
    try:
        marker = json.loads(files.read(path))
    except (FileNotFoundError, PermissionError):  # an unmounted mount point is readable to nobody
        raise WrongDisk(f"{path} is not there: is the disk mounted?") from None
    except ValueError:
        raise WrongDisk(f"{path} is not JSON, so it does not say whose disk this is") from None
    if not isinstance(marker, dict):
        raise WrongDisk(f"{path} is not a JSON object, so it does not say whose disk this is")
    return marker
