"""Break a cluster of three brokers under load: `python -m tests.chaos --minutes 20 --seed N`.

As root: hosts are network namespaces, and their disks are filesystems on loop devices. Prints each
fault as it comes, then for how long partitions were unavailable after each kind, and what clients
were promised that was not kept. Exits with 1 if there was any of that. The run's directory keeps
the histories, the brokers' logs and settings.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.network import inside


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="for how long faults begin")
    parser.add_argument("--seed", type=int, default=0, help="of what is done to whom, and when")
    parser.add_argument("--only", help="kinds of faults, with commas between; all if not given")
    parser.add_argument("--short", action="store_true", help="each cheap kind once, without pauses")
    parser.add_argument(
        "--flushed", action="store_true", help="with log.flush.before.expose; all hosts may be lost"
    )
    parser.add_argument(
        "--grow", action="store_true", help="two more join and leave, and partitions move meanwhile"
    )
    parser.add_argument("--peer", choices=("kdist", "kafka"), default="kdist", help="whose brokers")
    parser.add_argument("--directory", type=Path, help="an empty one, for what the run leaves")
    given = parser.parse_args()
    if given.grow and given.peer != "kdist":
        parser.error("--grow is for kdist's brokers: Kafka's do not say how large their disks are")
    if os.geteuid() != 0:
        sys.exit("It makes networks and mounts filesystems: run it as root.")
    # Modules beside those of tests/integration name each other as they do there.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        ("tests/integration", os.environ.get("PYTHONPATH", ""))
    )
    inside("-m", "tests.chaos", *sys.argv[1:])
    return play(given)


def play(given: argparse.Namespace) -> int:
    """In the run's own namespaces."""
    from tests.chaos.faults import FAULTS
    from tests.chaos.report import lines
    from tests.chaos.result import Plan
    from tests.chaos.run import Run

    # A shell without job control has what it starts in the background ignore Ctrl-C.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)
    only = given.only.split(",") if given.only else None
    if unknown := set(only or ()) - FAULTS.keys():
        sys.exit(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    directory = given.directory or Path(tempfile.mkdtemp(prefix="kdist-chaos-"))
    plan = Plan(
        *(given.seed, given.minutes * 60, directory, given.peer, only),
        is_short=given.short,
        is_flushed=given.flushed,
        grows=given.grow,
    )
    print(f"seed {plan.seed}, in {directory}", flush=True)
    result = Run(plan).play()
    for line in lines(result, {kind: fault.limit_s for kind, fault in FAULTS.items()}):
        print(line)
    return 1 if result.anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
