"""Constraints between a broker's settings, beyond what each one's own row says (pure).

A rule returns a claim that says how the values contradict each other, or None.
"""

from __future__ import annotations

from collections.abc import Callable

from kdist.config.addresses import (
    ConnectString,
    listener_protocols,
    parse_host_port,
    parse_listener,
    parse_numbers_by_host,
)
from kdist.config.broker_config import BrokerConfig
from kdist.config.listener_rules import CONVERTED, jaas_can_be_read
from kdist.config.security import prefix_of
from kdist.errors import UserError

Rule = Callable[[BrokerConfig], str | None]

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_EVERY_ADDRESS = {"", "0.0.0.0", "::"}
_SESSION_TIMEOUT_MS = 45_000  # the default of Java's consumer since 3.0, of librdkafka and kdist
_MINUTE_MS = 60_000


def directory_is_one(config: BrokerConfig) -> str | None:
    """`log.dir` names one directory: one broker is one disk."""
    if "," not in config.broker.directory:
        return None
    return "log.dir names several directories: one broker is one disk, so run one broker for each"


def directory_is_absolute(config: BrokerConfig) -> str | None:
    """`log.dir` is an absolute path."""
    if config.broker.directory.startswith("/"):
        return None
    return f"log.dir must be an absolute path, not {config.broker.directory!r}"


def zookeeper_can_be_read(config: BrokerConfig) -> str | None:
    """`zookeeper.connect` is `host1:port1,host2:port2/chroot`."""
    if not config.zookeeper.connect:
        return "zookeeper.connect is empty"
    try:
        ConnectString.parse(config.zookeeper.connect)
    except UserError as fault:
        return str(fault)
    return None


def zookeeper_stores_are_pem(config: BrokerConfig) -> str | None:
    """`zookeeper.ssl.keystore.type` and `zookeeper.ssl.truststore.type` are PEM."""
    zookeeper = config.zookeeper
    types = {"keystore": zookeeper.ssl_keystore_type, "truststore": zookeeper.ssl_truststore_type}
    for store, kind in types.items():
        if kind.upper() != "PEM":
            return f"zookeeper.ssl.{store}.type is {kind}, but kdist reads PEM only: {CONVERTED}"
    return None


def zookeeper_tls_is_enabled(config: BrokerConfig) -> str | None:
    """With certificates for ZooKeeper, `zookeeper.ssl.client.enable` is true."""
    zookeeper = config.zookeeper
    stores = (zookeeper.ssl_keystore_location, zookeeper.ssl_truststore_location)
    if zookeeper.ssl_client_enable or not any(stores):
        return None
    return "zookeeper.ssl.* has certificates, but zookeeper.ssl.client.enable is not true"


def zookeeper_digest_is_not_shown_in_clear(config: BrokerConfig) -> str | None:
    """`zookeeper.digest.file` needs TLS, or SASL, or `zookeeper.digest.over.clear.enable`."""
    zookeeper = config.zookeeper
    if (
        zookeeper.digest_file is None
        or zookeeper.ssl_client_enable
        or zookeeper.digest_sasl_enable
        or zookeeper.digest_over_clear_enable
    ):
        return None
    return (
        "zookeeper.digest.file would be sent in clear: set zookeeper.ssl.client.enable, or"
        " zookeeper.digest.over.clear.enable if nobody can listen"
    )


def znodes_have_a_creator(config: BrokerConfig) -> str | None:
    """`zookeeper.set.acl` needs an identity: `zookeeper.digest.file`, or a certificate."""
    zookeeper = config.zookeeper
    if not zookeeper.set_acl or zookeeper.digest_file or zookeeper.ssl_keystore_location:
        return None
    return (
        "zookeeper.set.acl needs an identity that may change znodes: set zookeeper.digest.file or"
        " zookeeper.ssl.keystore.location"
    )


def listeners_can_be_read(config: BrokerConfig) -> str | None:
    """Each listener is `NAME://host:port`, and each name has a protocol that is supported."""
    broker = config.broker
    if not broker.listeners:
        return "listeners is empty"
    try:
        every = broker.listeners + broker.advertised_listeners
        listener_protocols(every, broker.listener_security_protocol_map)
    except ValueError as fault:
        return str(fault)
    return None


