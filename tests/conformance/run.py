"""Real clients and their own suites against a running broker: who passes, who fails, and why.

    python tests/conformance/run.py [SUITE|all] [--small] [--brokers N]

A suite is taken from where it ships or from `--suite DIR`, and kept under .cache/conformance; kdist
is started with the settings of docs/conformance.md unless `--against` says otherwise. Exits with 1
if a test failed. `--small` is the fixed part that `make test` runs, and `--prepare`, which brings
and builds what that needs and stops, is part of `make setup`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cluster
import java_tools
import later
import suite_aiokafka
import suite_eras
import suite_java
import suite_java_cluster
import suite_kafka_python
import suite_kcat
import suite_librdkafka
from cluster import BrokerFailedError, Cluster
from outcome import FAILED, PASSED, Outcome, SuiteMissingError, as_json, summary

Given = argparse.Namespace


class Suite(NamedTuple):
    """A suite that is ready to run. `run` takes the names of tests, or none for all of them."""

    run: Callable[[Cluster, Sequence[str]], Iterator[Outcome]]
    small: Sequence[str] = ()  # the tests of `--small`
    can_repeat: bool = True  # whether a single test can be run again


def kcat(given: Given) -> list[Suite]:
    """Our own checks with kcat."""
    suite_kcat.prepare()
    return [Suite(suite_kcat.run)]


def eras(given: Given) -> list[Suite]:
    """Our own checks with clients of all ages."""
    suite_kcat.prepare()
    return [Suite(suite_eras.run, can_repeat=False)]


def librdkafka(given: Given) -> list[Suite]:
    """librdkafka's own test runner."""
    folder = suite_librdkafka.prepare(given.suite)
    flags = ["-P"] if given.idempotent else []
    default: Sequence[str] = ()
    if given.no_auto_creation:
        flags += ["-s", "noautocreate"]
        default = suite_librdkafka.WITHOUT_AUTO_CREATION

    def run(where: Cluster, names: Sequence[str]) -> Iterator[Outcome]:
        return suite_librdkafka.run(where, folder, names or default, flags)

    return [Suite(run, suite_librdkafka.SMALL)]


def kafka_python(given: Given) -> list[Suite]:
    """kafka-python's own integration tests, once for each era."""
    folder = suite_kafka_python.prepare(given.suite)

    def run(era: str, where: Cluster, names: Sequence[str]) -> Iterator[Outcome]:
        return suite_kafka_python.run(where, folder, era, names)

    if given.small:
        return [Suite(partial(run, era), small) for era, small in suite_kafka_python.SMALL.items()]
    return [Suite(partial(run, era)) for era in suite_kafka_python.ERAS]


def aiokafka(given: Given) -> list[Suite]:
    """aiokafka's own tests, which start their broker themselves."""
    if given.against not in (None, "apache"):
        raise SuiteMissingError("aiokafka's fixtures start their broker: leave --against out")
    serve = [cluster.__file__, "--product", given.against or "kdist"]
    serve += ["--brokers", str(given.brokers)]
    folder = suite_aiokafka.prepare(given.suite)
    replicas = min(cluster.REPLICAS_MAX, given.brokers)
    return [Suite(lambda where, names: suite_aiokafka.run(serve, folder, replicas, names))]


def java(given: Given) -> list[Suite]:
    """Our own checks with Apache Kafka's tools."""
    java_tools.prepare()
    return [Suite(suite_java.run, suite_java.SMALL)]


def java_cluster(given: Given) -> list[Suite]:
    """Our own checks of a cluster with Apache Kafka's tools."""
    java_tools.prepare()
    return [Suite(suite_java_cluster.run, suite_java_cluster.SMALL)]


SUITES: dict[str, Callable[[Given], list[Suite]]] = {
    "kcat": kcat,
    "eras": eras,
    "librdkafka": librdkafka,
    "kafka-python": kafka_python,
    "java": java,
    "java-cluster": java_cluster,
    "aiokafka": aiokafka,
}
NOT_SMALL = ("aiokafka",)  # no package registry has its tests
OF_THREE_BROKERS = ("java-cluster",)


