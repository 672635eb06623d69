"""What `smartctl --json` says of a disk (pure). ATA by attribute number, NVMe by its health log.

Source: smartctl(8); the numbers are the ones that vendors agree on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

_REALLOCATED, _PENDING, _UNCORRECTABLE, _LINK = 5, 197, 198, 199


class DiskHealth(NamedTuple):
    """One disk's; None for what it does not say."""

    device: str
    model: str
    serial: str
    is_healthy: bool | None
    temperature_celsius: int | None
    power_on_hours: int | None
    reallocated_sectors: int | None
    pending_sectors: int | None
    uncorrectable_sectors: int | None
    link_errors: int | None


def read_scan(output: bytes) -> Iterator[str]:
    """The devices that `smartctl --json --scan` found; none if it said nothing to be read."""
    yield from (str(each["name"]) for each in _parsed(output).get("devices", ()))


def read_health(device: str, output: bytes) -> DiskHealth | None:
    """What `smartctl --json --info --health --attributes` said; None for no disk with SMART."""
    said = _parsed(output)
    if "smart_status" not in said:
        return None
    table = said.get("ata_smart_attributes", {}).get("table", ())
    ata = {row["id"]: row["raw"]["value"] for row in table}
    nvme = said.get("nvme_smart_health_information_log", {})
    return DiskHealth(
        device=device,
        model=said.get("model_name", ""),
        serial=said.get("serial_number", ""),
        is_healthy=said["smart_status"].get("passed"),
        temperature_celsius=said.get("temperature", {}).get("current"),
        power_on_hours=said.get("power_on_time", {}).get("hours"),
        reallocated_sectors=ata.get(_REALLOCATED),
        pending_sectors=ata.get(_PENDING),
        uncorrectable_sectors=ata.get(_UNCORRECTABLE, nvme.get("media_errors")),
        link_errors=ata.get(_LINK),
    )


def _parsed(output: bytes) -> dict[str, Any]:
    try:
        said = json.loads(output)
    except ValueError:
        return {}  # it wrote nothing, or was ended in the middle
    return said if isinstance(said, dict) else {}
