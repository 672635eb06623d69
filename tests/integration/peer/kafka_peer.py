"""Apache Kafka's own tools and broker, the reference for the files that kdist reads and writes.

`ensure_jars` downloads the jars of a release once; `dump_log_segments` runs Kafka's dump tool. The
broker is in `kafka_broker.py`, the parser of the dump in `kafka_dump.py`. Run as a script, the
module downloads the jars and prints where they are, or says what is missing and exits with 1.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
POM = HERE / "pom.xml"
CACHE = HERE.parents[2] / ".cache"
RELEASES = {"3.9": "3.9.2", "4.1": "4.1.1"}  # that our clients are tested against
JUDGE = "3.9"  # of the files
BRING_TIMEOUT_S = 600
TOOL_TIMEOUT_S = 60

# A JVM that lives for seconds: no second compiler, no parallel collector, a small heap.
QUICK_JVM = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xmx256m",
    f"-Dlog4j.configuration=file:{HERE / 'log4j.properties'}",
)


class PeerMissingError(Exception):
    """A peer cannot be obtained on this machine. Its text is one sentence to act on."""


def ensure_jars(release: str = JUDGE) -> Path:
    """The directory with Kafka's jars, brought by Maven if it is not there yet.

    The directory appears whole or not at all, and one process brings it while others wait. Raises
    `PeerMissingError`.
    """
    _require("java", "default-jre-headless")
    CACHE.mkdir(exist_ok=True)
    jars = CACHE / f"kafka-{release}"
    with open(CACHE / f"kafka-{release}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (jars / f"kafka_2.13-{RELEASES[release]}.jar").exists():
            _bring_jars(jars, RELEASES[release])
    return jars


def _require(program: str, package: str) -> None:
    if shutil.which(program) is None:
        raise PeerMissingError(f"Tests against Apache Kafka need {program}: install {package}.")


def _bring_jars(jars: Path, version: str) -> None:
    _require("mvn", "maven")
    arriving = jars.with_name(f"{jars.name}.arriving")
    shutil.rmtree(arriving, ignore_errors=True)
    command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
    command += [f"-Dkafka.version={version}", "-DincludeScope=runtime"]
    command.append(f"-DoutputDirectory={arriving}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=BRING_TIMEOUT_S)
    if done.returncode != 0 or not arriving.is_dir():
        cause = (done.stdout + done.stderr).strip().splitlines() or ["no reason given"]
        raise PeerMissingError(f"Maven could not bring Apache Kafka's jars: {cause[0]}")
    shutil.rmtree(jars, ignore_errors=True)
    arriving.rename(jars)


def java_command(
    main_class: str, *arguments: str, jvm: Sequence[str] = QUICK_JVM, release: str = JUDGE
) -> list[str]:
    """The command line that runs one of Kafka's main classes."""
    return ["java", *jvm, "-cp", f"{ensure_jars(release)}/*", main_class, *arguments]


def run_tool(main_class: str, *arguments: str, release: str = JUDGE) -> str:
    """Run a tool of Kafka's to its end; what it printed. Fails the test if the tool fails."""
    command = java_command(main_class, *arguments, release=release)
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S)
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"{main_class} {' '.join(arguments)} failed:\n{output}"
    return output


def dump_log_segments(paths: Path | Iterable[Path], *flags: str) -> str:
    """What `kafka.tools.DumpLogSegments` prints about one file or several, complaints included."""
    files = [paths] if isinstance(paths, Path) else paths
    return run_tool("kafka.tools.DumpLogSegments", *flags, "--files", ",".join(map(str, files)))


if __name__ == "__main__":
    try:
        for each in RELEASES:
            sys.stdout.write(f"{ensure_jars(each)}\n")
    except PeerMissingError as missing:
        sys.exit(str(missing))
