"""The faults: what is done to whom, for how long, and how it is undone.

Each acts on one broker or on ZooKeeper, and when it returns all is undone, so that replicas can get
in sync again. How long a fault lasts is in terms of the brokers' session with ZooKeeper.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.brokers import SESSION_TIMEOUT_MS, Broker
from tests.chaos.result import Plan
from tests.chaos.world import World

SESSION_S = SESSION_TIMEOUT_MS / 1000
SHORTER_S = SESSION_S / 2
LONGER_S = SESSION_S + 3
SLOW_TURNS, SLOW_TURN_S = 10, 0.4
DISK_FAILED = 74  # the exit status of a broker whose disk has failed

Act = Callable[[World, Broker, random.Random], None]


@dataclass(frozen=True)
class Fault:
    """`limit_s` is how long a partition may be unavailable after it, where that was promised.

    One that `needs_flush` loses records unless brokers flush them before they tell of them.
    """

    act: Act
    is_cheap: bool = True
    limit_s: float | None = None
    needs_flush: bool = False


def kill(world: World, broker: Broker, rng: random.Random) -> None:
    """kill -9; its supervisor ends its session and starts it again at once."""
    broker.kill()
    broker.end_session()
    broker.start()


def kill_for_long(world: World, broker: Broker, rng: random.Random) -> None:
    """kill -9; its supervisor ends its session, and it comes back later."""
    broker.kill()
    broker.end_session()
    time.sleep(LONGER_S)
    broker.start()


def kill_within_session(world: World, broker: Broker, rng: random.Random) -> None:
    """kill -9 with nobody to end its session, and started again before that expires."""
    broker.kill()
    time.sleep(rng.uniform(0, SHORTER_S))
    broker.start()


def lose_host(world: World, broker: Broker, rng: random.Random) -> None:
    """The host loses power: silence, what was not synced is lost; it is booted later."""
    broker.lose_power()
    time.sleep(LONGER_S)
    broker.boot()
    broker.start()


def lose_host_briefly(world: World, broker: Broker, rng: random.Random) -> None:
    """The host loses power, and is back before the session expires."""
    broker.lose_power()
    broker.boot()
    broker.start()


def pause_briefly(world: World, broker: Broker, rng: random.Random) -> None:
    """SIGSTOP for less than the session."""
    _pause(broker, SHORTER_S)


def pause_for_long(world: World, broker: Broker, rng: random.Random) -> None:
    """SIGSTOP for more than the session: others lead before it goes on."""
    _pause(broker, LONGER_S)


def _pause(broker: Broker, seconds: float) -> None:
    broker.signal(signal.SIGSTOP)
    time.sleep(seconds)
    broker.signal(signal.SIGCONT)


def cut_link(world: World, broker: Broker, rng: random.Random) -> None:
    """Nothing passes between two brokers."""
    other = rng.choice(world.others(broker))
    world.say(f"  from and to broker {other.id}")
    broker.link.drop_from([other.link.address])
    other.link.drop_from([broker.link.address])
    time.sleep(LONGER_S)
    broker.link.mend()
    other.link.mend()


def cut_one_way(world: World, broker: Broker, rng: random.Random) -> None:
    """What one broker sends does not arrive at another."""
    other = rng.choice(world.others(broker))
    world.say(f"  to broker {other.id}")
    other.link.drop_from([broker.link.address])
    time.sleep(LONGER_S)
    other.link.mend()


def isolate(world: World, broker: Broker, rng: random.Random) -> None:
    """A broker is cut from the others, not from ZooKeeper and clients."""
    broker.link.drop_from(each.link.address for each in world.others(broker))
    broker.link.drop_to(each.link.address for each in world.others(broker))
    time.sleep(LONGER_S)
    broker.link.mend()


def isolate_one_way(world: World, broker: Broker, rng: random.Random) -> None:
    """A broker receives nothing from the others, and they receive what it sends."""
    broker.link.drop_from(each.link.address for each in world.others(broker))
    time.sleep(LONGER_S)
    broker.link.mend()


def unplug(world: World, broker: Broker, rng: random.Random) -> None:
    """A broker is cut from everybody until after its session's end."""
    broker.link.unplug()
    time.sleep(LONGER_S)
    broker.link.plug()


