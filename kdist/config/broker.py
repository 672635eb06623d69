"""The settings of a broker as a whole: who it is, where it listens, its disk and its session.

Kafka 3.9's names and defaults where the meaning is the same; a row that is kdist's own says so.
"""

from __future__ import annotations

from typing import Literal

from kdist.config.addresses import PROTOCOLS
from kdist.config.declare import Settings, Synonym, setting, settings
from kdist.config.kinds import int32, int64, secret
from kdist.config.security import Mechanism


@settings
class BrokerSettings(Settings):
    """What only the package broker reads; each package below it has a class of its own."""

    id: int32 = setting(
        "broker.id",
        minimum=0,
        subject="Identity",
        doc="The broker's id, which no other broker of the cluster has.",
    )
    directory: str = setting(
        "log.dir",
        synonyms=(Synonym("log.dirs"),),
        doc="The one directory, on a disk of its own, that holds all of the broker's logs.",
    )
    host: str | None = setting(
        "broker.host",
        default=None,
        doc="kdist's own: the machine it runs on, as replica placement knows it; unset, its "
        "host name.",
    )
    rack: str | None = setting(
        "broker.rack",
        default=None,
        doc="The rack of the machine: replicas of a partition are spread over racks.",
    )
    listeners: tuple[str, ...] = setting(
        default=("PLAINTEXT://:9092",),
        subject="Listeners",
        doc="Where connections are accepted, as `NAME://host:port`; no host means every address.",
    )
    advertised_listeners: tuple[str, ...] = setting(
        default=(),
        doc="Addresses that clients and brokers are told to connect to; unset, the `listeners`.",
    )
    listener_security_protocol_map: tuple[str, ...] = setting(
        default=tuple(f"{protocol}:{protocol}" for protocol in PROTOCOLS),
        doc="The protocol of each listener, as `NAME:PROTOCOL`: PLAINTEXT, SSL, SASL_PLAINTEXT or "
        "SASL_SSL.",
    )
    inter_broker_listener_name: str | None = setting(
        default=None,
        doc="The listener that brokers use among themselves; unset, that of "
        "`security.inter.broker.protocol`, or the first of the `listeners`.",
    )
    inter_broker_listener_former: str | None = setting(
        default=None,
        doc="kdist's own: the listener that brokers used before, on which their requests are taken "
        "too, until all of them use the new one.",
    )
    security_inter_broker_protocol: (
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None
    ) = setting(
        default=None,
        doc="The listener that brokers use among themselves, if it has the name of its protocol.",
    )
    sasl_mechanism_inter_broker_protocol: Mechanism | None = setting(
        default=None,
        doc="The mechanism by which brokers log in to each other; unset, the only one of their "
        "listener (Kafka's default is GSSAPI).",
    )
    http_address: str | None = setting(
        default=None,
        doc="kdist's own: the `host:port` of `/metrics` and `/health`; unset, they are not served.",
    )
    http_token_file: str | None = setting(
        default=None,
        doc="kdist's own: a file with the token that a reader of `/metrics` and `/health` must send"
        " as `Authorization: Bearer`; unset, anybody may read them.",
    )
    num_partitions: int32 = setting(
        default=1,
        minimum=1,
        subject="Topics",
        doc="How many partitions a topic gets if the request does not say.",
    )
    default_replication_factor: int32 = setting(
        default=1,
        minimum=1,
        doc="How many replicas a topic gets if the request does not say.",
    )
    auto_create_topics_enable: bool = setting(
        default=True,
        doc="Whether a topic is created when a client asks for one that does not exist.",
    )
    delete_topic_enable: bool = setting(default=True, doc="Whether topics may be deleted.")
    controller_socket_timeout_ms: int32 = setting(
        default=30_000,
        minimum=1,
        subject="Cluster",
        doc="How long the controller waits for a broker's response before it reconnects, and a"
        " broker that stops for its leaders to be moved.",
    )
    auto_leader_rebalance_enable: bool = setting(
        default=True,
        doc="Whether the controller gives leaders back to their preferred replicas by itself.",
    )
    leader_imbalance_check_interval_seconds: int64 = setting(
        default=300,
        minimum=1,
        doc="The pause between two checks of who is led by another than its preferred replica.",
    )
    leader_imbalance_per_broker_percentage: int32 = setting(
        default=10,
        minimum=0,
        doc="A check gives leaders back to a broker that lacks more than this share of them.",
    )
    leader_imbalance_elections_per_check: int32 = setting(
        default=500,
        minimum=1,
        doc="kdist's own: how many leaders a check moves at most.",
    )
    controlled_shutdown_enable: bool = setting(
        default=True,
        doc="Whether a broker that stops first has its leaders moved to other replicas.",
    )
    controlled_shutdown_max_retries: int32 = setting(
        default=3,
        minimum=0,
        doc="How often a broker that stops has its leaders moved, before it stops all the same.",
    )
    controlled_shutdown_retry_backoff_ms: int32 = setting(
        default=5_000,
        minimum=0,
        doc="The pause between two such tries, in which replicas may get in sync.",
    )


