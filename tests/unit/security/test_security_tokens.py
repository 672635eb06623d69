"""A token is believed by rules that it cannot choose."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from kdist.security.sasl import Authenticated, AuthenticationFailed
from kdist.security.tokens import (
    KEYS_BYTES_MAX,
    TOKEN_BYTES_MAX,
    Keys,
    TokenRules,
    UnknownKey,
    read_keys,
    validate,
)

NOW_S = 1_000_000
RULES = TokenRules("https://issuer", frozenset({"kdist", "other"}), frozenset({"broker"}))
CLAIMS = {"iss": "https://issuer", "aud": "kdist", "sub": "alice", "iat": NOW_S, "exp": NOW_S + 60}
HEADER = {"kid": "1"}

RSA_KEY = rsa.generate_private_key(65537, 2048)
PRIVATE: dict[str, Any] = {
    "RS256": RSA_KEY,
    "PS512": RSA_KEY,
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}


def public(algorithm: str, **fields: Any) -> dict[str, Any]:
    """The JWK of this algorithm's key."""
    reader: Any = jwt.get_algorithm_by_name(algorithm)
    return {"kid": "1", **reader.to_jwk(PRIVATE[algorithm].public_key(), as_dict=True), **fields}


def keys_of(*entries: object) -> Keys:
    return read_keys(json.dumps({"keys": entries}).encode())


KEYS = keys_of(*map(public, PRIVATE))


def signed(
    claims: dict[str, Any], algorithm: str = "RS256", headers: dict[str, Any] | None = None
) -> str:
    return jwt.encode(claims, PRIVATE[algorithm], algorithm, {**HEADER, **(headers or {})})


def refusal_of(token: str, keys: Keys = KEYS, now_s: float = NOW_S) -> AuthenticationFailed:
    with pytest.raises(AuthenticationFailed) as raised:
        validate(token, RULES, keys, 1000 * now_s)
    assert token not in f"{raised.value} {raised.value.detail}"
    return raised.value


@pytest.mark.parametrize("algorithm", PRIVATE)
def test_a_token_is_believed_until_it_ends(algorithm: str) -> None:
    proved = validate(signed(CLAIMS, algorithm), RULES, KEYS, 1000 * NOW_S)
    assert proved == Authenticated("alice", 1000 * (NOW_S + 60))


@pytest.mark.parametrize(
    "more",
    [
        {"aud": ["mine", "other"]},
        {"scope": "read write"},
        {"scope": ["read", "write"]},
        {"scope": []},
        {"nbf": NOW_S + 29},
        {"iat": NOW_S + 29},
        {"exp": NOW_S - 29},
        {"exp": NOW_S + 0.5},
    ],
)
def test_a_token_may_say_more_and_clocks_differ_by_the_skew(more: dict[str, Any]) -> None:
    assert validate(signed(CLAIMS | more), RULES, KEYS, 1000 * NOW_S).name == "alice"


@pytest.mark.parametrize(
    "wrong",
    [
        {"iss": "https://other"},
        {"iss": None},
        {"aud": "mine"},
        {"aud": []},
        {"aud": None},
        {"aud": [1]},
        {"sub": ""},
        {"sub": 7},
        {"sub": "\ud800"},
        {"sub": "broker"},
        {"exp": NOW_S - 30},
        {"exp": None},
        {"exp": True},
        {"exp": "60"},
        {"exp": 10**12},
        {"exp": 10**400},
        {"exp": -1},
        {"iat": None},
        {"iat": NOW_S + 31},
        {"nbf": NOW_S + 31},
        {"nbf": "x"},
        {"scope": 7},
        {"scope": None},
    ],
)
def test_a_claim_that_is_wrong_is_refused(wrong: dict[str, Any]) -> None:
    token = jwt.api_jws.encode(json.dumps(CLAIMS | wrong).encode(), RSA_KEY, "RS256", HEADER)
    refusal_of(token)


@pytest.mark.parametrize("claim", CLAIMS)
def test_no_claim_may_be_missing(claim: str) -> None:
    refusal_of(signed({name: value for name, value in CLAIMS.items() if name != claim}))


@pytest.mark.parametrize("text", [b"", b"[]", b"\xff", b"NaN", b"[" * 9000, b'{"exp": Infinity}'])
def test_a_payload_that_is_no_object_is_refused(text: bytes) -> None:
    refusal_of(jwt.api_jws.encode(text, RSA_KEY, "RS256", HEADER))


