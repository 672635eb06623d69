"""The directory of a `kdist standalone`: its layout, its lock, and its brokers' settings.

standalone.json    the marker: a version, how many brokers have data here, and process ids
.lock              held while it runs
zookeeper/         ZooKeeper's data
d01/, d02/, ...    a log directory for each broker
conf/d01.properties, ...    rewritten at each start
logs/d01.log, ..., zookeeper.log    each process's log; .log.1 is that of its life before

What a secured one has besides is in `security`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from kdist.cli.standalone.security import PROTOCOL, Making, Security
from kdist.config.load import broker_from
from kdist.config.texts import escape_properties
from kdist.errors import UserError
from kdist.runtime.files import File, Files, Lock

HOST = "127.0.0.1"
_MARKER = "standalone.json"
_LOCK = ".lock"
_VERSION = 1
_TAIL_BYTES = 1 << 16
# Errors that the command prints, and those that `diagnostics` logs.
_ERROR = re.compile(r"kdist: |\S+Z (?:ERROR|CRITICAL) \S+: ")
_OWN = frozenset({"broker.id", "listeners", "log.dir", "log.dirs", "zookeeper.connect"})
_REPLICAS = 3
# With brokers enough one may die: nothing stops, and nothing that acks=all acknowledged is lost.
_REPLICATED = {
    "default.replication.factor": str(_REPLICAS),
    "min.insync.replicas": str(_REPLICAS - 1),
}
_OWNER_ALONE = 0o077
_BEGUN = {
    False: "was begun in clear: leave out --secure, or name another directory with --data",
    True: "was begun with --secure: say it again, or name another directory with --data",
}
_LOST_AND_FOUND = "lost+found"  # if the directory is a filesystem of its own


class BrokerPlan(NamedTuple):
    """A broker to start: its id (from 0), name (from d01), port and places."""

    id: int
    name: str
    port: int
    data: str
    config: str
    log: str

    @property
    def address(self) -> str:
        """Where it listens, as host:port."""
        return f"{HOST}:{self.port}"


class Home:
    """The directory at an absolute path. Owner: the command; `close` unlocks it."""

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self.zookeeper = f"{path}/zookeeper"
        self.zookeeper_log = f"{path}/logs/zookeeper.log"
        self.security: Security | None = None
        self._files = files
        self._lock: Lock | None = None

    @property
    def umask(self) -> int:
        """Of the processes: what secured ones write is their owner's alone. -1: as this one's."""
        return _OWNER_ALONE if self.security else -1

    def claim(self, wanted: int | None, making: Making | None = None) -> int:
        """How many brokers to start: `wanted`, else as many as before, else 1.

        With `making` they are to be secured. Locks the directory if it has
        data. A new one is created and locked by `prepare`, so that a start that is refused before
        that leaves nothing behind.
        `UserError` if it is not ours, is in use, has data of more brokers than wanted, or was begun
        the other way.
        """
        marker = self._known()
        known = marker.brokers if marker else None
        if marker is not None and marker.is_secured != (making is not None):
            raise UserError(f"{self.path} {_BEGUN[marker.is_secured]}")
        if known is not None and wanted is not None and wanted < known:
            raise UserError(
                f"{self.path} has the data of {known} brokers, and partitions on those left out"
                f" could not be read: say --brokers {known}, or name another directory with --data"
            )
        if known is not None:
            self._hold()
            self._require_no_leftovers()
        if making is not None:
            self.security = Security.of(self._files, self.path, making)
        return wanted or known or 1

    def _hold(self) -> None:
        try:
            self._lock = self._files.lock(f"{self.path}/{_LOCK}")
        except BlockingIOError:
            raise UserError(f"{self.path} is in use by another `kdist standalone`") from None

    def _require_no_leftovers(self) -> None:
        """`UserError` if processes of an earlier run, which was killed, still run here."""
        marker = self._marker()
        recorded = marker.pids if marker else {}
        left = {name: pid for name, pid in recorded.items() if self._is_ours(pid)}
        if left:
            pids = " ".join(map(str, left.values()))
            raise UserError(
                f"{', '.join(left)} of a run that was killed still run on {self.path}: end them"
                f" first with `kill {pids}`"
            )

    def _marker(self) -> Marker | None:
        path = f"{self.path}/{_MARKER}"
        return _read_marker(path, self._files.read(path)) if self._files.exists(path) else None

    def _is_ours(self, pid: int) -> bool:
        """Whether a process has this directory on its command line: pids are reused."""
        try:
            return f"{self.path}/".encode() in self._files.read(f"/proc/{pid}/cmdline")
        except OSError:
            return False

    def record(self, brokers: int, pids: Mapping[str, int]) -> None:
        """Write the marker, with the running processes."""
        known = {"version": _VERSION, "brokers": brokers, "pids": dict(pids)}
        marker = json.dumps(known | ({"secured": True} if self.security else {}))
        self._files.replace(f"{self.path}/{_MARKER}", f"{marker}\n".encode())

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _known(self) -> Marker | None:
        """Who has data here; None for a directory that is new or empty."""
        if not self._files.exists(self.path):
            return None
        if not self._files.is_directory(self.path):
            raise UserError(f"{self.path} is not a directory")
        marker = self._marker()
        if marker is not None:
            return marker
        foreign = set(self._files.list(self.path)) - {_LOCK, _LOST_AND_FOUND}
        if foreign:
            raise UserError(
                f"{self.path} is not a directory of `kdist standalone`, as it holds"
                f" {min(foreign)}: name an empty one, or a new one, with --data"
            )
        return None

    def _make_directories(self, path: str) -> None:
        if not self._files.exists(path):
            parent = path.rpartition("/")[0]
            if parent:
                self._make_directories(parent)
            self._files.make_directory(path)

    def prepare(
        self, count: int, port: int, zookeeper_address: str, settings: Mapping[str, str]
    ) -> list[BrokerPlan]:
        """Write the marker, and directories and configurations for `count` brokers.

        `UserError` if one of `settings` is refused; then nothing is written.
        """
        secured = self.security.of_brokers if self.security else {}
        for name in sorted({*_OWN, *secured}.intersection(settings)):
            raise UserError(f"{name} cannot be set by --config: it is `kdist standalone`'s own")
        plans = [self._plan(number, port + number - 1) for number in range(1, count + 1)]
        given = {**(_REPLICATED if count >= _REPLICAS else {}), **secured, **settings}
        protocol = PROTOCOL if secured else "PLAINTEXT"
        files = [_settings(plan, protocol, zookeeper_address, given) for plan in plans]
        for each in files:
            broker_from(each, "--config")
        if self._lock is None:
            self._make_directories(self.path)
            self._hold()
        self.record(count, {})
        for directory in ("zookeeper", "conf", "logs"):
            self._make_directories(f"{self.path}/{directory}")
        for plan, each in zip(plans, files, strict=True):
            self._make_directories(plan.data)
            text = _config_text(each).encode()
            self._files.replace(plan.config, text, durable=False, is_secret=bool(secured))
        if self.security is not None:
            self.security.save(self._files, [plan.address for plan in plans])
        return plans

    def _plan(self, number: int, port: int) -> BrokerPlan:
        name = f"d{number:02d}"
        return BrokerPlan(
            id=number - 1,  # from 0, as in Kafka's quickstart and as clients' tests expect
            name=name,
            port=port,
            data=f"{self.path}/{name}",
            config=f"{self.path}/conf/{name}.properties",
            log=f"{self.path}/logs/{name}.log",
        )

    def new_log(self, plan: BrokerPlan) -> File:
        """Create an empty log for a broker; the previous life's is kept beside it."""
        self.put_away(plan.log)
        return self._files.create(plan.log)

    def put_away(self, log: str) -> str:
        """Rename a process's log, if there is one; its new path."""
        if self._files.exists(log):
            self._files.rename(log, f"{log}.1")
        return f"{log}.1"

    def last_words(self, log: str) -> str:
        """The line of a process's log that tells best why it ended; see `pick_last_words`."""
        if not self._files.exists(log):
            return ""
        file = self._files.open_readonly(log)
        try:
            tail = file.read(max(0, file.size() - _TAIL_BYTES), _TAIL_BYTES)
        finally:
            file.close()
        return pick_last_words(tail.decode(errors="replace"))


