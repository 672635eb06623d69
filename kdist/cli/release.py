"""Which release of kdist this is."""

from __future__ import annotations

import json
import os.path
import sys

import kdist

_METADATA = "kdist-", ".dist-info"
_DESCRIPTION = "RELEASE.json"  # tools/describe_release.py writes it; a deployment keeps it


def release() -> str | None:
    """As `0.1.0`; None for a tree that is not installed."""
    from kdist.runtime.disk import Disk

    start, end = _METADATA
    for name in Disk().list(os.path.dirname(os.path.dirname(kdist.__file__))):
        if name.startswith(start) and name.endswith(end):
            return name.removeprefix(start).removesuffix(end)
    from importlib.metadata import PackageNotFoundError, version  # takes 20 ms

    try:
        return version("kdist")
    except PackageNotFoundError:
        return None


def release_digest() -> str:
    """The digest of the wheels that this virtual environment was deployed from; "" elsewhere."""
    from kdist.runtime.disk import Disk

    path = f"{sys.prefix}/{_DESCRIPTION}"
    disk = Disk()
    return str(json.loads(disk.read(path))["digest"]) if disk.exists(path) else ""
