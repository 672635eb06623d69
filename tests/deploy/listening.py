"""Which addresses a process listens on, from the host's kernel."""

from __future__ import annotations

from tests.deploy.deployed import Member


def listeners(host: Member, pid: int) -> set[tuple[str, int]]:
    """(address, port) of each TCP socket on which the process listens."""
    rows = host.says("ss --listening --tcp --numeric --processes --no-header").splitlines()
    ours = [row.split()[3] for row in rows if f"pid={pid}," in row]
    return {_parsed(address) for address in ours}


def _parsed(address: str) -> tuple[str, int]:
    name, port = address.rsplit(":", 1)
    return name.removeprefix("[").removesuffix("]").removeprefix("::ffff:"), int(port)
