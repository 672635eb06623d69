"""PLAIN and OAUTHBEARER: both sides agree, and whatever is wrong is refused in one way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.security.sasl import (
    INVALID_CREDENTIALS,
    Authenticated,
    AuthenticationFailed,
    OAuthClient,
    OAuthServer,
    PlainClient,
    PlainServer,
    decode_name,
    encode_name,
)

PASSWORDS = {"alice": "secret", "empty": ""}
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
REFUSED = b'{"status":"invalid_token"}'
FIRST = b"n,,\x01auth=Bearer good\x01\x01"


def validate(token: str) -> Authenticated:
    if token != "good":
        raise AuthenticationFailed("no good", "the token has expired")
    return Authenticated("alice", 1000)


@given(TEXT, TEXT)
def test_plain_proves_any_name_and_password(name: str, password: str) -> None:
    client = PlainClient(name, password)
    message = client.respond(None)
    assert message is not None
    answer = PlainServer({name: password}.get).respond(message)
    assert answer == (b"", Authenticated(name))
    assert client.respond(b"") is None


@pytest.mark.parametrize(
    "message",
    [
        b"\0alice\0wrong",
        b"\0nobody\0secret",
        b"\0nobody\0",
        b"\0alice\0",
        b"\0empty\0",
        b"\0\0",
        b"\0\0secret",
        b"bob\0alice\0secret",
        b"alice\0secret",
        b"\0alice\0secret\0",
        b"",
        b"\0alice\0\xff",
    ],
)
def test_plain_refuses_all_that_is_wrong_in_the_same_words(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed) as raised:
        PlainServer(PASSWORDS.get).respond(message)
    assert str(raised.value) == INVALID_CREDENTIALS
    assert "secret" not in raised.value.detail


def test_plain_takes_the_own_name_as_authorization_id() -> None:
    answer = PlainServer(PASSWORDS.get).respond(b"alice\0alice\0secret")
    assert answer == (b"", Authenticated("alice"))


def test_a_claimed_name_is_cut_and_quoted_for_the_log() -> None:
    with pytest.raises(AuthenticationFailed) as raised:
        PlainServer(PASSWORDS.get).respond(b"\0a\nb" + 5000 * b"c" + b"\0secret")
    assert "\n" not in raised.value.detail
    assert len(raised.value.detail) < 150


def test_a_plain_client_takes_no_challenge() -> None:
    client = PlainClient("alice", "secret")
    client.respond(None)
    with pytest.raises(AuthenticationFailed):
        client.respond(b"more")


@given(st.text())
def test_a_name_with_commas_and_equal_signs_survives_its_encoding(name: str) -> None:
    assert "," not in encode_name(name)
    assert decode_name(encode_name(name)) == name


def test_a_token_proves_its_user_until_it_ends() -> None:
    client = OAuthClient("good", {"logicalCluster": "lkc-1"})
    message = client.respond(None)
    assert message == b"n,,\x01auth=Bearer good\x01logicalCluster=lkc-1\x01\x01"
    assert OAuthServer(validate).respond(message) == (b"", Authenticated("alice", 1000))
    assert client.respond(b"") is None


@pytest.mark.parametrize(
    "message", [FIRST, FIRST.replace(b"Bearer", b"bEARER"), FIRST.replace(b"n,,", b"n,a=alice,")]
)
def test_a_token_is_taken_in_each_form_of_the_first_message(message: bytes) -> None:
    assert OAuthServer(validate).respond(message) == (b"", Authenticated("alice", 1000))


def test_a_refused_token_is_an_error_once_the_client_has_confirmed() -> None:
    client, server = OAuthClient("bad"), OAuthServer(validate)
    message = client.respond(None)
    assert message is not None
    assert server.respond(message) == (REFUSED, None)
    assert client.respond(REFUSED) == b"\x01"
    with pytest.raises(AuthenticationFailed) as raised:
        server.respond(b"\x01")
    assert str(raised.value) == REFUSED.decode()
    assert raised.value.detail == "the token has expired"
    with pytest.raises(AuthenticationFailed, match="invalid_token"):
        client.respond(b"")


def test_one_more_token_is_taken_in_place_of_the_confirmation() -> None:
    server = OAuthServer(validate)
    assert server.respond(FIRST.replace(b"good", b"bad")) == (REFUSED, None)
    assert server.respond(FIRST) == (b"", Authenticated("alice", 1000))


def test_a_third_token_is_not_looked_at() -> None:
    server = OAuthServer(validate)
    for _ in range(2):
        assert server.respond(FIRST.replace(b"good", b"bad")) == (REFUSED, None)
    with pytest.raises(AuthenticationFailed):
        server.respond(FIRST)


@pytest.mark.parametrize(
    "message",
    [
        *(FIRST[:size] for size in range(len(FIRST))),
        FIRST + b"\x01",
        b"y,,\x01auth=Bearer good\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer good\x01\x01",
        b"n,a=bob,\x01auth=Bearer good\x01\x01",
        b"n,b=alice,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Basic good\x01\x01",
        b"n,,\x01auth=Bearer good\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Bearer go od\x01\x01",
        b"n,,\x01auth=Bearer good\x011=x\x01\x01",
        b"n,,\x01auth=Bearer good\x01x=\xc3\xa4\x01\x01",
        b"n,,\x01\x01",
        b"\xff",
    ],
)
def test_a_message_that_is_not_oauthbearers_is_refused(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        OAuthServer(validate).respond(message)


@pytest.mark.parametrize(
    ("token", "extensions"),
    [("a b", {}), ("", {}), ("good\n", {}), ("good", {"auth": "x"}), ("good", {"x": "\x01"})],
)
def test_a_client_sends_no_token_or_extension_that_ends_its_message_early(
    token: str, extensions: dict[str, str]
) -> None:
    with pytest.raises(AuthenticationFailed):
        OAuthClient(token, extensions)
