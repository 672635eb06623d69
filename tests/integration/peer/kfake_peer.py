"""franz-go's kfake, an in-memory Kafka in Go; built once from its module.

Run as `python -m peer.kfake_peer` in tests/integration, the module builds the server and prints
where it is, or says in one sentence what is missing and exits with 1.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peer.go_program import ensure_program
from peer.kafka_peer import PeerMissingError

STOP_TIMEOUT_S = 10


@contextmanager
def kfake() -> Iterator[str]:
    """A running cluster; its brokers' addresses, with commas between."""
    process = subprocess.Popen(
        [ensure_kfake()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        addresses = process.stdout.readline().strip()
        assert addresses, "kfake ended while starting"
        yield addresses
    finally:
        process.stdin.close()
        process.wait(STOP_TIMEOUT_S)
        process.stdout.close()


def ensure_kfake() -> Path:
    """The server, built if it is not there yet for these sources. Raises `PeerMissingError`."""
    return ensure_program(Path(__file__).resolve().parent / "kfake", "franz-go's kfake")


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{ensure_kfake()}\n")
    except PeerMissingError as missing:
        sys.exit(str(missing))
