"""SCRAM by the vectors of its RFCs, against another implementation, and against whoever cheats."""

from __future__ import annotations

import base64
import hmac

import pytest
import scramp  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from kdist.security.sasl import INVALID_CREDENTIALS, Authenticated, AuthenticationFailed
from kdist.security.scram import (
    HASHES,
    ITERATIONS_MIN,
    ScramClient,
    ScramCredential,
    ScramLogin,
    ScramServer,
    credential_of_salted,
    format_credential,
    new_credential,
    parse_credential,
    salt_from,
    salt_password,
)

SHA_256 = "SCRAM-SHA-256"
SECRET = b"the cluster's secret"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
# RFC 7677, section 3.
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

CREDENTIALS = {
    mechanism: {"user": new_credential(mechanism, "pencil", SALT)} for mechanism in HASHES
}
NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def server_of(mechanism: str = SHA_256, nonce: str = SERVER_NONCE) -> ScramServer:
    return ScramServer(mechanism, CREDENTIALS[mechanism].get, nonce, SECRET)


def client_of(
    mechanism: str = SHA_256, name: str = "user", password: str = "pencil"
) -> ScramClient:
    return ScramClient(ScramLogin(mechanism, name, password), CLIENT_NONCE)


def exchange(client: ScramClient, server: ScramServer) -> Authenticated | None:
    challenge: bytes | None = None
    authenticated = None
    while (message := client.respond(challenge)) is not None:
        challenge, authenticated = server.respond(message)
    return authenticated


def refusal_of(server: ScramServer, *messages: bytes) -> AuthenticationFailed:
    """How the server refuses the last message, when it has taken those before."""
    *taken, last = messages
    for each in taken:
        server.respond(each)
    with pytest.raises(AuthenticationFailed) as raised:
        server.respond(last)
    assert str(raised.value) == INVALID_CREDENTIALS
    return raised.value


def test_a_client_speaks_as_the_rfc() -> None:
    client = client_of()
    assert client.respond(None) == CLIENT_FIRST
    assert client.respond(SERVER_FIRST) == CLIENT_FINAL
    assert client.respond(SERVER_FINAL) is None


def test_a_server_speaks_as_the_rfc() -> None:
    server = server_of()
    assert server.respond(CLIENT_FIRST) == (SERVER_FIRST, None)
    assert server.respond(CLIENT_FINAL) == (SERVER_FINAL, Authenticated("user"))


@settings(max_examples=20)
@given(st.sampled_from(sorted(HASHES)), NAME, NAME)
def test_any_name_and_password_is_proved(mechanism: str, name: str, password: str) -> None:
    stored = {name: new_credential(mechanism, password, SALT)}
    server = ScramServer(mechanism, stored.get, SERVER_NONCE, SECRET)
    assert exchange(client_of(mechanism, name, password), server) == Authenticated(name)


@pytest.mark.parametrize("mechanism", HASHES)
def test_another_implementations_client_is_let_in(mechanism: str) -> None:
    server = server_of(mechanism)
    client = scramp.ScramClient([mechanism], "user", "pencil")
    challenge, _ = server.respond(client.get_client_first().encode())
    client.set_server_first(challenge.decode())
    verifier, authenticated = server.respond(client.get_client_final().encode())
    client.set_server_final(verifier.decode())
    assert authenticated == Authenticated("user")


@pytest.mark.parametrize("mechanism", HASHES)
def test_another_implementations_server_lets_in(mechanism: str) -> None:
    stored = CREDENTIALS[mechanism]["user"]
    server = scramp.ScramMechanism(mechanism).make_server(lambda _: stored)
    client = client_of(mechanism)
    server.set_client_first((client.respond(None) or b"").decode())
    server.set_client_final((client.respond(server.get_server_first().encode()) or b"").decode())
    assert client.respond(server.get_server_final().encode()) is None


def test_a_client_that_sends_its_nonce_twice_is_let_in() -> None:
    """As librdkafka before 2.6.1, which signs what it sends."""
    server = server_of()
    challenge, _ = server.respond(CLIENT_FIRST)
    keys = ScramLogin(SHA_256, "user", "pencil").keys(SALT, ITERATIONS_MIN)
    final = f"c=biws,r={2 * CLIENT_NONCE}{SERVER_NONCE}"
    signed = f"n=user,r={CLIENT_NONCE},{challenge.decode()},{final}".encode()
    assert server.respond(with_proof(final, keys, signed))[1] == Authenticated("user")


