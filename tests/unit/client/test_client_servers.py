"""Bootstrap servers may be given in several forms, the same for every client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kdist.client.admin.asynchronous import AsyncAdmin
from kdist.client.cluster import Address
from kdist.client.consumer import settings as consuming
from kdist.client.discovery import given_brokers
from kdist.client.producer import settings as producing
from kdist.errors import UserError


def _consumer(given: Any) -> object:
    return consuming.read_settings({"bootstrap_servers": given}).bootstrap_servers


def _producer(given: Any) -> object:
    return producing.read_settings({"bootstrap_servers": given}).plain.bootstrap_servers


def _admin(given: Any) -> object:
    return AsyncAdmin(given).settings.bootstrap_servers


_CLIENTS = pytest.mark.parametrize("read", [_consumer, _producer, _admin])


@_CLIENTS
def test_brokers_are_text_or_a_list(read: Callable[[Any], Any]) -> None:
    for given in ("a:1,b:2", " a:1, b:2,", ["a:1", "b:2"], ("a:1,b:2",), iter(["a:1", "b:2"])):
        found = read(given)
        assert found == ("a:1", "b:2")
        assert given_brokers(found, "") == (Address("a", 1), Address("b", 2))


@_CLIENTS
@pytest.mark.parametrize("given", [7, b"a:1", [1], {"a:1": 1}, ["a:1", None], [["a:1"]]])
def test_any_other_type_is_refused(read: Callable[[Any], object], given: Any) -> None:
    with pytest.raises(UserError, match=r"bootstrap_servers is .*, and must be host:port"):
        read(given)


@_CLIENTS
@pytest.mark.parametrize("given", [None, "", " , ", []])
def test_missing_brokers_are_an_error(read: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(UserError, match="say where the brokers are"):
        given_brokers(read(given), "")


@_CLIENTS
@pytest.mark.parametrize("given", ["a", "a:0", "a:b", "a:1:2", "a:1 b:2"])
def test_an_invalid_address_is_refused(read: Callable[[Any], Any], given: str) -> None:
    with pytest.raises(UserError, match="give host:port"):
        given_brokers(read(given), "")
