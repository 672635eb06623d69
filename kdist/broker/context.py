"""What a broker is given: its configuration and the world (design D7).

Production gives it the machine (`process.py`); a test or the simulator gives it a disk, a network
and a ZooKeeper in memory, on a loop in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kdist.config.broker_config import BrokerConfig
from kdist.config.kinds import INT32_MAX
from kdist.network.network import Network
from kdist.runtime.files import Files
from kdist.runtime.process import Process
from kdist.zk.client import ZooKeeper


def _no_status(_sentence: str) -> None:
    """Nobody wants to know."""


class BrokerContext(NamedTuple):
    """`zk` is not connected yet; the broker closes it, and nothing else of this.

    `process` owns whatever runs for the broker. `host` is the machine's name, and `boot_id` tells
    its boots apart; it allows `connections_max` connections, whatever settings say. `release`
    is the digest of the wheels it was installed from, and `unit` that of the systemd unit that it
    was started by, if they say. `status` is told, in a sentence, what the broker is at.
    `cleaner_argv` starts the process that cleans logs; without it, a thread does.
    """

    config: BrokerConfig
    files: Files
    process: Process
    network: Network
    zk: ZooKeeper
    host: str
    boot_id: str = ""
    connections_max: int = INT32_MAX
    version: str = "unknown"
    release: str = ""
    unit: str = ""
    status: Callable[[str], None] = _no_status
    cleaner_argv: Sequence[str] = ()