def listeners_are_distinct(config: BrokerConfig) -> str | None:
    """`listeners` uses no name and no port twice."""
    if listeners_can_be_read(config):
        return None
    given = [parse_listener(text) for text in config.broker.listeners]
    names = {listener.name for listener in given}
    ports = [listener.port for listener in given if listener.port]
    if len(names) == len(given) and len(set(ports)) == len(ports):
        return None
    return "listeners uses a name or a port twice"


def advertised_listeners_exist(config: BrokerConfig) -> str | None:
    """Advertised listeners are among `listeners`, with a host to reach."""
    if listeners_can_be_read(config):
        return None
    names = {parse_listener(text).name for text in config.broker.listeners}
    for advertised in map(parse_listener, config.broker.advertised_listeners):
        if advertised.host in ("", "0.0.0.0", "::"):
            return f"advertised.listeners needs a host that others can reach, not '{advertised}'"
        if advertised.name not in names:
            return f"advertised.listeners has {advertised.name}, which is not in listeners"
    return None


def brokers_have_a_listener(config: BrokerConfig) -> str | None:
    """One at most of `inter.broker.listener.name` and `security.inter.broker.protocol` is given,
    and names one of the `listeners`, as does `inter.broker.listener.former`."""
    broker = config.broker
    if listeners_can_be_read(config):
        return None
    if broker.inter_broker_listener_name and broker.security_inter_broker_protocol:
        return "inter.broker.listener.name and security.inter.broker.protocol are both given"
    named = config.inter_broker_listener
    setting = (
        "security.inter.broker.protocol"
        if broker.security_inter_broker_protocol
        else "inter.broker.listener.name"
    )
    if named not in config.listeners:
        return f"{setting} is {named}, which is not in listeners"
    former = broker.inter_broker_listener_former
    if former is not None and former.upper() not in config.listeners:
        return f"inter.broker.listener.former is {former}, which is not in listeners"
    return None


def brokers_can_log_in(config: BrokerConfig) -> str | None:
    """With SASL between brokers, their mechanism is enabled on their listener, and its JAAS text
    has a username and a password."""
    if brokers_have_a_listener(config) or listeners_can_be_read(config):
        return None
    listener = config.listener(config.inter_broker_listener)
    if listener.sasl is None:
        return None
    mechanism = config.inter_broker_mechanism
    if mechanism is None:
        return (
            f"sasl.mechanism.inter.broker.protocol must be given: {listener.name} has several"
            " mechanisms"
        )
    if mechanism not in listener.mechanisms:
        return (
            f"sasl.mechanism.inter.broker.protocol is {mechanism}, which is not enabled on"
            f" {listener.name}"
        )
    if mechanism == "OAUTHBEARER":
        return "sasl.mechanism.inter.broker.protocol is OAUTHBEARER: brokers do not fetch tokens"
    jaas = None if jaas_can_be_read(listener) else listener.jaas(mechanism)
    if jaas is None or not (jaas.username and jaas.password):
        return (
            f"{prefix_of(listener.name, mechanism)}sasl.jaas.config must have the username and the"
            " password with which brokers log in to each other"
        )
    return None


def addresses_have_numbers(config: BrokerConfig) -> str | None:
    """`max.connections.per.ip.overrides` has `address:number` each."""
    try:
        parse_numbers_by_host(config.network.max_connections_per_ip_overrides)
    except ValueError as fault:
        return f"max.connections.per.ip.overrides {fault}"
    return None


def failures_are_told_before_the_close(config: BrokerConfig) -> str | None:
    """`connection.failed.authentication.delay.ms` is below `connections.max.idle.ms`."""
    idle_ms = config.network.connections_max_idle_ms
    if not 0 <= idle_ms <= config.authentication.connection_failed_authentication_delay_ms:
        return None
    return "connection.failed.authentication.delay.ms is not below connections.max.idle.ms"


def names_on_the_page_are_shown_to_few(config: BrokerConfig) -> str | None:
    """With an authorizer, `http.address` is on loopback or `http.token.file` is given."""
    broker = config.broker
    address = parse_host_port(broker.http_address or "")
    is_open = address is not None and address.host not in _LOOPBACK and not broker.http_token_file
    if config.authorization.authorizer_class_name is None or not is_open:
        return None
    return (
        "http.address shows the names of topics and groups to whoever can reach it: give"
        " http.token.file, or an address on loopback"
    )


