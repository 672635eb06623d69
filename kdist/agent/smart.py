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
    devices = _parsed(output).get("devices")
    for each in devices if isinstance(devices, list) else ():
        if isinstance(each, dict) and "name" in each:
            yield str(each["name"])


def read_health(device: str, output: bytes) -> DiskHealth | None:
    """What `smartctl --json --info --health --attributes` said; None for no disk with SMART."""
    said = _parsed(output)
    if "smart_status" not in said:
        return None
    try:
        return _health(device, said)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # not as smartctl writes it


def _health(device: str, said: dict[str, Any]) -> DiskHealth:
    table = said.get("ata_smart_attributes", {}).get("table", ())
    ata = {row["id"]: _number(row["raw"]["value"]) for row in table}
    nvme = said.get("nvme_smart_health_information_log", {})
    return DiskHealth(
        device=device,
        model=said.get("model_name", ""),
        serial=said.get("serial_number", ""),
        is_healthy=said["smart_status"].get("passed"),
        temperature_celsius=_number(said.get("temperature", {}).get("current")),
        power_on_hours=_number(said.get("power_on_time", {}).get("hours")),
        reallocated_sectors=ata.get(_REALLOCATED),
        pending_sectors=ata.get(_PENDING),
        uncorrectable_sectors=ata.get(_UNCORRECTABLE, _number(nvme.get("media_errors"))),
        link_errors=ata.get(_LINK),
    )


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))


def _parsed(output: bytes) -> dict[str, Any]:
    try:
        said = json.loads(output)
    except ValueError:
        return {}  # it wrote nothing, or was ended in the middle
    return said if isinstance(said, dict) else {}
