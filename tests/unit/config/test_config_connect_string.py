"""`zookeeper.connect`: what is accepted, and how paths go through the chroot and back."""

from __future__ import annotations

import pytest

from kdist.config.connect_string import ConnectString
from kdist.errors import UserError


@pytest.mark.parametrize(
    ("text", "servers", "chroot"),
    [
        ("host1", ("host1:2181",), ""),
        ("host1:2182/", ("host1:2182",), ""),
        ("host1, host2:2182/kdist", ("host1:2181", "host2:2182"), "/kdist"),
        ("[::1]:2181,[::2]/a/b/", ("[::1]:2181", "[::2]:2181"), "/a/b"),
    ],
)
def test_servers_and_chroot_are_found(text: str, servers: tuple[str, ...], chroot: str) -> None:
    assert ConnectString.parse(text) == ConnectString(servers, chroot)


@pytest.mark.parametrize(
    "text",
    ["", "/kdist", "host1,", "host1:", "host1:0", "host1:65536", "host1:x", "host1//a", "::1:2181",
     "a..b:1", "host1/a/../b", "host1/.", "zk1:2181/kafka,zk2:2181/kafka", "zk1/a,zk2"],
)  # fmt: skip
def test_an_invalid_connect_string_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"zookeeper\.connect"):
        ConnectString.parse(text)


@pytest.mark.parametrize(
    ("chroot", "own", "full"),
    [
        ("", "/", "/"),
        ("", "/a/b", "/a/b"),
        ("/kdist", "/", "/kdist"),
        ("/kdist", "/a/b", "/kdist/a/b"),
    ],
)
def test_paths_go_through_the_chroot_and_back(chroot: str, own: str, full: str) -> None:
    connect = ConnectString(("host1:2181",), chroot)
    assert connect.full(own) == full
    assert connect.own(full) == own
    assert connect.shown(full) == own


def test_a_path_above_the_chroot_is_shown_in_full() -> None:
    assert ConnectString(("host1:2181",), "/a/b").shown("/a") == "/a"
    assert ConnectString(("host1:2181",), "/a").shown("/ab") == "/ab"


def test_the_text_of_a_connect_string_can_be_parsed_again() -> None:
    text = "host1:2181,host2:2182/kdist"
    assert str(ConnectString.parse(text)) == text
