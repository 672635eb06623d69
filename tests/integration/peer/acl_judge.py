"""Apache Kafka's AclAuthorizer, which is asked for decisions; one JVM for many."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from peer.kafka_peer import HERE, QUICK_JVM, ensure_jars

_SOURCE = HERE / "acljudge" / "AclJudge.java"  # says which questions there are
_TIMEOUT_S = 1800


def ask_judge(lines: Iterable[str]) -> list[str]:
    """An answer for each line that is a question. Fails the test if the judge fails."""
    command = ["java", *QUICK_JVM, "-cp", f"{ensure_jars()}/*", str(_SOURCE)]
    done = subprocess.run(
        command,
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        encoding="utf-8",
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"the judge failed:\n{done.stderr}"
    return done.stdout.splitlines()