def test_an_unsigned_token_is_refused() -> None:
    refusal_of(jwt.encode(CLAIMS, None, "none", HEADER))


def test_a_public_key_is_not_taken_as_a_shared_secret() -> None:
    head, _, _ = signed(CLAIMS).rpartition(".")
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"1"}').decode().rstrip("=")
    refusal_of(f"{header}.{head.split('.')[1]}.AAAA")


@pytest.mark.parametrize("name", ["jwk", "jku", "x5u", "x5c", "crit", "b64", "zip", "other"])
def test_a_header_that_brings_a_key_or_asks_for_more_is_refused(name: str) -> None:
    value = {"other": 1}.get(name, "x")
    header = base64.urlsafe_b64encode(json.dumps({"alg": "RS256", name: value}).encode()).decode()
    assert repr(name) in str(refusal_of(f"{header}.{signed(CLAIMS).partition('.')[2]}"))


def test_a_token_of_another_key_is_refused() -> None:
    other = rsa.generate_private_key(65537, 2048)
    refusal_of(jwt.encode(CLAIMS, other, "RS256", HEADER))


def test_a_key_fits_its_own_type_only() -> None:
    rsa_only = keys_of(public("RS256"))
    with pytest.raises(UnknownKey):
        validate(signed(CLAIMS, "ES256"), RULES, rsa_only, 1000 * NOW_S)
    with pytest.raises(UnknownKey):
        validate(signed(CLAIMS, "ES384"), RULES, keys_of(public("ES256")), 1000 * NOW_S)


def test_a_key_that_is_not_known_is_told_apart() -> None:
    unknown = refusal_of(signed(CLAIMS, headers={"kid": "2"}))
    assert isinstance(unknown, UnknownKey)
    assert unknown.key_id == "2"


@pytest.mark.parametrize("key_id", ["", "x" * 1001, "\ud800"])
def test_a_key_id_that_is_missing_or_too_long_is_not_looked_up(key_id: str) -> None:
    head = base64.urlsafe_b64encode(json.dumps({"alg": "RS256", "kid": key_id}).encode()).decode()
    token = f"{head.rstrip('=')}.{signed(CLAIMS).partition('.')[2]}"
    assert not isinstance(refusal_of(token), UnknownKey)


def test_a_token_that_is_too_long_is_not_read() -> None:
    refusal_of(signed(CLAIMS | {"more": "x" * TOKEN_BYTES_MAX}))


def test_a_changed_token_is_refused() -> None:
    token = signed(CLAIMS)
    cut = [token[:size] for size in range(len(token))]
    flips = ((at, "B" if token[at] == "A" else "A") for at in range(0, len(token) - 1, 7))
    for changed in (*cut, *(token[:at] + other + token[at + 1 :] for at, other in flips)):
        with pytest.raises(AuthenticationFailed):
            validate(changed, RULES, KEYS, 1000 * NOW_S)


@given(st.text(max_size=200))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(AuthenticationFailed):
        validate(text, RULES, KEYS, 1000 * NOW_S)


@pytest.mark.parametrize(
    "entry",
    [
        {"kty": "oct", "k": "AAAA", "kid": "1"},
        public("RS256", use="enc"),
        public("RS256", kid=None),
        public("RS256", kid=["1"]),
        public("RS256", n="?"),
        public("RS256", d="AAAA"),
        public("ES256", crv=["P-256"]),
        {"kid": "1", "kty": ["RSA"]},
        "text",
    ],
)
def test_a_key_that_cannot_be_used_is_left_out(entry: object) -> None:
    assert keys_of(entry, public("ES384")) == keys_of(public("ES384"))


@pytest.mark.parametrize("curve", ["P-256", 7, [], {}])
def test_a_curve_says_nothing_of_an_rsa_key(curve: object) -> None:
    keys = keys_of(public("RS256", crv=curve))
    assert validate(signed(CLAIMS), RULES, keys, 1000 * NOW_S).name == "alice"


def test_a_short_rsa_key_is_left_out() -> None:
    short = rsa.generate_private_key(65537, 1024).public_key()
    entry = jwt.algorithms.RSAAlgorithm.to_jwk(short, as_dict=True)
    with pytest.raises(ValueError, match="none"):
        keys_of({**entry, "kid": "1"})


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"keys":{}}', b'{"keys":[]}', b" " * (KEYS_BYTES_MAX + 1)]
)
def test_a_set_without_keys_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"set of keys|JSON"):
        read_keys(text)
