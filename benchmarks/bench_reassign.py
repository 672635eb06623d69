"""Plans of moves on made sites, and how long one takes beside what it says: `make bench-reassign`.

The sites are of 480 disks and 50,000 partitions of three replicas, sizes drawn from a lognormal
distribution, disks of two sizes, filled unevenly. The least that has to be copied is what must
leave the disks that have too much, or come to those that have too little, whichever is more, for
all to be within the 2% at which a plan stops. With `--real` three brokers carry plans out at 1
MiB/s.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cluster_contenders import kdist_cluster
from confluent_kafka import Producer

from kdist.client.admin.clients import Admin
from kdist.client.admin.topics import NewTopic
from kdist.model import TopicPartition
from kdist.ops.reassignment.balance import TOLERANCE
from kdist.ops.reassignment.plan import Plan, Wish, plan_moves
from kdist.ops.reassignment.site import Disk, Placed, Share, Site

GIB = 1 << 30
_MIB = 1 << 20
_TOPICS = 500
_PARTITIONS = 8  # of the topic that real brokers move


class Shape(NamedTuple):
    """A made site: hosts are dealt to the racks in turn; the last `empty_hosts` have nothing."""

    racks: int
    hosts: int
    disks_each: int
    partitions: int
    full: float = 0.7
    empty_hosts: int = 0


class Case(NamedTuple):
    """A site, and what is asked of its plan. `drained` hosts are emptied."""

    name: str
    shape: Shape
    drained: int = 0
    levels: bool = True


class Result(NamedTuple):
    """A plan in figures; fullness is in shares of that of all disks together."""

    case: str
    cpu_s: float
    moves: int
    emptiest_before: float
    fullest_before: float
    emptiest: float
    fullest: float
    moved_share: float  # of all bytes
    moved_of_least: float
    leads_of_mean: float  # the most that a broker is to lead, in shares of the mean
    rate_of_mean: float  # likewise, of what is written to what it is to lead


def cases(scale: int) -> list[Case]:
    """`scale`: divides how many partitions there are."""
    count = 50_000 // scale
    four, three = Shape(4, 40, 12, count), Shape(3, 30, 16, count)
    return [
        Case("level, 4 racks", four),
        Case("level, 3 racks: no replica can leave its rack", three),
        Case("level, 97% full", four._replace(full=0.97)),
        Case("fill 4 new hosts", four._replace(empty_hosts=4)),
        Case("drain 4 hosts, and level", four, drained=4),
        Case("drain a host, and no more", four, drained=1, levels=False),
    ]


def a_site(shape: Shape, rng: random.Random) -> Site:
    """Replicas of a partition are in three racks; a disk may have three times what another has."""
    disks: dict[int, Disk] = {}
    weights: list[tuple[list[int], list[float]]] = [([], []) for _ in range(shape.racks)]
    for host in range(shape.hosts):
        rack = host % shape.racks
        for number in range(shape.disks_each):
            broker, room = 100 * host + number, (4_000, 8_000)[number % 2] * GIB
            disks[broker] = Disk(broker, f"host-{host}", f"rack-{rack}", room)
            if host < shape.hosts - shape.empty_hosts:
                brokers, sums = weights[rack]
                brokers.append(broker)
                sums.append((sums[-1] if sums else 0.0) + room * rng.uniform(0.5, 1.5))
    sizes = [rng.lognormvariate(0, 1) for _ in range(shape.partitions)]
    unit = shape.full * sum(each.room_bytes for each in disks.values()) / (3 * sum(sizes))
    placed = []
    for number, size in enumerate(sizes):
        racks = rng.sample(range(shape.racks), 3)
        drawn = (rng.choices(weights[each][0], cum_weights=weights[each][1]) for each in racks)
        replicas = tuple(broker for (broker,) in drawn)
        partition = TopicPartition(f"topic-{number % _TOPICS}", number // _TOPICS)
        rate = rng.lognormvariate(0, 1)
        placed.append(Placed(partition, replicas, int(size * unit), rate))
    return Site(disks, tuple(placed))


def planned(case: Case) -> Result:
    """Plan a case, once."""
    site = a_site(case.shape, random.Random(1))
    emptied = frozenset(b for b in site.disks if b // 100 < case.drained)
    wish = Wish(emptied, levels_disks=case.levels, spreads_leaders=case.levels)
    began_s = time.process_time()
    plan = plan_moves(site, wish)
    cpu_s = time.process_time() - began_s
    left = [each for each in site.disks if each not in emptied]
    before, after = (_full(site, shares, left) for shares in (plan.before, plan.after))
    bytes_ = sum(each.bytes for each in plan.before.values())
    led = [plan.after.get(each, Share()) for each in left]
    return Result(
        case.name,
        cpu_s,
        len(plan.moves),
        min(before),
        max(before),
        min(after),
        max(after),
        plan.moved_bytes / bytes_,
        plan.moved_bytes / _least(site, plan, left, levels=case.levels),
        max(each.leads for each in led) * len(left) / sum(each.leads for each in led),
        max(e.bytes_per_second for e in led) * len(left) / sum(e.bytes_per_second for e in led),
    )


def _share(site: Site, shares: dict[int, Share], left: list[int]) -> float:
    return sum(each.bytes for each in shares.values()) / sum(site.disks[e].room_bytes for e in left)


def _full(site: Site, shares: object, left: list[int]) -> list[float]:
    assert isinstance(shares, dict)
    mean = _share(site, shares, left)
    return [shares.get(e, Share()).bytes / site.disks[e].room_bytes / mean for e in left]


def _least(site: Site, plan: Plan, left: list[int], *, levels: bool) -> float:
    there = {each: plan.before.get(each, Share()).bytes for each in site.disks}
    gone = sum(there[each] for each in site.disks if each not in left)
    if not levels:
        return gone
    share = sum(there.values()) / sum(site.disks[each].room_bytes for each in left)
    goals = {each: share * site.disks[each].room_bytes for each in left}
    over = sum(max(there[each] - (1 + TOLERANCE) * goals[each], 0) for each in left)
    under = sum(max((1 - TOLERANCE) * goals[each] - there[each], 0) for each in left)
    return max(gone + over, under)


# Real brokers


class Real(NamedTuple):
    """A plan that was carried out: what it copied, and how long it said and took."""

    name: str
    mib: float
    predicted_s: float
    real_s: float


def carried_out(mib: int) -> Iterator[Real]:
    """Three brokers on one disk; `mib` are written to two of them, or to one, and then moved."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-reassign-") as name,
        kdist_cluster(Path(name) / "kdist") as cluster,
        Admin(cluster.address) as admin,
    ):
        for what, replicas, batch_bytes, words in (
            ("level, batches of 16 KiB", [[1, 2]], 16 << 10, ()),
            ("level, batches of 700 KiB", [[1, 2]], 700 << 10, ()),
            ("drain, batches of 700 KiB", [[1]], 700 << 10, ("--drain", "1", "--only-needed")),
        ):
            topic = f"moved-{len(words)}-{batch_bytes}"
            admin.create_topics([NewTopic(topic, replicas=replicas * _PARTITIONS)])
            _fill(cluster.address, topic, mib << 20, batch_bytes)
            file = Path(name) / f"{topic}.json"
            plan = _command(
                cluster.address, "plan", topic, "--throttle", "1", "--output", str(file), *words
            )
            began_s = time.monotonic()
            _command(cluster.address, "execute", str(file), "--throttle", "1")
            real_s = time.monotonic() - began_s
            yield Real(what, plan["bytes"] / _MIB, plan["seconds"], real_s)
            admin.delete_topics([topic])


