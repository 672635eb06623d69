"""Names that are not settings of kdist: Kafka's, each with the reason, and misspelt ones.

A broker's file from a Kafka cluster is accepted as it is where that does no harm: a setting that
only tunes a mechanism kdist does not have is ignored, with a warning. One that promises what kdist
would not do (tiered storage, a KRaft quorum) is refused, unless its value asks for
nothing, as in files that name every setting. The first matching pattern decides.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Set
from fnmatch import fnmatchcase
from typing import NamedTuple

from kdist.config.declare import Setting, Synonym
from kdist.config.faults import Given
from kdist.config.kinds import Kind, Shape
from kdist.config.layers import Layer, names_in


class Foreign(NamedTuple):
    """A pattern of names (`*` for any text, as in a shell), whether they are refused, and why."""

    pattern: str
    is_refused: bool
    reason: str


REFUSED = {
    "kdist is coordinated by ZooKeeper, not by a KRaft quorum": (
        "process.roles", "node.id", "controller.quorum.*", "controller.listener.names",
        "metadata.log.*", "metadata.max.*", "zookeeper.metadata.migration.*",
        "early.start.listeners", "broker.heartbeat.interval.ms", "broker.session.timeout.ms",
        "initial.broker.registration.timeout.ms",
    ),
    "the versions and ciphers of TLS to ZooKeeper are OpenSSL's, and revocation is not checked": (
        "zookeeper.ssl.protocol", "zookeeper.ssl.enabled.protocols", "zookeeper.ssl.cipher.suites",
        "zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable",
    ),
    "PEM has no such password": ("zookeeper.ssl.truststore.password",),
    "kdist has neither Kerberos nor delegation tokens": (
        "sasl.kerberos.*", "delegation.token.*",
    ),
    "no password can be changed while a broker runs": ("password.encoder.*",),
    "PEM has no such password: that of an encrypted key is ssl.key.password": (
        "ssl.keystore.password", "ssl.truststore.password", "listener.name.*.ssl.keystore.password",
        "listener.name.*.ssl.truststore.password",
    ),
    "all listeners share one event loop": ("control.plane.listener.name",),
    "kdist cannot load Java classes": (
        "create.topic.policy.class.name", "alter.config.policy.class.name",
        "client.quota.callback.class", "principal.builder.class", "security.providers",
        "ssl.engine.factory.class", "sasl.login.class", "sasl.login.callback.handler.class",
        "sasl.client.callback.handler.class",
    ),
    "kdist keeps a log on its own disk only": (
        "remote.storage.enable", "remote.log.storage.system.enable", "remote.log.copy.disable",
        "remote.log.delete.on.disable", "log.local.retention.*", "local.retention.*",
    ),
    "use listeners and advertised.listeners": (
        "host.name", "port", "advertised.host.name", "advertised.port",
    ),
}  # fmt: skip

NOTHING = {
    "false": (
        "remote.storage.enable", "remote.log.storage.system.enable", "remote.log.copy.disable",
        "remote.log.delete.on.disable", "zookeeper.metadata.migration.enable",
        "zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable",
    ),
    "-2": ("log.local.retention.*", "local.retention.*"),
    "-1": ("node.id",),
}  # fmt: skip
"""Values of refused settings that ask for nothing, by value: Kafka's defaults. So does no value."""

