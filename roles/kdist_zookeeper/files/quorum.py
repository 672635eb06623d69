"""Says whether a ZooKeeper ensemble is whole: every server serves, one leads, all followers follow.

    python3 quorum.py SECONDS HOST:PORT...
    {"modes": {"host:port": mode}, "faults": [...], "serves": bool}

Ends with 1 if there are still faults after SECONDS. All servers are asked at once: a host that is
off takes seconds to say nothing.
`mntr` is asked and not `ruok`, which says imok before the database is there.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

TIMEOUT_S = 5.0
PAUSE_S = 1.0


def ask(address: str, command: bytes = b"mntr") -> str:
    """The answer of the server at `host:port`; nothing if it does not answer."""
    try:
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
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
    alone = [a for a, each in figures.items() if each.get("zk_server_state") == "standalone"]
    faults += [f"{address} stands alone" for address in alone]
    if modes.count("leader") != 1:
        faults.append(f"{modes.count('leader')} servers lead")
    for each in figures.values():
        synced = each.get("zk_synced_followers")
        if each.get("zk_server_state") == "leader" and float(synced or 0) != len(figures) - 1:
            faults.append(f"{synced} followers of {len(figures) - 1} follow")
    return faults


def serves(figures: dict[str, dict[str, str]]) -> bool:
    """Whether a majority serves, although others do not (pure)."""
    states = [each.get("zk_server_state", "") for each in figures.values()]
    working = sum(state in ("leader", "follower", "standalone") for state in states)
    return working > len(figures) // 2 and ("leader" in states or states == ["standalone"])


def main(seconds: str, *addresses: str) -> int:
    """Ask all servers until they are whole or the time is over; 1 if they are not whole."""
    end = time.monotonic() + float(seconds)
    with ThreadPoolExecutor(len(addresses)) as pool:
        while True:
            figures = dict(zip(addresses, map(parse, pool.map(ask, addresses)), strict=True))
            faults = review(figures)
            if not faults or time.monotonic() >= end:
                break
            time.sleep(PAUSE_S)
    modes = {address: each.get("zk_server_state", "down") for address, each in figures.items()}
    told = {"modes": modes, "faults": faults, "serves": serves(figures)}
    sys.stdout.write(json.dumps(told) + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
