"""Says which Python and C library a host has, and which releases, the newest first.

    python3 releases.py DIRECTORY
    {"python": "3.11", "platform": "x86_64 glibc 2.36", "releases": [{name, path, ...}]}

The rest of a release is its RELEASE.json, which is written last: where it is, the release is whole.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any


def installed(directory: Path) -> list[dict[str, Any]]:
    """The releases in a directory, the newest first."""
    pages = sorted(directory.glob("*/RELEASE.json"), key=lambda page: -page.stat().st_mtime)
    return [
        json.loads(page.read_text()) | {"name": page.parent.name, "path": str(page.parent)}
        for page in pages
    ]


def main(directory: str) -> None:
    said = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "platform": f"{platform.machine()} {' '.join(platform.libc_ver())}",
        "releases": installed(Path(directory)),
    }
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