def pick_last_words(log: str) -> str:
    """The last error in a log, without time and logger; else the last line; "" for an empty log.

    A traceback, which is logged as one line with `\\n` in it, is cut to its beginning and end.
    """
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    if not lines:
        return ""
    words = _ERROR.sub("", (errors or lines)[-1], count=1)
    first, *others = [part.strip() for part in words.split("\\n") if part.strip()]
    return f"{first} … {others[-1]}" if others else first


class Marker(NamedTuple):
    """The content of `standalone.json`."""

    brokers: int
    pids: dict[str, int]
    is_secured: bool


def _read_marker(path: str, content: bytes) -> Marker:
    try:
        marker = json.loads(content)
        version, brokers = marker["version"], marker["brokers"]
        pids = {name: int(pid) for name, pid in marker.get("pids", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is damaged: name another directory with --data") from None
    if version != _VERSION or not isinstance(brokers, int) or brokers < 1:
        raise UserError(f"{path} was written by another release of kdist")
    return Marker(brokers, pids, marker.get("secured") is True)


def _settings(
    plan: BrokerPlan, protocol: str, zookeeper_address: str, settings: Mapping[str, str]
) -> dict[str, str]:
    return {
        "broker.id": str(plan.id),
        # Each broker counts as a host: replicas of a partition are never placed on the same one.
        "broker.host": plan.name,
        "listeners": f"{protocol}://{plan.address}",
        "log.dir": plan.data,
        "zookeeper.connect": zookeeper_address,
        # Others wait this long where nobody can end a session, as after the machine went down.
        "zookeeper.session.timeout.ms": "6000",
        "group.initial.rebalance.delay.ms": "0",  # in development, groups should start at once
        # All stop at the same time, so there is soon nobody left who could take leaders over.
        "controlled.shutdown.retry.backoff.ms": "200",
        **settings,
    }


def _config_text(settings: Mapping[str, str]) -> str:
    lines = [escape_properties(name, value) for name, value in settings.items()]
    return "# Written by `kdist standalone` at each start: changes here do not last.\n" + "".join(
        f"{line}\n" for line in lines
    )