def cut_from_zookeeper(world: World, broker: Broker, rng: random.Random) -> None:
    """A broker is cut from ZooKeeper until after its session's end."""
    world.cut_zookeeper(broker)
    time.sleep(LONGER_S)
    broker.link.mend()


def blink_from_zookeeper(world: World, broker: Broker, rng: random.Random) -> None:
    """A broker is cut from ZooKeeper for less than its session."""
    world.cut_zookeeper(broker)
    time.sleep(SHORTER_S)
    broker.link.mend()


def fill_disk(world: World, broker: Broker, rng: random.Random) -> None:
    """A disk is full for a while."""
    broker.disk.fill()
    time.sleep(LONGER_S)
    broker.disk.make_room()


def kill_on_full_disk(world: World, broker: Broker, rng: random.Random) -> None:
    """A disk is full, and its broker killed; room is made before it starts again."""
    broker.disk.fill()
    time.sleep(1)
    broker.kill()
    broker.end_session()
    broker.disk.make_room()
    broker.start()


def hang_disk(world: World, broker: Broker, rng: random.Random) -> None:
    """Writes to a disk hang for less than the session."""
    _hang(broker, SHORTER_S)


def hang_disk_for_long(world: World, broker: Broker, rng: random.Random) -> None:
    """Writes to a disk hang for longer than the session."""
    _hang(broker, LONGER_S)


def _hang(broker: Broker, seconds: float) -> None:
    broker.disk.hang()
    time.sleep(seconds)
    broker.disk.go_on()


def hang_after_election(world: World, broker: Broker, rng: random.Random) -> None:
    """A broker comes back, and just as it leads again the disk of the controller hangs."""
    controller = world.controller()
    others = [each for each in world.brokers if each.id != controller]
    back, hung = rng.choice(others), next(each for each in world.brokers if each.id == controller)
    world.say(f"  of the controller {hung.id}, after broker {back.id} was killed")
    back.kill()
    back.end_session()
    back.start()
    world.wait_until_it_leads(back, world.healthy_s)
    _hang(hung, LONGER_S)


def slow_disk(world: World, broker: Broker, rng: random.Random) -> None:
    """Writes to a disk hang again and again."""
    for _ in range(SLOW_TURNS):
        _hang(broker, SLOW_TURN_S)
        time.sleep(SLOW_TURN_S)


def lose_disk(world: World, broker: Broker, rng: random.Random) -> None:
    """A disk fails with EIO: its broker ends; an empty disk comes in its place."""
    _lose_disk(world, broker)
    broker.disk.replace()
    broker.start()


def disk_returns(world: World, broker: Broker, rng: random.Random) -> None:
    """A disk fails with EIO, and comes back without what was not synced; no host was booted."""
    _lose_disk(world, broker)
    broker.disk.come_back()
    broker.start()


def _lose_disk(world: World, broker: Broker) -> None:
    broker.disk.die()
    status = broker.wait_for_end()
    if status is None:
        broker.unexpected.append("runs on a dead disk")
        broker.kill()
    elif status != DISK_FAILED:
        broker.unexpected.append(f"ended with {status} on a dead disk")
    broker.end_session()


def empty_disk(world: World, broker: Broker, rng: random.Random) -> None:
    """kill -9, and the broker starts at once on an empty disk, under its old id."""
    broker.kill()
    broker.disk.replace()
    broker.start()


def stop(world: World, broker: Broker, rng: random.Random) -> None:
    """A clean stop, and a start soon after."""
    broker.stop()
    time.sleep(1)
    broker.start()


def roll(world: World, broker: Broker, rng: random.Random) -> None:
    """Each broker is stopped and started, the next when all replicas are in sync again."""
    for each in world.brokers:
        each.stop()
        each.start()
        if not world.is_healthy_within(world.healthy_s):
            each.unexpected.append(f"after its restart: {world.ill()}")


def depose(world: World, broker: Broker, rng: random.Random) -> None:
    """The controller's znode is deleted."""
    world.depose()
    time.sleep(1)


def lose_zookeeper(world: World, broker: Broker, rng: random.Random) -> None:
    """All of ZooKeeper's servers are killed, for longer than sessions last."""
    world.ensemble.kill()
    time.sleep(LONGER_S)
    world.ensemble.start()


def zookeeper_leader_dies(world: World, broker: Broker, rng: random.Random) -> None:
    """The leader of ZooKeeper's servers is killed, and started when the others have another."""
    leader = world.ensemble.leader()
    leader.kill()
    time.sleep(SHORTER_S)
    leader.start()
    world.ensemble.wait()