IGNORED = {
    "nothing is in tiered storage": ("remote.*",),
    "one thread owns all of a broker's state": (
        "num.network.threads", "num.io.threads", "background.threads", "queued.max.requests",
        "queued.max.request.bytes", "log.initial.task.delay.ms",
    ),
    "start offsets are saved with the recovery points, and whenever they move": (
        "log.flush.start.offset.checkpoint.interval.ms",
    ),
    "one process scans the one disk after a crash, as fast as the disk reads": (
        "num.recovery.threads.per.data.dir",
    ),
    "delayed operations need no periodic clean-up": ("*.purgatory.purge.interval.requests",),
    "a broker, which is one disk, has one process that cleans its logs": (
        "log.cleaner.threads", "log.cleaner.io.buffer.*",
    ),
    "this release has no transactions yet": ("transaction.*", "transactional.*"),
    "a broker has one log directory": ("replica.alter.log.dirs.*",),
    "a broker has one connection to each other that it follows": ("num.replica.fetchers",),
    "brokers give each other up by timeouts of their own": (
        "request.timeout.ms", "socket.connection.setup.*", "replica.socket.receive.buffer.bytes",
    ),
    "a client may use quota.window.size.seconds' worth at once, and nothing is averaged": (
        "quota.window.num",
    ),
    "quotas are set by kdist configs, and only users and clients have any yet": (
        "quota.producer.default", "quota.consumer.default", "replication.quota.*",
        "alter.log.dirs.replication.quota.*",
    ),
    "metrics are served at /metrics in Prometheus's format": (
        "metric.reporters", "metrics.*", "kafka.metrics.*", "auto.include.jmx.reporter",
        "telemetry.*",
    ),
    "kdist always stores record batches of magic 2 and converts for old clients": (
        "log.message.format.version", "message.format.version", "inter.broker.protocol.version",
    ),
    "it concerns brokers of a KRaft quorum": (
        "unstable.*", "eligible.leader.replicas.enable", "server.max.startup.time.ms",
        "unclean.leader.election.interval.ms", "max.request.partition.size.limit",
        "sasl.mechanism.controller.protocol",
    ),
    "kdist compresses at each codec's own default level": ("compression.*.level",),
    "one broker is one disk": ("num.replica.alter.log.dirs.threads", "log.dir.failure.timeout.ms"),
    "a broker's id is always given": ("broker.id.generation.enable", "reserved.broker.max.id"),
    "offsets are always committed to all in-sync replicas, uncompressed": (
        "offsets.commit.required.acks", "offsets.topic.compression.codec",
    ),
    "offsets are read in pieces of a size that fits": ("offsets.load.buffer.size",),
    "the ZooKeeper client is kazoo": (
        "zookeeper.clientCnxnSocket", "zookeeper.max.in.flight.requests", "zookeeper.sync.time.ms",
    ),
    "only the classic group protocol is supported": (
        "group.consumer.*", "group.share.*", "group.coordinator.*", "share.coordinator.*",
    ),
    "TLS is OpenSSL's, not Java's": (
        "ssl.provider", "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm",
        "ssl.secure.random.implementation",
    ),
    "brokers log in to each other with a name and a password": (
        "sasl.login.*", "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.header.urlencode",
    ),
}  # fmt: skip

TABLE = (
    *(Foreign(name, True, reason) for reason, names in REFUSED.items() for name in names),
    *(Foreign(name, False, reason) for reason, names in IGNORED.items() for name in names),
)


def find_foreign(name: str) -> Foreign | None:
    """The first row whose pattern matches the name, if there is one."""
    return next((row for row in TABLE if fnmatchcase(name, row.pattern)), None)


def ignored_row(name: str) -> Setting:
    """A row that describes an ignored name: a string, with the reason as its doc."""
    foreign = find_foreign(name)
    reason = foreign.reason if foreign else "it is no setting"
    return Setting(
        attribute="",
        shape=Shape(Kind.STRING),
        names=(Synonym(name),),
        broker_names=(),
        default=None,
        minimum=None,
        maximum=None,
        unit="",
        subject="",
        is_dynamic=True,  # so that it can be removed again
        doc=f"Ignored: {reason}.",
    )


def _asks_for_nothing(name: str, text: str) -> bool:
    patterns = NOTHING.get(text, ()) if text else ("*",)
    return any(fnmatchcase(name, each) for each in patterns)


class Judged(NamedTuple):
    """A sentence for each given name that is not a setting, by name: refused or ignored."""

    refused: dict[str, str]
    ignored: dict[str, str]


def judge_names(given: Mapping[str, Given], names: Set[str]) -> Judged:
    """Judge every given name that is not among `names`.

    Values are not repeated: an unknown setting may be a misspelt secret.
    """
    judged = Judged({}, {})
    for name, value in given.items():
        if name in names:
            continue
        foreign = find_foreign(name)
        if foreign is None:
            judged.refused[name] = unknown_name(name, value, names)
        elif foreign.is_refused and not _asks_for_nothing(name, value.text.strip()):
            judged.refused[name] = value.sentence(f"{name} cannot be set: {foreign.reason}")
        else:
            judged.ignored[name] = value.sentence(f"{name} is ignored: {foreign.reason}")
    return judged


def ignored_in(layer: Layer, names: Set[str]) -> list[str]:
    """A sentence for each setting of a layer that is accepted, and has no effect."""
    return list(judge_names(layer.given, names).ignored.values())


def unknown_names(given: Mapping[str, Given], table: Iterable[Setting]) -> Iterator[str]:
    """A sentence for each given name that is not in `table`."""
    names = frozenset(names_in(table, of_broker=True))
    for name, value in given.items():
        if name not in names:
            yield unknown_name(name, value, names)


def unknown_name(name: str, given: Given, names: Set[str]) -> str:
    """The sentence for an unknown name, which suggests the most similar known one."""
    nearest = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.75)
    if not nearest:
        return given.sentence(f"{name or repr(name)} is not a setting")
    return given.sentence(f"{name} is not a setting: did you mean {nearest[0]}", end="?")
