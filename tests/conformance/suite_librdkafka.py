"""librdkafka's own test runner, built from its source, one process for each test.

Never with `-Q`, which silently omits sub-tests. A log with SKIPPING TEST is not a pass, whatever
the exit status. The runner's log of each test is kept in .cache/conformance/logs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import java_tools
import patience
import sources
from cluster import Cluster
from outcome import FAILED, PASSED, SKIPPED, Outcome, SuiteMissingError

SUITE = "librdkafka"
FIRST_BROKER = """
    0001 0002 0003 0005 0007 0008 0012 0013 0015 0017 0018 0019 0022 0029 0030 0031 0033 0034 0036
    0039 0041 0044 0048 0050 0054 0056 0057 0059 0063 0067 0070 0073 0077 0082 0085 0099 0112 0118
    0130 0140
    """.split()  # noqa: SIM905 - a list to read, not to run down
# What 0081, the test of the administration, calls, except for ACLs, SCRAM users and authorized
# operations: it ends at the first call that fails, so each is run as a test of its own.
ADMIN = [
    f"0081:do_test_{call}:"
    for call in (
        "CreateTopics",
        "DeleteTopics",
        "CreatePartitions",
        "AlterConfigs",
        "IncrementalAlterConfigs",
        "DescribeConfigs",
        "DeleteRecords",
        "ListConsumerGroups",
        "DescribeConsumerGroups",
        "DeleteGroups",
        "DeleteConsumerGroupOffsets",
        "ListOffsets",
        "AlterConsumerGroupOffsets",
        "ListConsumerGroupOffsets",
    )
] + ["0081:without authorized operations"]
# What needs three replicas, or what a cluster may get wrong though one broker does not.
OF_A_CLUSTER = ["0045", "0069", "0090", *ADMIN]
# These, too, need brokers that create no topics on demand.
NO_AUTO_CREATION = {"auto.create.topics.enable": "false"}
WITHOUT_AUTO_CREATION = ["0107", "0111"]
# Quick tests, of 1 to 7 s: order, sizes, auto-created topics, acks, produce and consume in
# batches, offsets by time and reset, partial fetches, a group, headers, committed metadata.
SMALL = """
    0002 0003 0005 0007 0008 0012 0022 0031 0034 0036 0054 0056 0057 0073 0082 0085 0099 0130 0140
    """.split()  # noqa: SIM905 - as above

TEST_TIMEOUT_S = 180
BUILD_TIMEOUT_S = 900
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
SUMMARY = re.compile(r"\|\s*(?P<name>0\d{3}_\w+)\s*\|\s*(?P<state>[A-Z]+)\s*\|[^|]*\|(?P<why>.*)")
BROKEN = re.compile(r"^### Test \"[^\"]+\" failed at (?P<where>\S+):\S+ at .*\n(?P<why>.*)", re.M)
# `-L` skips tests that need no broker; that is not a skipped part of a test of the same number.
SKIPPING = re.compile(r"SKIPPING TEST: (?!Filtered due to negative test flags)(?P<why>.*)")


def prepare(given: Path | None) -> Path:
    """The folder of the built runner; `SuiteMissingError` if it cannot be built."""
    with sources.locked():
        source = sources.librdkafka(given)
        runner = source / "tests" / "test-runner"
        if not runner.exists():
            _require("g++", "g++")
            _require("make", "make")
            _build(source)
        return source / "tests"


def run(
    cluster: Cluster, tests: Path, names: Sequence[str] = (), flags: Sequence[str] = ()
) -> Iterator[Outcome]:
    """Run the tests named by their four digits, or the default list, one after another.

    A colon and text after the digits choose the sub-tests with that text. The flag `-P` makes every
    producer idempotent.
    """
    configuration = sources.logs() / "librdkafka.conf"
    configuration.write_text(
        f"metadata.broker.list={cluster.address}\n"
        "test.topic.random=true\n"
        f"test.timeout.multiplier={patience.factor():.1f}\n",
        encoding="utf-8",
    )
    source = tests.parent
    environment = os.environ | {
        # The library built here, not the one installed with Debian's kcat.
        "LD_LIBRARY_PATH": f"{source / 'src'}:{source / 'src-cpp'}",
        "RDKAFKA_TEST_CONF": str(configuration),
        "BROKERS": cluster.address,
        "KAFKA_PATH": str(_kafka(sources.logs())),  # 0077 creates its topics by Kafka's script
        "TEST_KAFKA_VERSION": "3.9.0",
    }
    for name in names or default_list(cluster):
        log = sources.new_log(f"librdkafka-{name}")
        number, _, part = name.partition(":")
        chosen = {"TESTS": number} | ({"SUBTESTS": part} if part else {})
        started_s = time.monotonic()
        status = _run_one(tests, environment | chosen, log, flags)
        seconds = time.monotonic() - started_s
        state, why = judge(COLOUR.sub("", log.read_text(errors="replace")), status, part)
        yield Outcome(SUITE, name, state, seconds, f"{why}; {log}" if why else "")


def default_list(cluster: Cluster) -> list[str]:
    """The tests for one broker, or for a cluster with replicas."""
    return FIRST_BROKER + OF_A_CLUSTER if cluster.replicas > 1 else FIRST_BROKER


def judge(log: str, status: int | None, part: str = "") -> tuple[str, str]:
    """The test's state and reason, from its log (without colours) and its exit status.

    `status` is None after a timeout. `part` is the part of a test's sub-tests that was to run.
    """
    rows = [match for match in map(SUMMARY.search, log.splitlines()) if match is not None]
    failed = next((row for row in rows if row["state"] == "FAILED"), None)
    broken = BROKEN.search(log)
    if broken is not None:
        return FAILED, f"{broken['where']}: {broken['why']}"
    if failed is not None:
        return FAILED, failed["why"].strip() or failed["name"]
    if status is None:
        return FAILED, "not done when its time was up"
    if status != 0:
        return FAILED, f"the runner ended with status {status}"
    skipping = SKIPPING.search(log)
    if skipping is not None:
        return SKIPPED, skipping["why"]
    if part and not re.search(rf"\[ .*{re.escape(part)}.* \]", log):
        return FAILED, "it has no such sub-test"
    if not any(row["state"] == "PASSED" for row in rows):
        return SKIPPED, "no test of this number ran"
    return PASSED, ""


def _kafka(folder: Path) -> Path:
    """Where `bin/kafka-topics.sh` is, as in a Kafka of its own; it runs the tool of our jars."""
    script = folder / "kafka" / "bin" / "kafka-topics.sh"
    script.parent.mkdir(parents=True, exist_ok=True)
    tool = shlex.join(java_tools.command(java_tools.TOPICS))
    script.write_text(f'#!/bin/sh\nexec {tool} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return script.parents[1]


def _run_one(
    tests: Path, environment: dict[str, str], log: Path, flags: Sequence[str]
) -> int | None:
    with open(log, "wb") as output:
        try:
            return subprocess.run(
                ["./test-runner", "-p1", "-L", *flags],
                cwd=tests,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=patience.scaled(TEST_TIMEOUT_S),
            ).returncode
        except subprocess.TimeoutExpired:
            return None


def _build(source: Path) -> None:
    # No optimization: the client's speed is not measured, and this halves the build time.
    options = ("--disable-optimization", "--disable-debug-symbols")
    jobs = f"-j{os.cpu_count() or 1}"
    sys.stderr.write("Building librdkafka's own tests, once\n")
    for step in (
        ("./configure", *options),
        ("make", jobs, "libs"),
        ("make", jobs, "-C", "tests", "test-runner"),
    ):
        problem = f"librdkafka's {' '.join(step)} failed"
        sources.run(problem, *step, cwd=source, idle_s=BUILD_TIMEOUT_S)


def _require(program: str, package: str) -> None:
    if shutil.which(program) is None:
        raise SuiteMissingError(f"librdkafka's test runner needs {program}: install {package}")