@pytest.mark.parametrize(
    "nonce",
    [
        CLIENT_NONCE,
        SERVER_NONCE,
        f"x{CLIENT_NONCE}{SERVER_NONCE}",
        f"{3 * CLIENT_NONCE}{SERVER_NONCE}",
        f"{CLIENT_NONCE}{SERVER_NONCE}x",
        "",
    ],
)
def test_no_other_nonce_is_taken(nonce: str) -> None:
    server = server_of()
    challenge, _ = server.respond(CLIENT_FIRST)
    final = f"c=biws,r={nonce}"
    signed = f"n=user,r={CLIENT_NONCE},{challenge.decode()},{final}".encode()
    keys = ScramLogin(SHA_256, "user", "pencil").keys(SALT, ITERATIONS_MIN)
    assert "nonce" in refusal_of(server, with_proof(final, keys, signed)).detail


def with_proof(final: str, keys: tuple[bytes, bytes, bytes], signed: bytes) -> bytes:
    signature = hmac.digest(keys[1], signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(keys[0], signature, strict=True))
    return f"{final},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize(("name", "password"), [("user", "pen"), ("nobody", "pencil")])
def test_an_unknown_name_fails_in_the_round_of_a_wrong_password(name: str, password: str) -> None:
    server, client = server_of(), client_of(name=name, password=password)
    challenge, authenticated = server.respond(client.respond(None) or b"")
    assert authenticated is None
    refused = refusal_of(server, client.respond(challenge) or b"")
    assert password not in refused.detail


def test_an_unknown_name_has_the_same_salt_on_each_broker_and_each_time() -> None:
    def salt_of(name: str, secret: bytes = SECRET) -> bytes:
        server = ScramServer(SHA_256, CREDENTIALS[SHA_256].get, "x", secret)
        challenge, _ = server.respond(f"n,,n={name},r=x".encode())
        return challenge.split(b",")[1]

    assert salt_of("nobody") == salt_of("nobody")
    assert salt_of("nobody") != salt_of("somebody")
    assert salt_of("nobody") != salt_of("nobody", b"another cluster's")


@given(st.binary(min_size=17, max_size=17))
def test_a_salt_has_the_form_of_those_of_kafkas_tools(random: bytes) -> None:
    salt = salt_from(random)
    assert int(salt or b"0", 36) == int.from_bytes(random, "big") >> 6
    assert len(salt) <= 26


@pytest.mark.parametrize(
    "weak",
    [
        new_credential(SHA_256, "pencil", SALT, ITERATIONS_MIN - 1),
        CREDENTIALS["SCRAM-SHA-512"]["user"],
    ],
)
def test_a_stored_credential_that_cannot_be_used_lets_nobody_in(weak: ScramCredential) -> None:
    server = ScramServer(SHA_256, {"user": weak}.get, SERVER_NONCE, SECRET)
    client = client_of()
    challenge, _ = server.respond(client.respond(None) or b"")
    assert "credential" in refusal_of(server, client.respond(challenge) or b"").detail


@pytest.mark.parametrize(
    "message",
    [
        *(CLIENT_FIRST[:size] for size in range(len("n,,n=user,r=") + 1)),
        b"y,,n=user,r=x",
        b"p=tls-unique,,n=user,r=x",
        b"n,a=admin,n=user,r=x",
        b"n,,m=x,n=user,r=x",
        b"n,,n=us=2Der,r=x",
        b"n,,n=us=2cer,r=x",
        b"n,,n=user=,r=x",
        b"n,,n=user,r=\x7f",
        b"n,,n=user,r=a b",
        b"n,,n=user,r=x,tokenauth=true",
        b"\xff",
    ],
)
def test_a_first_message_that_is_wrong_is_refused(message: bytes) -> None:
    refusal_of(server_of(), message)


@pytest.mark.parametrize("message", [b"n,a=user,n=user,r=x", b"n,,n=user,r=x,other=extension"])
def test_the_own_name_and_unknown_extensions_are_taken_in_the_first_message(
    message: bytes,
) -> None:
    assert server_of().respond(message)[0].startswith(b"r=x" + SERVER_NONCE.encode())


def test_a_header_with_the_own_name_is_bound_to_the_last_message() -> None:
    first = CLIENT_FIRST.replace(b"n,,", b"n,a=user,")
    refusal_of(server_of(), first, CLIENT_FINAL)


