"""What a process listens on, as the host's kernel has it."""

from __future__ import annotations

from tests.deploy.deployed import Member


def listeners(host: Member, pid: int) -> set[tuple[str, int]]:
    """(address, port) of each TCP socket that the process listens on."""
    rows = host.says("ss --listening --tcp --numeric --processes --no-header").splitlines()
    ours = [row.split()[3] for row in rows if f"pid={pid}," in row]
    return {_parsed(address) for address in ours}


def _parsed(address: str) -> tuple[str, int]:
    name, port = address.rsplit(":", 1)
    return name.removeprefix("[").removesuffix("]").removeprefix("::ffff:"), int(port)
