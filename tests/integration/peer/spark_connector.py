"""Spark's own Kafka connector: a foreign client, and the one that ours is measured against.

Run as a script, the module downloads the jars and prints where they are, or says what is missing
and exits with 1.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import sys
from pathlib import Path

try:
    from peer.kafka_peer import BRING_TIMEOUT_S, CACHE, HERE, PeerMissingError
except ImportError:  # as a script
    from kafka_peer import BRING_TIMEOUT_S, CACHE, HERE, PeerMissingError

POM = HERE / "spark-pom.xml"
# PySpark brings these itself, and two versions of one class are one too many.
THERE_ALREADY = (
    "org.scala-lang,org.apache.hadoop,org.slf4j,com.github.luben,org.lz4,at.yawk.lz4,"
    "org.xerial.snappy"
)


def ensure_connector() -> list[Path]:
    """The connector's jars; brings them once.

    Raises `PeerMissingError`.
    """
    found = re.search(r"<spark\.version>(.+)</spark\.version>", POM.read_text())
    assert found is not None
    jars = CACHE / f"spark-kafka-{found[1]}"
    CACHE.mkdir(exist_ok=True)
    with open(jars.with_name(f"{jars.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            _bring(jars)
    return sorted(jars.glob("*.jar"))


def _bring(jars: Path) -> None:
    if shutil.which("mvn") is None:
        raise PeerMissingError("Tests against Spark's Kafka connector need mvn: install maven.")
    arriving = jars.with_name(f"{jars.name}.arriving")
    shutil.rmtree(arriving, ignore_errors=True)
    command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DexcludeGroupIds={THERE_ALREADY}"]
    command.append(f"-DoutputDirectory={arriving}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=BRING_TIMEOUT_S)
    if done.returncode != 0 or not arriving.is_dir():
        cause = (done.stdout + done.stderr).strip().splitlines() or ["no reason given"]
        raise PeerMissingError(f"Maven could not bring Spark's Kafka connector: {cause[0]}")
    arriving.rename(jars)


if __name__ == "__main__":
    try:
        for jar in ensure_connector():
            sys.stdout.write(f"{jar}\n")
    except PeerMissingError as missing:
        sys.exit(str(missing))
