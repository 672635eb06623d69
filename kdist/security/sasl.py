"""SASL: exchanges of messages by which a client proves who it is; PLAIN and OAUTHBEARER (pure).

An exchange is one side of one authentication and never begins again. Both mechanisms are one
message of the client's; a server answers a token that it refuses with a message of its own first.
Names are compared as they are: neither Kafka nor this code normalises Unicode.

Sources: RFC 4616 (PLAIN), RFC 7628 (OAUTHBEARER), RFC 5801 (the header before both a token and
SCRAM's first message).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"

INVALID_CREDENTIALS = "Authentication failed: invalid credentials"
"""What a peer is told of an unknown name, a wrong password and a malformed message alike."""

_SHOWN_MAX = 100  # characters of a claimed name in a log line
_SEPARATOR = "\x01"
_FAILED_TOKEN = '{"status":"invalid_token"}'
_FIELD_NAME = re.compile(r"[A-Za-z]+\Z")
_FIELD_VALUE = re.compile(r"[\x20-\x7e\t\r\n]+\Z")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+\Z")


class AuthenticationFailed(Exception):
    """An exchange has failed. Its text may be told to the peer; `detail` is for the log.

    Neither holds a secret; a name that a peer claimed is cut and quoted.
    """

    def __init__(self, told: str, detail: str = "") -> None:
        super().__init__(told)
        self.detail = detail or told


class Authenticated(NamedTuple):
    """The user whom an exchange has proved, and when the proof ends, in unix time, if it does."""

    name: str
    expires_ms: int | None = None


class ServerExchange(Protocol):
    """The server's side of one authentication."""

    def respond(self, message: bytes) -> tuple[bytes, Authenticated | None]:
        """The answer to the client's next message, and who it is once that is proved.

        `AuthenticationFailed` ends the exchange.
        """
        ...


class ClientExchange(Protocol):
    """The client's side of one authentication."""

    def respond(self, challenge: bytes | None) -> bytes | None:
        """The next message: the first for None, and None at the end, when the server is verified.

        `AuthenticationFailed` ends the exchange.
        """
        ...


def shown(name: str) -> str:
    """A claimed name for a log line: cut, and quoted so that it cannot look like another line."""
    return f"user {name[:_SHOWN_MAX]!r}" + "…" * (len(name) > _SHOWN_MAX)


def refusal(detail: str) -> AuthenticationFailed:
    """The one refusal for whatever is wrong with what a client sends."""
    return AuthenticationFailed(INVALID_CREDENTIALS, detail)


class PlainServer:
    """Takes a name and a password in clear. `password_of` a name that is unknown is None."""

    def __init__(self, password_of: Callable[[str], str | None]) -> None:
        self._password_of = password_of

    def respond(self, message: bytes) -> tuple[bytes, Authenticated | None]:
        parts = decoded(message).split("\0")
        if len(parts) != 3:
            raise refusal(f"{len(parts)} parts where PLAIN has 3")
        authorization_id, name, password = parts
        known = self._password_of(name) if name else None
        # Digests, so that time tells neither the password's length nor whether the name is known.
        is_right = hmac.compare_digest(_digest(password), _digest(known or ""))
        if not (is_right and known):
            raise refusal(f"{shown(name)}: {'wrong password' if known else 'unknown'}")
        check_authorization_id(authorization_id, name)
        return b"", Authenticated(name)


class PlainClient:
    """Sends a name and a password in clear: for connections that are encrypted."""

    def __init__(self, name: str, password: str) -> None:
        self._message = f"\0{name}\0{password}".encode()

    def respond(self, challenge: bytes | None) -> bytes | None:
        if challenge:
            raise AuthenticationFailed("the server answered PLAIN with a challenge")
        return self._message if challenge is None else None


class OAuthServer:
    """Takes a bearer token. `validate` says whose it is; `AuthenticationFailed` if it is no good.

    A refused token is answered with a JSON text and not yet with an error, which follows when the
    client confirms. In place of that, one more token is taken, as by Kafka.
    """

    def __init__(self, validate: Callable[[str], Authenticated]) -> None:
        self._validate = validate
        self._faults: list[str] = []

    def respond(self, message: bytes) -> tuple[bytes, Authenticated | None]:
        if self._faults and (message == _SEPARATOR.encode() or len(self._faults) > 1):
            raise AuthenticationFailed(_FAILED_TOKEN, "; ".join(self._faults))
        authorization_id, token = _read_token(decoded(message))
        try:
            authenticated = self._validate(token)
        except AuthenticationFailed as error:
            self._faults.append(error.detail)
            return _FAILED_TOKEN.encode(), None
        check_authorization_id(authorization_id, authenticated.name)
        return b"", authenticated