@settings
class DiskSettings(Settings):
    """What is checked before a broker touches its disk; unset, nothing is. All are kdist's own."""

    PREFIX = "disk."

    marker: str | None = setting(
        default=None,
        subject="Disk",
        doc="kdist's own: a JSON file at the disk's root with `cluster`, `broker` and `disk`; the "
        "broker starts only if it is there and matches, so that the right disk is mounted.",
    )
    id: str | None = setting(
        default=None,
        doc="kdist's own: the disk's id that the marker must have, such as `d01`; unset, any.",
    )
    cluster: str | None = setting(
        default=None, doc="kdist's own: the cluster's name that the marker must have; unset, any."
    )


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
        doc="A starting broker that has reached no ZooKeeper server for this long says so, and "
        "goes on waiting; unset, the session timeout.",
    )
    ssl_client_enable: bool = setting(
        default=False,
        doc="Whether the servers are spoken to by TLS: `zookeeper.connect` has their secure ports.",
    )
    ssl_keystore_location: str | None = setting(
        default=None,
        doc="A PEM file with the broker's private key, certificate and chain, which all brokers "
        "may share: ZooKeeper knows the broker by the certificate's name.",
    )
    ssl_keystore_type: str = setting(
        default="PEM", doc="The format of the certificate and key: PEM."
    )
    ssl_keystore_password: secret | None = setting(
        default=None, doc="The password of an encrypted private key."
    )
    ssl_truststore_location: str | None = setting(
        default=None,
        doc="A PEM file with the CAs that sign the servers' certificates; unset, those of the "
        "machine.",
    )
    ssl_truststore_type: str = setting(
        default="PEM", doc="The format of the trusted certificates: PEM."
    )
    ssl_endpoint_identification_algorithm: Literal["HTTPS"] | None = setting(
        default="HTTPS",
        doc="Whether the host name in a server's certificate is checked; empty, it is not.",
    )
    digest_file: str | None = setting(
        default=None,
        doc="kdist's own: a file with `user:password`, by which ZooKeeper knows the broker.",
    )
    digest_sasl_enable: bool = setting(
        default=False,
        doc="kdist's own: whether they are shown by SASL's DIGEST-MD5, as brokers of Apache Kafka "
        "do, in place of the scheme `digest`; it needs the package pure-sasl.",
    )
    digest_over_clear_enable: bool = setting(
        default=False,
        doc="kdist's own: whether the scheme `digest`, which sends the password as it is, is "
        "allowed without TLS.",
    )
    set_acl: bool = setting(
        default=False,
        doc="Whether each znode is created so that only its creator's identity may change it, and "
        "only that may read those with secrets.",
    )
