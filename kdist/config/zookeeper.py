"""The settings of a broker's session with ZooKeeper; names and defaults are Kafka 3.9's."""

from __future__ import annotations

from kdist.config.declare import Settings, Synonym, setting, settings
from kdist.config.kinds import int32


@settings
class ZooKeeperSettings(Settings):
    """What the package zk is given."""

    PREFIX = "zookeeper."

    connect: str = setting(
        subject="ZooKeeper",
        doc="The ensemble's servers and the cluster's root in it, as "
        "`host1:2181,host2:2181/kdist`.",
    )
    session_timeout_ms: int32 = setting(
        default=18_000,
        minimum=1,
        doc="A broker that ZooKeeper has not heard from for this long is considered dead.",
    )
    connection_timeout_ms: int32 = setting(
        default=18_000,
        minimum=1,
        synonyms=(Synonym("zookeeper.session.timeout.ms"),),
        default_of_synonym=True,
        doc="A starting broker gives up if it reaches no ZooKeeper server for this long; "
        "unset, the session timeout.",
    )