class OAuthClient:
    """Sends a bearer token, with extensions that some servers ask for."""

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        if not _TOKEN.match(token):
            raise AuthenticationFailed("the token has a character that no token may have")
        pairs = {"auth": f"Bearer {token}"}
        for name, value in (extensions or {}).items():
            if not _is_field(name, value) or name in pairs:
                raise AuthenticationFailed(f"{name!r} cannot be an extension of OAUTHBEARER")
            pairs[name] = value
        fields = "".join(f"{name}={value}{_SEPARATOR}" for name, value in pairs.items())
        self._message = f"n,,{_SEPARATOR}{fields}{_SEPARATOR}".encode()
        self._error: str | None = None

    def respond(self, challenge: bytes | None) -> bytes | None:
        if challenge is None:
            return self._message
        if self._error is not None:
            raise AuthenticationFailed(f"the token was refused: {self._error}")
        if challenge:
            self._error = shown_error(challenge)
            return _SEPARATOR.encode()
        return None


def decoded(message: bytes) -> str:
    """A message's text; `AuthenticationFailed` if it is not valid UTF-8."""
    try:
        return bytes(message).decode()
    except UnicodeDecodeError:
        raise refusal("a message that is not valid UTF-8") from None


def shown_error(challenge: bytes) -> str:
    """What a server said of a failure, for people: printable, and cut."""
    text = challenge.decode(errors="replace")[:1000]
    return "".join(each if each.isprintable() else "?" for each in text)


def read_gs2_header(text: str) -> tuple[str, str, str]:
    """A header `n,[a=name],`: the header, the authorization id in it or "", and what follows it.

    Channel binding (`p=`, or `y`: the client believes that the server has none) is refused.
    """
    flag, _, rest = text.partition(",")
    authorization_id, comma, message = rest.partition(",")
    if flag != "n" or not comma or not (not authorization_id or authorization_id[:2] == "a="):
        raise refusal("a header that is not n,[a=name],")
    header = text[: len(text) - len(message)]
    return header, decode_name(authorization_id[2:]), message


def decode_name(text: str) -> str:
    """A name in which `=2C` stands for a comma and `=3D` for `=` (RFC 5802)."""
    for each in text.split("=")[1:]:
        if each[:2] not in ("2C", "3D"):
            raise refusal("a name with = for itself")
    return text.replace("=2C", ",").replace("=3D", "=")


def encode_name(name: str) -> str:
    """The undo of `decode_name`."""
    return name.replace("=", "=3D").replace(",", "=2C")


def check_authorization_id(authorization_id: str, name: str) -> None:
    """Nobody acts for somebody else: the id is empty or the own name (CVE-2017-12610)."""
    if authorization_id not in ("", name):
        raise refusal(f"{shown(name)} would act as {shown(authorization_id)}")


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()


def _read_token(text: str) -> tuple[str, str]:
    """The authorization id and the token of a first message."""
    _, authorization_id, rest = read_gs2_header(text)
    if rest[:1] != _SEPARATOR or rest[-2:] != 2 * _SEPARATOR:
        raise refusal("a message that is not OAUTHBEARER's")
    fields: dict[str, str] = {}
    for pair in rest[1:-2].split(_SEPARATOR):
        name, _, value = pair.partition("=")
        if not _is_field(name, value) or name in fields:
            raise refusal("a field that is there twice, or is not name=value in ASCII")
        fields[name] = value
    scheme, _, token = fields.get("auth", "").partition(" ")
    token = token.strip(" ")
    if scheme.lower() != "bearer" or not _TOKEN.match(token):
        raise refusal("no bearer token")
    return authorization_id, token


def _is_field(name: str, value: str) -> bool:
    return bool(_FIELD_NAME.match(name) and _FIELD_VALUE.match(value))
