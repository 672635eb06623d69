"""An address is `host:port`; where to connect needs both, where to listen only the port."""

from __future__ import annotations

import pytest

from kdist.config.addresses import HostPort, parse_host_port, unreachable


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("b1:9092", HostPort("b1", 9092)),
        ("[::1]:9092", HostPort("::1", 9092)),
        (":9292", HostPort("", 9292)),
        ("b1", None),
        ("b1:", None),
        ("b1:http", None),
        ("b1:65536", None),
        ("::1:9092", None),
        ("b1:9092,b2:9092", None),
        ("", None),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: HostPort | None) -> None:
    assert parse_host_port(text) == address


def test_to_connect_one_needs_a_host_and_a_port_above_0() -> None:
    assert unreachable("b1:9092, b2:9092,[::1]:1") == []
    assert unreachable("b1:9092,b2,:9092, b3:0,") == ["b2", ":9092", "b3:0", ""]
