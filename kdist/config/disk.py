"""The settings of a broker's disk and of the marker that identifies it. All are kdist's own."""

from __future__ import annotations

from kdist.config.declare import Settings, setting, settings


@settings
class DiskSettings(Settings):
    """What is checked before a broker touches its disk; unset, nothing is checked."""

    PREFIX = "disk."

    marker: str | None = setting(
        default=None,
        subject="Disk",
        doc="kdist's own: a JSON file at the disk's root with `cluster`, `broker` and `disk`; the "
        "broker starts only if it is there and matches, so that the right disk is mounted.",
    )
    id: str | None = setting(
        default=None,
        doc="kdist's own: the disk's id that the marker must have, such as `d01`; unset, any.",
    )
    cluster: str | None = setting(
        default=None, doc="kdist's own: the cluster's name that the marker must have; unset, any."
    )