def http_address_can_be_read(config: BrokerConfig) -> str | None:
    """`http.address` is `host:port`."""
    text = config.broker.http_address
    if text is None or parse_host_port(text):
        return None
    return f"http.address is {text!r}, but must be host:port"


def somebody_can_connect(config: BrokerConfig) -> str | None:
    """`max.connections` allows one besides the controller's, unless brokers have a listener of
    their own, which is exempt."""
    most = config.network.max_connections
    if most > 1 or len(config.broker.listeners) > 1:
        return None
    return f"max.connections is {most}: the controller takes one, and nobody else could connect"


def http_address_is_no_listeners(config: BrokerConfig) -> str | None:
    """`http.address` has a port that no listener has on the same address."""
    address = parse_host_port(config.broker.http_address or "")
    if listeners_can_be_read(config) or address is None:
        return None
    host, port = address
    for listener in map(parse_listener, config.broker.listeners):
        hosts = {host, listener.host}
        if port == listener.port != 0 and (len(hosts) == 1 or hosts & _EVERY_ADDRESS):
            return f"http.address and the listener {listener} have the same port"
    return None


def follower_waits_within_its_timeout(config: BrokerConfig) -> str | None:
    """`replica.fetch.wait.max.ms` is not above `replica.socket.timeout.ms`."""
    replication = config.replication
    if replication.fetch_wait_max_ms <= replication.socket_timeout_ms:
        return None
    return "replica.fetch.wait.max.ms is above replica.socket.timeout.ms: no fetch could wait"


def follower_waits_within_its_lag(config: BrokerConfig) -> str | None:
    """`replica.fetch.wait.max.ms` is not above `replica.lag.time.max.ms`."""
    replication = config.replication
    if replication.fetch_wait_max_ms <= replication.lag_time_max_ms:
        return None
    return (
        "replica.fetch.wait.max.ms is above replica.lag.time.max.ms: the in-sync replicas of a"
        " quiet partition would come and go"
    )


def session_timeouts_are_ordered(config: BrokerConfig) -> str | None:
    """`group.min.session.timeout.ms` is not above `group.max.session.timeout.ms`."""
    if config.groups.min_session_timeout_ms <= config.groups.max_session_timeout_ms:
        return None
    return "group.min.session.timeout.ms is above group.max.session.timeout.ms"


def largest_batch_fits_a_request(config: BrokerConfig) -> str | None:
    """`message.max.bytes` is not above `socket.request.max.bytes`."""
    if config.topic_defaults.max_message_bytes <= config.network.socket_request_max_bytes:
        return None
    return "message.max.bytes is above socket.request.max.bytes: such a batch can never be sent"


def commits_fit_a_batch(config: BrokerConfig) -> str | None:
    """`offset.metadata.max.bytes` is below `message.max.bytes`."""
    if config.groups.offset_metadata_max_bytes < config.topic_defaults.max_message_bytes:
        return None
    return (
        "offset.metadata.max.bytes is not below message.max.bytes: a commit with as much metadata"
        " fits no batch, and is refused"
    )


def commits_fit_a_segment(config: BrokerConfig) -> str | None:
    """`message.max.bytes` is not above `offsets.topic.segment.bytes`."""
    if config.topic_defaults.max_message_bytes <= config.groups.offsets_topic_segment_bytes:
        return None
    return (
        "offsets.topic.segment.bytes is below message.max.bytes: what a large group has to store"
        " in one batch may be refused"
    )


def default_session_timeout_is_allowed(config: BrokerConfig) -> str | None:
    """`group.{min,max}.session.timeout.ms` allow what clients ask for by default."""
    groups = config.groups
    if groups.min_session_timeout_ms <= _SESSION_TIMEOUT_MS <= groups.max_session_timeout_ms:
        return None
    return (
        f"group.min.session.timeout.ms ({groups.min_session_timeout_ms}) and"
        f" group.max.session.timeout.ms ({groups.max_session_timeout_ms}) exclude"
        f" {_SESSION_TIMEOUT_MS}, which most clients ask for by default: they cannot join a group"
    )