@pytest.mark.parametrize(
    "message",
    [
        *(CLIENT_FINAL[:size] for size in range(len(CLIENT_FINAL))),
        CLIENT_FINAL.replace(b"biws", b"eSws"),
        CLIENT_FINAL.replace(b"c=biws,", b""),
        CLIENT_FINAL.replace(b",p=", b",m=x,p="),
        CLIENT_FINAL.replace(b",p=", b",p=AA==,p="),
        CLIENT_FINAL.replace(b"p=d", b"p=e"),
        CLIENT_FINAL + b"AAAA",
        b"\xff",
    ],
)
def test_a_last_message_that_is_wrong_is_refused(message: bytes) -> None:
    refusal_of(server_of(), CLIENT_FIRST, message)


def test_a_recorded_proof_does_not_fit_another_exchange() -> None:
    server = server_of(nonce="another")
    refusal_of(server, CLIENT_FIRST, CLIENT_FINAL)


@pytest.mark.parametrize(
    "challenge",
    [
        SERVER_FIRST.replace(b"i=4096", b"i=4095"),
        SERVER_FIRST.replace(b"i=4096", b"i=2147483648"),
        SERVER_FIRST.replace(b"i=4096", b"i=-4096"),
        SERVER_FIRST.replace(b"i=4096", b"i=" + 5000 * b"9"),
        SERVER_FIRST.replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b""),
        SERVER_FIRST.replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b"?"),
        SERVER_FIRST.replace(SERVER_NONCE.encode(), b""),
        SERVER_FIRST.replace(b"r=r", b"r=x"),
        b"m=x," + SERVER_FIRST,
        b"e=other-error",
        b"",
        b"\xff",
    ],
)
def test_a_client_proves_nothing_to_a_server_that_cheats(challenge: bytes) -> None:
    client = client_of()
    client.respond(None)
    with pytest.raises(AuthenticationFailed):
        client.respond(challenge)


@pytest.mark.parametrize(
    "final", [b"", b"v=", b"v=AAAA", b"e=invalid-proof", SERVER_FINAL[:-4], SERVER_FIRST]
)
def test_a_server_that_does_not_know_the_password_is_left(final: bytes) -> None:
    client = client_of()
    client.respond(None)
    client.respond(SERVER_FIRST)
    with pytest.raises(AuthenticationFailed):
        client.respond(final)


def test_a_login_computes_its_keys_once_until_the_salt_changes() -> None:
    login = ScramLogin(SHA_256, "user", "pencil")
    keys = login.keys(SALT, ITERATIONS_MIN)
    assert login.keys(SALT, ITERATIONS_MIN) is keys
    assert login.keys(b"other", ITERATIONS_MIN) != keys


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_credential_survives_its_text(mechanism: str) -> None:
    credential = CREDENTIALS[mechanism]["user"]
    assert parse_credential(format_credential(credential)) == credential
    salted = salt_password(mechanism, "pencil", SALT, ITERATIONS_MIN)
    assert credential_of_salted(mechanism, salted, SALT, ITERATIONS_MIN) == credential


def test_a_credential_reads_in_any_order_and_is_split_at_the_first_equal_sign() -> None:
    text = format_credential(CREDENTIALS[SHA_256]["user"])
    backwards = ",".join(reversed(text.split(",")))
    assert parse_credential(backwards) == CREDENTIALS[SHA_256]["user"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "salt=,stored_key=AA==,server_key=AA==,iterations=4096",
        "salt=AA==,stored_key=AA==,server_key=AA==,iterations=x",
        "salt=AA==,stored_key=AA==,server_key=AA==,iterations=0",
        "salt=AA==,stored_key=AA==,server_key=AAA=,iterations=4096",
        "salt=AA==,stored_key=AA==,server_key=?,iterations=4096",
        "salt=AA==,stored_key=AA==,server_key=AA==",
        "salt=AA==,stored_key=AA==,server_key=AA==,iterations=4096,x=1",
    ],
)
def test_a_credential_that_is_not_whole_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_credential(text)


def test_keys_are_not_shown() -> None:
    credential = CREDENTIALS[SHA_256]["user"]
    keys = ScramLogin(SHA_256, "user", "pencil").keys(SALT, ITERATIONS_MIN)
    for secret in (*credential[:3], *keys):
        assert repr(secret)[2:-1] not in f"{credential!r} {keys!r}"


@given(st.lists(st.binary(max_size=100), max_size=3))
def test_any_bytes_are_refused_or_answered(messages: list[bytes]) -> None:
    server = server_of()
    for each in messages:
        try:
            assert server.respond(each)[1] is None
        except AuthenticationFailed:
            break