def wanted(given: Given) -> list[str]:
    """The names of the suites that are asked for."""
    if given.suite_name != "all":
        return [given.suite_name]
    left_out = (NOT_SMALL if given.small else ()) + (() if given.brokers > 2 else OF_THREE_BROKERS)
    return [name for name in SUITES if name not in left_out]


def prepare(given: Given) -> int:
    """Fetch and build the suites asked for; print what is missing, and then return 1."""
    status = 0
    for name in wanted(given):
        try:
            SUITES[name](given)
        except SuiteMissingError as missing:
            sys.stderr.write(f"Conformance tests will fail: {missing}\n")
            status = 1
    return status


def outcomes(given: Given, where: Cluster) -> Iterator[Outcome]:
    """Run all tests asked for, and yield each outcome as it is known."""
    for name in wanted(given):
        try:
            ready = SUITES[name](given)
        except SuiteMissingError as missing:
            yield Outcome(name, "all of it", FAILED, 0, str(missing))
            continue
        for suite in ready:
            for outcome in suite.run(where, suite.small if given.small else given.only):
                where.check()
                yield tried_again(later.judged(outcome, where.replicas), suite, where)


def tried_again(outcome: Outcome, suite: Suite, where: Cluster) -> Outcome:
    """Run a failed test a second time: clients have races and deadlines of their own.

    If it then passes, the reason says so; if not, it has both reasons, which may differ.
    """
    if outcome.state != FAILED or not suite.can_repeat:
        return outcome
    second = list(suite.run(where, [outcome.test]))
    if [again.state for again in second] == [PASSED]:
        return second[0]._replace(reason=f"at the second try; the first: {outcome.reason}")
    why = "; ".join(again.reason or again.state for again in second)
    return outcome._replace(reason=f"{outcome.reason}; at the second try: {why}")


def started(given: Given, directory: Path) -> AbstractContextManager[Cluster]:
    """The brokers that the command line asks for."""
    settings = suite_librdkafka.NO_AUTO_CREATION if given.no_auto_creation else {}
    if given.against is None:
        return cluster.kdist(directory / "kdist", given.brokers, settings)
    if given.against == "apache":
        return cluster.apache(directory / "apache", given.brokers, settings)
    return nullcontext(Cluster(given.against))


def read_command_line() -> Given:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choices = [*SUITES, "all"]
    parser.add_argument("suite_name", metavar="SUITE", nargs="?", choices=choices, default="all")
    parser.add_argument("--suite", type=Path, metavar="DIR", help="the suite's own folder")
    parser.add_argument("--brokers", type=int, default=1, metavar="N", help="how many to start; 1")
    parser.add_argument(
        "--against", metavar="HOST:PORT", help="a running broker, or `apache`: Apache Kafka 3.9"
    )
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="the tests to run")
    parser.add_argument("--small", action="store_true", help="the fixed part of `make test`")
    parser.add_argument("--prepare", action="store_true", help="bring, build and run nothing")
    parser.add_argument("--idempotent", action="store_true", help="librdkafka's tests with -P")
    parser.add_argument(
        "--no-auto-creation",
        action="store_true",
        help="librdkafka's tests that need it switched off",
    )
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON alone")
    given = parser.parse_args()
    if given.suite_name == "all" and (given.suite or given.only):
        parser.error("--suite and --only belong to one suite")
    if given.small and (given.only or given.suite_name in NOT_SMALL):
        parser.error("--small has its own list of tests")
    if given.against not in (None, "apache") and given.brokers > 1:
        parser.error("--brokers is for what is started here")
    return given


def main() -> int:
    """0 if nothing failed."""
    given = read_command_line()
    if given.prepare:
        return prepare(given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops the brokers on the way
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="kdist-conformance-") as directory:
        try:
            with started(given, Path(directory)) as where:
                for outcome in outcomes(given, where):
                    found.append(outcome)
                    sys.stdout.write("" if given.json else f"{outcome.line()}\n")
                    sys.stdout.flush()
        except BrokerFailedError as error:
            found.append(Outcome("broker", "stays up", FAILED, 0, str(error)))
            sys.stderr.write(f"{error}\n")
    sys.stdout.write(f"{as_json(found) if given.json else summary(found)}\n")
    return int(any(outcome.state == FAILED for outcome in found))


if __name__ == "__main__":
    sys.exit(main())
