"""Parses the output of `smartctl --json` (pure): of ATA, NVMe and SCSI disks.

Source: smartctl(8); these attribute numbers mean the same with all vendors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

_REPORTED, _TIMEOUTS = 187, 188
_REALLOCATED, _PENDING, _UNCORRECTABLE, _LINK = 5, 197, 198, 199


class DiskHealth(NamedTuple):
    """One disk's health; None for values that it does not report."""

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
    reported_errors: int | None = None
    command_timeouts: int | None = None


def read_scan(output: bytes) -> Iterator[str]:
    """The devices that `smartctl --json --scan` found; none if its output is invalid."""
    devices = _parsed(output).get("devices")
    for each in devices if isinstance(devices, list) else ():
        if isinstance(each, dict) and "name" in each:
            yield str(each["name"])


def read_health(device: str, output: bytes) -> DiskHealth | None:
    """Parse `smartctl --json --info --health --attributes`; None for a disk without SMART."""
    said = _parsed(output)
    if "smart_status" not in said:
        return None
    try:
        return _health(device, said)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # an unknown format


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
        reallocated_sectors=ata.get(_REALLOCATED, _number(said.get("scsi_grown_defect_list"))),
        pending_sectors=ata.get(_PENDING),
        uncorrectable_sectors=ata.get(_UNCORRECTABLE, _number(nvme.get("media_errors"))),
        reported_errors=ata.get(_REPORTED, _scsi_errors(said.get("scsi_error_counter_log"))),
        # Some vendors pack three counts into it, the lowest of them this one.
        command_timeouts=None if (packed := ata.get(_TIMEOUTS)) is None else packed & 0xFFFF,
        link_errors=ata.get(_LINK),
    )


def _scsi_errors(log: dict[str, Any] | None) -> int | None:
    """Errors of reads, writes and verifications that were not corrected."""
    if not log:
        return None
    return sum(_number(each.get("total_uncorrected_errors")) or 0 for each in log.values())


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))


def _parsed(output: bytes) -> dict[str, Any]:
    try:
        said = json.loads(output)
    except ValueError:
        return {}  # smartctl wrote nothing, or was killed while it wrote
    return said if isinstance(said, dict) else {}