def zookeeper_leader_pauses(world: World, broker: Broker, rng: random.Random) -> None:
    """The leader of ZooKeeper's servers stops for longer than the others wait for it."""
    leader = world.ensemble.leader()
    leader.signal(signal.SIGSTOP)
    time.sleep(LONGER_S)
    leader.signal(signal.SIGCONT)
    world.ensemble.wait()


def kill_two(world: World, broker: Broker, rng: random.Random) -> None:
    """kill -9 of two, one of which stays away until the other is back."""
    other = rng.choice(world.others(broker))
    world.say(f"  and broker {other.id}")
    for each in (broker, other):
        each.kill()
        each.end_session()
    time.sleep(1)
    other.start()
    broker.start()


def kill_all(world: World, broker: Broker, rng: random.Random) -> None:
    """kill -9 of all brokers, which come back in another order."""
    for each in world.brokers:
        each.kill()
    order = rng.sample(world.brokers, len(world.brokers))
    for each in order:
        each.begin()
        time.sleep(rng.uniform(0, 2))
    for each in order:
        each.wait_until_ready()


def lose_all_hosts(world: World, broker: Broker, rng: random.Random) -> None:
    """All hosts lose power at once, and with it all that was not synced."""
    for each in world.brokers:
        each.lose_power()
    order = rng.sample(world.brokers, len(world.brokers))
    for each in order:
        each.boot()
        each.begin()
    for each in order:
        each.wait_until_ready()


PROCESS_S = 2.0
HOST_S = SESSION_S + 2.0

FAULTS: dict[str, Fault] = {
    "kill": Fault(kill, limit_s=PROCESS_S),
    "kill for long": Fault(kill_for_long, is_cheap=False, limit_s=PROCESS_S),
    "kill within session": Fault(kill_within_session),
    "host lost": Fault(lose_host, is_cheap=False, limit_s=HOST_S),
    "host lost briefly": Fault(lose_host_briefly, limit_s=HOST_S),
    "pause": Fault(pause_briefly),
    "pause for long": Fault(pause_for_long, is_cheap=False, limit_s=HOST_S),
    "link cut": Fault(cut_link, is_cheap=False),
    "link cut one way": Fault(cut_one_way, is_cheap=False),
    "isolated": Fault(isolate, is_cheap=False),
    "isolated one way": Fault(isolate_one_way, is_cheap=False),
    "unplugged": Fault(unplug, is_cheap=False, limit_s=HOST_S),
    "cut from zookeeper": Fault(cut_from_zookeeper, is_cheap=False),
    "blink from zookeeper": Fault(blink_from_zookeeper),
    "disk full": Fault(fill_disk, is_cheap=False),
    "killed on full disk": Fault(kill_on_full_disk),
    "disk hangs": Fault(hang_disk),
    "disk hangs for long": Fault(hang_disk_for_long, is_cheap=False, limit_s=HOST_S),
    "disk hangs after election": Fault(hang_after_election, is_cheap=False),
    "disk slow": Fault(slow_disk, is_cheap=False),
    "disk lost": Fault(lose_disk, limit_s=PROCESS_S),
    "disk returns": Fault(disk_returns, limit_s=PROCESS_S),
    "empty disk": Fault(empty_disk),
    "clean stop": Fault(stop),
    "roll": Fault(roll, is_cheap=False),
    "controller deposed": Fault(depose),
    "zookeeper lost": Fault(lose_zookeeper, is_cheap=False),
    "zookeeper leader dies": Fault(zookeeper_leader_dies, is_cheap=False),
    "zookeeper leader pauses": Fault(zookeeper_leader_pauses, is_cheap=False),
    "two killed": Fault(kill_two),
    "all killed": Fault(kill_all, is_cheap=False),
    "all hosts lost": Fault(lose_all_hosts, is_cheap=False, needs_flush=True),
}


def draw(rng: random.Random, plan: Plan) -> list[str]:
    """The order of faults: each kind once, in random order; the caller draws again for more."""
    kinds = plan.only or [
        kind
        for kind, fault in FAULTS.items()
        if (fault.is_cheap or not plan.is_short) and (plan.is_flushed or not fault.needs_flush)
    ]
    return rng.sample(kinds, len(kinds))
