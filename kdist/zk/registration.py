"""A broker's registration, `/brokers/ids/<id>`: who it is and where it listens.

    version  since        adds
    1        Kafka 0.8    host, port, jmx_port, timestamp
    2        Kafka 0.9    endpoints; host and port: the first PLAINTEXT one's, or null and -1
    3        -            rack
    4        Kafka 0.10   listener_security_protocol_map
    5        Kafka 2.7    features

kdist writes version 5 and adds four fields, which Kafka ignores. `kdist_host` is the machine that
the broker's disk is in: several brokers share one, and placement keeps the replicas of a partition
off one host. `kdist_disk` is the id that the disk was given when it was first used: it tells a
broker that was restarted from another one on a machine with the same name. `kdist_content` is
another one each time that the disk may have lost what its host's page cache held. `kdist_flushed`
has the partitions, by topic, that have lost nothing committed with it, as whatever their logs had
exposed was flushed. Those it does not name may have; all of them, where it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from types import MappingProxyType
from typing import NamedTuple

from kdist.config.addresses import Listener, parse_listener
from kdist.zk.fields import Fields, to_json

FLUSHED_BYTES_MAX = 256 * 1024  # a quarter of what a znode may hold

_DEFAULT_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Endpoint(NamedTuple):
    """A listener as clients reach it, and its security protocol (PLAINTEXT, SSL, ...)."""

    listener: Listener
    protocol: str


class BrokerRegistration(NamedTuple):
    """The fields of a registration that kdist uses; `timestamp_ms` is when the broker started."""

    endpoints: tuple[Endpoint, ...]
    timestamp_ms: int
    rack: str | None = None
    host: str | None = None  # kdist's own: the machine
    disk: str | None = None  # kdist's own: the disk's id; None if an older kdist or Kafka wrote it
    content: str | None = None  # kdist's own: the content id, likewise
    flushed: Mapping[str, Set[int]] = MappingProxyType({})  # kdist's own; none, likewise

    def endpoint(self, listener_name: str) -> Endpoint | None:
        """Where the broker listens under this name."""
        return next((e for e in self.endpoints if e.listener.name == listener_name), None)

    @property
    def is_kdists(self) -> bool:
        """Whether kdist has registered it, and not Apache Kafka."""
        return (self.host, self.disk, self.content) != (None, None, None)

    def speaking(self, protocol: str) -> list[Listener]:
        """The listeners of a security protocol."""
        return [each.listener for each in self.endpoints if each.protocol == protocol]

    def encode(self) -> bytes:
        plain = next(iter(self.speaking("PLAINTEXT")), None)
        fields: dict[str, object] = {
            "features": {},
            "listener_security_protocol_map": {e.listener.name: e.protocol for e in self.endpoints},
            "endpoints": [str(e.listener) for e in self.endpoints],
            "jmx_port": -1,  # there is none
            "port": plain.port if plain else -1,
            "host": plain.host if plain else None,
            "version": 5,
            "timestamp": str(self.timestamp_ms),
        }
        if self.rack is not None:
            fields["rack"] = self.rack
        if self.host is not None:
            fields["kdist_host"] = self.host
        if self.disk is not None:
            fields["kdist_disk"] = self.disk
        if self.content is not None:
            fields["kdist_content"] = self.content
        flushed = {topic: sorted(numbers) for topic, numbers in self.flushed.items()}
        if flushed and len(to_json(flushed)) <= FLUSHED_BYTES_MAX:
            fields["kdist_flushed"] = flushed
        return to_json(fields)

    @classmethod
    def decode(cls, path: str, data: bytes) -> BrokerRegistration:
        fields = Fields(path, data)
        version = fields.version(5)
        return cls(
            endpoints=_old_endpoint(fields) if version == 1 else _endpoints(fields),
            timestamp_ms=fields.time_ms(),
            rack=fields.optional("rack", str),
            host=fields.optional("kdist_host", str),
            disk=fields.optional("kdist_disk", str),
            content=fields.optional("kdist_content", str),
            flushed=fields.integers_by_name("kdist_flushed"),
        )


def _old_endpoint(fields: Fields) -> tuple[Endpoint, ...]:
    host, port = fields.required("host", str), fields.required("port", int)
    if not 0 <= port <= 65535:
        fields.fail(f"'port' is {port}")
    return (Endpoint(Listener("PLAINTEXT", host, port), "PLAINTEXT"),)


def _endpoints(fields: Fields) -> tuple[Endpoint, ...]:
    protocols = fields.texts("listener_security_protocol_map")
    protocols = protocols or {name: name for name in _DEFAULT_PROTOCOLS}
    found = []
    for text in fields.required("endpoints", list):
        try:
            listener = parse_listener(str(text))
        except ValueError as error:
            fields.fail(f"'endpoints': {error}")
        if listener.name not in protocols:
            fields.fail(f"listener {listener.name} has no security protocol")
        found.append(Endpoint(listener, protocols[listener.name]))
    return tuple(found)
