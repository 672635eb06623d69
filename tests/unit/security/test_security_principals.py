"""Texts of principals and addresses."""

from __future__ import annotations

import pytest

from kdist.model import Principal
from kdist.security.principals import (
    format_principal,
    host_text,
    parse_principal,
    parse_super_users,
)


@pytest.mark.parametrize("name", ["alice", "", "CN=a,O=b", "a:b", "*"])
def test_a_principal_is_read_as_it_was_written(name: str) -> None:
    principal = Principal("User", name)
    assert parse_principal(format_principal(principal)) == principal


@pytest.mark.parametrize("text", ["alice", "", ":alice"])
def test_a_text_without_a_kind_is_no_principal(text: str) -> None:
    with pytest.raises(ValueError, match="not a principal"):
        parse_principal(text)


def test_super_users_are_between_semicolons_since_names_of_certificates_have_commas() -> None:
    found = parse_super_users(" User:CN=b1,O=x ;User:admin; ")
    assert found == {Principal("User", "CN=b1,O=x"), Principal("User", "admin")}


@pytest.mark.parametrize("text", ["", " ", ";"])
def test_there_may_be_no_super_user(text: str) -> None:
    assert parse_super_users(text) == frozenset()


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::FFFF:a00:1", "10.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("0:0:0:0:0:0:0:1", "0:0:0:0:0:0:0:1"),
        ("2001:0DB8::00ff", "2001:db8:0:0:0:0:0:ff"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("*", "*"),
        ("host.example", "host.example"),
        ("010.0.0.1", "010.0.0.1"),
    ],
)
def test_an_address_is_written_as_java_does(address: str, text: str) -> None:
    assert host_text(address) == text
