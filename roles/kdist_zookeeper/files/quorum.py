"""Says whether a ZooKeeper ensemble is whole: every server serves, one leads, all followers follow.

    python3 quorum.py ADDRESS...    {"modes": {address: mode}, "faults": [...]}; 1 with faults

`mntr` is asked and not `ruok`, which says imok before the database is there.
"""

from __future__ import annotations

import json
import socket
import sys

PORT = 2181
TIMEOUT_S = 5.0


def ask(address: str, command: bytes = b"mntr") -> str:
    """A four-letter command's answer; nothing from a server that does not answer."""
    try:
        with socket.create_connection((address, PORT), TIMEOUT_S) as connection:
            connection.sendall(command)
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode(errors="replace")
    except OSError:
        return ""


def parse(answer: str) -> dict[str, str]:
    """`name<TAB>value` lines; a server that does not serve yet says a sentence instead."""
    return dict(line.split("\t", 1) for line in answer.splitlines() if "\t" in line)


def review(figures: dict[str, dict[str, str]]) -> list[str]:
    """What keeps the ensemble from being whole, of each server's figures by address (pure)."""
    faults = [f"{address} does not serve" for address, each in figures.items() if not each]
    modes = [each.get("zk_server_state", "") for each in figures.values() if each]
    if len(figures) == 1:
        return faults
    if modes.count("leader") != 1:
        faults.append(f"{modes.count('leader')} servers lead")
    for each in figures.values():
        synced = each.get("zk_synced_followers")
        if each.get("zk_server_state") == "leader" and float(synced or 0) != len(figures) - 1:
            faults.append(f"{synced} followers of {len(figures) - 1} follow")
    return faults


def main(addresses: list[str]) -> int:
    """Ask all servers; 1 if the ensemble is not whole."""
    figures = {address: parse(ask(address)) for address in addresses}
    faults = review(figures)
    modes = {address: each.get("zk_server_state", "down") for address, each in figures.items()}
    sys.stdout.write(json.dumps({"modes": modes, "faults": faults}) + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
