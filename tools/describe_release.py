"""Writes a bundle's requirements.txt and RELEASE.json from its wheels.

The digest covers the wheels' names and hashes. It depends on nothing else, such as when or where
they were packed, and identifies the release in the fingerprint of a running broker.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from pathlib import Path


def describe(bundle: Path, version: str, commit: str) -> None:
    """Write both files in a directory that contains `wheels/`."""
    wheels = sorted((bundle / "wheels").glob("*.whl"))
    hashes = {wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}
    lines = [f"{pinned(name)} --hash=sha256:{digest}\n" for name, digest in hashes.items()]
    (bundle / "requirements.txt").write_text("".join(lines))
    release = {
        "version": version,
        "digest": hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest(),
        "commit": commit,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "platform": f"{platform.machine()} {' '.join(platform.libc_ver())}",
        "wheels": hashes,
    }
    (bundle / "RELEASE.json").write_text(json.dumps(release, indent=2) + "\n")


def pinned(wheel: str) -> str:
    """The requirement for a wheel's file name (PEP 427), such as `kazoo==2.10.0`."""
    name, version, *_ = wheel.split("-")
    return f"{name}=={version}"


if __name__ == "__main__":
    describe(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
