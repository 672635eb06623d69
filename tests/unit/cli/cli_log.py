"""`kdist log` as its tests call it, and what they look at before and after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from kdist.cli.main import kdist

LOOKING = [
    ["dump"],
    ["dump", "--records"],
    ["dump", "--json", "--records"],
    ["dump", "--index", "--time-index", "--snapshot", "--epochs", "--checkpoints"],
    ["verify", "--deep"],
    ["find", "--offset", "40"],
    ["find", "--time", "2023-11-14T22:13:20.040"],
]
"""Every command that changes nothing."""


def run(*arguments: object, text: str = "") -> Result:
    result = CliRunner().invoke(kdist, ["log", *map(str, arguments)], input=text)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def rows(*arguments: object) -> list[dict[str, Any]]:
    """What a command prints as JSON lines."""
    return [json.loads(line) for line in run(*arguments, "--json").stdout.splitlines()]


def trace(path: Path) -> dict[str, tuple[bytes, int]]:
    """Every file's content and time of change, directories' times too."""
    return {
        str(found): (found.read_bytes() if found.is_file() else b"", found.stat().st_mtime_ns)
        for found in [path, *path.rglob("*")]
    }