def flushes_are_checked_as_often_as_due(config: BrokerConfig) -> str | None:
    """`log.flush.scheduler.interval.ms` is not above `log.flush.interval.ms`."""
    every_ms, due_ms = config.storage.flush_scheduler_interval_ms, config.topic_defaults.flush_ms
    return _too_seldom("log.flush.scheduler.interval.ms", every_ms, "log.flush.interval.ms", due_ms)


def retention_is_checked_as_often_as_due(config: BrokerConfig) -> str | None:
    """`log.retention.check.interval.ms` is not above `log.retention.ms`."""
    topic = config.topic_defaults
    if "delete" not in topic.cleanup_policy or topic.retention_ms < 0:
        return None
    every_ms = config.storage.retention_check_interval_ms
    return _too_seldom(
        "log.retention.check.interval.ms", every_ms, "log.retention.ms", topic.retention_ms
    )


def producers_are_checked_as_often_as_due(config: BrokerConfig) -> str | None:
    """`producer.id.expiration.check.interval.ms` is not above `producer.id.expiration.ms`."""
    return _too_seldom(
        "producer.id.expiration.check.interval.ms",
        config.storage.producer_id_expiration_check_interval_ms,
        "producer.id.expiration.ms",
        config.storage.producer_id_expiration_ms,
    )


def offsets_are_checked_as_often_as_due(config: BrokerConfig) -> str | None:
    """`offsets.retention.check.interval.ms` is not above `offsets.retention.minutes`."""
    return _too_seldom(
        "offsets.retention.check.interval.ms",
        config.groups.offsets_retention_check_interval_ms,
        "offsets.retention.minutes",
        config.groups.offsets_retention_minutes * _MINUTE_MS,
    )


def _too_seldom(check: str, every_ms: int, limit: str, due_ms: int) -> str | None:
    if every_ms <= due_ms:
        return None
    return f"{check} ({every_ms}) is above {limit} ({due_ms} ms), which takes effect as late"


def brokers_have_rights(config: BrokerConfig) -> str | None:
    """Where ACLs decide, brokers authenticate to each other, or ANONYMOUS is a super user."""
    authorization, name = config.authorization, config.inter_broker_listener
    if (
        authorization.authorizer_class_name is None
        or authorization.authorizer_dry_run
        or config.listener(name).authenticates
        or "User:ANONYMOUS" in map(str.strip, authorization.super_users.split(";"))
    ):
        return None
    return (
        f"brokers come to each other as User:ANONYMOUS, since {name} does not authenticate: unless"
        " it is one of super.users, or an ACL grants it ClusterAction, no broker gets ready"
    )


def follower_backs_off_within_its_lag(config: BrokerConfig) -> str | None:
    """`replica.fetch.backoff.ms` is below `replica.lag.time.max.ms`."""
    replication = config.replication
    if replication.fetch_backoff_ms < replication.lag_time_max_ms:
        return None
    return (
        f"replica.fetch.backoff.ms ({replication.fetch_backoff_ms}) is not below"
        f" replica.lag.time.max.ms ({replication.lag_time_max_ms}): one refused fetch takes a"
        " follower out of the in-sync replicas"
    )


REFUSES: tuple[Rule, ...] = (
    directory_is_one,
    directory_is_absolute,
    zookeeper_can_be_read,
    zookeeper_stores_are_pem,
    zookeeper_tls_is_enabled,
    zookeeper_digest_is_not_shown_in_clear,
    znodes_have_a_creator,
    listeners_can_be_read,
    listeners_are_distinct,
    advertised_listeners_exist,
    brokers_have_a_listener,
    brokers_can_log_in,
    addresses_have_numbers,
    failures_are_told_before_the_close,
    http_address_can_be_read,
    http_address_is_no_listeners,
    somebody_can_connect,
    session_timeouts_are_ordered,
    follower_waits_within_its_timeout,
    follower_waits_within_its_lag,
)
WARNS: tuple[Rule, ...] = (
    largest_batch_fits_a_request,
    commits_fit_a_batch,
    commits_fit_a_segment,
    default_session_timeout_is_allowed,
    names_on_the_page_are_shown_to_few,
    brokers_have_rights,
    flushes_are_checked_as_often_as_due,
    retention_is_checked_as_often_as_due,
    producers_are_checked_as_often_as_due,
    offsets_are_checked_as_often_as_due,
    follower_backs_off_within_its_lag,
)
