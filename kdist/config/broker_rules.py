"""Constraints between a broker's settings, beyond what each one's own row says (pure).

A rule returns a claim that says how the values contradict each other, or None.
"""

from __future__ import annotations

from collections.abc import Callable

from kdist.config.addresses import parse_host_port
from kdist.config.broker_config import BrokerConfig
from kdist.config.connect_string import ConnectString
from kdist.config.listeners import PROTOCOLS, parse_listener, parse_protocol_map
from kdist.errors import UserError

Rule = Callable[[BrokerConfig], str | None]


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


def listeners_can_be_read(config: BrokerConfig) -> str | None:
    """Each listener is `NAME://host:port`, and each name has a protocol that is supported."""
    broker = config.broker
    if not broker.listeners:
        return "listeners is empty"
    try:
        protocols = parse_protocol_map(broker.listener_security_protocol_map)
        given = [parse_listener(text) for text in broker.listeners + broker.advertised_listeners]
    except ValueError as fault:
        return str(fault)
    for listener in given:
        protocol = protocols.get(listener.name)
        if protocol is None:
            return f"listener.security.protocol.map has no protocol for {listener.name}"
        if protocol not in PROTOCOLS:
            return f"the protocol {protocol} of {listener.name} is not supported: use PLAINTEXT"
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
    """Advertised and inter-broker listeners are among `listeners`, with a host to reach."""
    if listeners_can_be_read(config):
        return None
    names = {parse_listener(text).name for text in config.broker.listeners}
    for advertised in map(parse_listener, config.broker.advertised_listeners):
        if advertised.host in ("", "0.0.0.0", "::"):
            return f"advertised.listeners needs a host that others can reach, not '{advertised}'"
        if advertised.name not in names:
            return f"advertised.listeners has {advertised.name}, which is not in listeners"
    inter_broker = config.broker.inter_broker_listener_name
    if inter_broker is not None and inter_broker.upper() not in names:
        return f"inter.broker.listener.name is {inter_broker}, which is not in listeners"
    return None


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


REFUSES: tuple[Rule, ...] = (
    directory_is_one,
    directory_is_absolute,
    zookeeper_can_be_read,
    listeners_can_be_read,
    listeners_are_distinct,
    advertised_listeners_exist,
    http_address_can_be_read,
    somebody_can_connect,
    session_timeouts_are_ordered,
)
WARNS: tuple[Rule, ...] = (largest_batch_fits_a_request,)
