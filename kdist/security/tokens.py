"""Whose a signed token (JWT) is: the rules by which a broker believes one, and the keys (pure).

Needs the extra `security`. Only signatures by a private key count: a token that chooses another
algorithm, or brings or names its own key, is refused before anything of it is computed. A key is
found by its id in the set that the issuer publishes (JWKS), and must be of the algorithm's type.

Sources: RFC 7515, 7517, 7519, 8725; the claims are those that Kafka's validator asks for, and
issuer and audience, without which any token of the issuer's would do.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jwt import InvalidTokenError
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.api_jws import PyJWS
from jwt.exceptions import InvalidKeyError

from kdist.security.sasl import Authenticated, AuthenticationFailed, shown

TOKEN_BYTES_MAX = 16 << 10
KEYS_BYTES_MAX = 1 << 20
KEY_ID_BYTES_MAX = 1000
SECONDS_MAX = 253_402_300_799  # the end of the year 9999
RSA_BITS_MIN = 2048

# Each algorithm's type of key, and curve.
ALGORITHMS: dict[str, tuple[str, str | None]] = {
    **{f"{family}{size}": ("RSA", None) for family in ("RS", "PS") for size in (256, 384, 512)},
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
_READERS: dict[str, Any] = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}
_HEADERS_REFUSED = ("jwk", "jku", "x5u", "x5c", "crit", "b64", "zip", "enc")

_HALVES = re.compile("[\ud800-\udfff]")

_SIGNATURES = PyJWS(algorithms=list(ALGORITHMS))


class KeyName(NamedTuple):
    """By what a key is found: its id, type and curve."""

    id: str
    type: str
    curve: str | None


Keys = Mapping[KeyName, Any]


class UnknownKey(AuthenticationFailed):
    """The token names a key that is not among the known ones: perhaps the issuer has a new one."""

    def __init__(self, key_id: str) -> None:
        super().__init__("the token's key is not known", f"unknown key {key_id[:100]!r}")
        self.key_id = key_id


class TokenRules(NamedTuple):
    """What a token must say. `reserved` are names that no token may claim, such as brokers'."""

    issuer: str
    audiences: frozenset[str]
    reserved: frozenset[str] = frozenset()
    skew_s: float = 30
    subject_claim: str = "sub"
    scope_claim: str = "scope"


def read_keys(text: bytes) -> Keys:
    """The keys of a JWKS that a token may be signed by; `ValueError` if there is none.

    Those without an id, for encryption, too short, or of another type are left out: an issuer may
    publish them beside the others.
    """
    if len(text) > KEYS_BYTES_MAX:
        raise ValueError(f"a set of keys has more than {KEYS_BYTES_MAX} bytes")
    entries = _read_json(text).get("keys")
    if not isinstance(entries, list):
        raise ValueError("a set of keys has no list of keys")
    keys = dict(_usable_keys(entries))
    if not keys:
        raise ValueError("a set of keys has none with an id and of a type that can be used")
    return keys


def _usable_keys(entries: list[Any]) -> Iterator[tuple[KeyName, Any]]:
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or "d" in entry:
            continue
        kind = entry.get("kty", "")
        name = KeyName(entry.get("kid", ""), kind, None if kind == "RSA" else entry.get("crv"))
        reader = _READERS.get(name.type) if isinstance(name.type, str) else None
        if reader is None or not isinstance(name.id, str) or not name.id:
            continue
        try:
            key = reader.from_jwk(entry)
        except (InvalidKeyError, ValueError, TypeError, KeyError):
            continue
        if name.type != "RSA" or key.key_size >= RSA_BITS_MIN:
            yield name, key


def validate(token: str, rules: TokenRules, keys: Keys, now_ms: float) -> Authenticated:
    """Whose the token is and when it ends.

    `UnknownKey` if its key is not among `keys`; `AuthenticationFailed` if it is no good.
    """
    if len(token) > TOKEN_BYTES_MAX:
        raise _refused(f"has more than {TOKEN_BYTES_MAX} bytes")
    header = _read_header(token)
    algorithm, key_id = header.get("alg", ""), header.get("kid", "")
    if algorithm not in ALGORITHMS:
        raise _refused(f"is signed by {algorithm[:20]!r}, which is not allowed")
    if not key_id or len(key_id.encode()) > KEY_ID_BYTES_MAX:
        raise _refused("has no key id, or one that is too long")
    key = keys.get(KeyName(key_id, *ALGORITHMS[algorithm]))
    if key is None:
        raise UnknownKey(key_id)
    try:
        payload = _SIGNATURES.decode(token, key, algorithms=[algorithm])
    except InvalidTokenError:
        raise _refused("has a wrong signature") from None
    try:
        claims = _read_json(payload)
    except ValueError as error:
        raise _refused(f"cannot be read: {error}") from None
    return _check_claims(claims, rules, now_ms / 1000)


def _read_header(token: str) -> dict[str, str]:
    first, *others = token.split(".")
    if len(others) != 2:
        raise _refused("has not three parts")
    try:
        header = _read_json(base64.b64decode(first + "=" * (-len(first) % 4), b"-_", validate=True))
    except (ValueError, binascii.Error):
        raise _refused("has a header that cannot be read") from None
    for name, value in header.items():
        if name in _HEADERS_REFUSED or not _is_text(value):
            raise _refused(f"has a header {name[:20]!r}, which is not allowed")
    return header


def _check_claims(claims: dict[str, Any], rules: TokenRules, now_s: float) -> Authenticated:
    expires_s, issued_s = _seconds(claims, "exp"), _seconds(claims, "iat")
    starts_s = _seconds(claims, "nbf") if "nbf" in claims else issued_s
    name = claims.get(rules.subject_claim)
    faults = {
        "has expired": now_s >= expires_s + rules.skew_s,
        "is not valid yet": now_s < max(issued_s, starts_s) - rules.skew_s,
        "is another issuer's": claims.get("iss") != rules.issuer,
        "is not for this audience": rules.audiences.isdisjoint(_texts(claims.get("aud")) or ()),
        f"has no {rules.subject_claim}": not _is_text(name) or not name,
        "has no valid scope": _texts(claims.get(rules.scope_claim, "")) is None,
    }
    for fault, is_so in faults.items():
        if is_so:
            raise _refused(fault)
    assert isinstance(name, str), "checked above"
    if name in rules.reserved:
        raise _refused(f"claims a reserved name: {shown(name)}")
    return Authenticated(name, int(expires_s * 1000))


def _is_text(value: Any) -> bool:
    """Whether it is a text that can be written down: JSON may have halves of characters."""
    return isinstance(value, str) and _HALVES.search(value) is None


def _texts(value: Any) -> list[str] | None:
    """A claim that is a text or a list of them; None if it is neither."""
    texts = [value] if isinstance(value, str) else value
    is_list = isinstance(texts, list) and all(isinstance(each, str) for each in texts)
    return texts if is_list else None


def _seconds(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(f"has no {name}")
    if not 0 <= value <= SECONDS_MAX:
        raise _refused(f"has an {name} that is no time")
    return value


def _read_json(text: bytes) -> dict[str, Any]:
    """A JSON object; `ValueError` for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _refused(why: str) -> AuthenticationFailed:
    return AuthenticationFailed(f"the token {why}")