def _fill(address: str, topic: str, size: int, batch_bytes: int) -> None:
    settings = {
        "bootstrap.servers": address,
        "acks": "all",
        "linger.ms": 500,
        "batch.size": batch_bytes,
    }
    producer, value = Producer(settings), os.urandom(4_000)
    for number in range(size // len(value)):
        # One partition after the other, so that batches are full.
        producer.produce(topic, value, partition=number * len(value) * _PARTITIONS // size)
        while len(producer) > 2_000:
            producer.poll(0.1)
    assert producer.flush(240) == 0


def _command(address: str, *words: str) -> dict[str, float]:
    line = [sys.executable, "-m", "kdist.cli", "reassign", *words, "--broker", address, "--json"]
    found: dict[str, float] = json.loads(
        subprocess.run(line, check=True, capture_output=True).stdout
    )
    return found


def _table(results: list[Result]) -> str:
    lines = ["plan | CPU s | moves | fullness before | after | copied | of the least | leads, rate"]
    lines += [
        f"{e.case} | {e.cpu_s:.1f} | {e.moves:,}"
        f" | {e.emptiest_before:.2f} to {e.fullest_before:.2f}"
        f" | {e.emptiest:.3f} to {e.fullest:.3f} | {e.moved_share:.1%} | {e.moved_of_least:.3f}"
        f" | {e.leads_of_mean:.3f}, {e.rate_of_mean:.3f}"
        for e in results
    ]
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", action="store_true", help="carry plans out, too")
    parser.add_argument("--only", metavar="WORDS", help="plans whose name has this in it")
    parser.add_argument("--mib", type=int, default=100, help="of a topic that is moved")
    parser.add_argument("--quick", action="store_true", help="does it run?")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    chosen = [e for e in cases(10 if given.quick else 1) if not given.only or given.only in e.name]
    results = []
    for each in chosen:
        print(each.name, file=sys.stderr)
        results.append(planned(each))
    real = list(carried_out(1 if given.quick else given.mib)) if given.real else []
    if given.json:
        print(
            json.dumps(
                {"plans": [e._asdict() for e in results], "real": [e._asdict() for e in real]}
            )
        )
        return
    print(_table(results))
    for each in real:
        off = each.real_s / each.predicted_s - 1
        print(
            f"| {each.name} | {each.mib:.1f} MiB | said {each.predicted_s:.1f} s"
            f" | took {each.real_s:.1f} s | {off:+.1%} |"
        )


if __name__ == "__main__":
    main()
