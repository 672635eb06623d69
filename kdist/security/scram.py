"""SCRAM-SHA-256 and SCRAM-SHA-512: a password is proved without being sent (pure).

```
client  n,,n=user,r=<client nonce>
server  r=<client nonce><server nonce>,s=<salt>,i=<iterations>
client  c=biws,r=<client nonce><server nonce>,p=<proof>
server  v=<signature>
```

Salt, proof and signature are base64. What is proved covers the first three messages as they were
sent, without the header `n,,` and the proof. A server keeps no password but a `ScramCredential`,
by which a proof can be checked and none made. For a name that is unknown it goes on with made-up
salt, and fails where a wrong password fails.

Sources: RFC 5802, RFC 7677, KIP-84; the text of a credential is Kafka's in `/config/users`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from typing import NamedTuple

from kdist.security.sasl import (
    Authenticated,
    AuthenticationFailed,
    check_authorization_id,
    decode_name,
    decoded,
    encode_name,
    read_gs2_header,
    refusal,
    shown,
    shown_error,
)

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash of each mechanism."""

ITERATIONS_MIN = 4096  # RFC 7677: a stored credential or a server with fewer is refused
ITERATIONS_MAX = 16_384  # of a new credential: Kafka's bound
_ITERATIONS_ASKED_MAX = 100_000  # a server may ask a client for no more: they take its time

SALT_RANDOM_BYTES = 17  # what `salt_from` takes
_SALT_BITS = 130
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class ScramCredential(NamedTuple):
    """What a server keeps of a password. Its text form does not show the keys."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


def new_credential(
    mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS_MIN
) -> ScramCredential:
    """The credential of a password: `salt_from` makes the salt."""
    salted = salt_password(mechanism, password, salt, iterations)
    return credential_of_salted(mechanism, salted, salt, iterations)


def credential_of_salted(
    mechanism: str, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """The credential of a salted password, as AlterUserScramCredentials carries it."""
    keys = _Keys.of(HASHES[mechanism], salted_password)
    return ScramCredential(salt, keys.stored_key, keys.server_key, iterations)


def salt_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """The salted password: as good as the password itself wherever the salt is the same."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def salt_from(random: bytes) -> bytes:
    """A salt of 17 random bytes in the form of Kafka's tools: 130 bits in digits of base 36.

    All salts have this form, so that a made-up one cannot be told from them.
    """
    number = int.from_bytes(random, "big") >> (8 * len(random) - _SALT_BITS)
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits.encode()


def format_credential(credential: ScramCredential) -> str:
    """A credential's text, as stored in ZooKeeper."""
    salt, stored_key, server_key = map(_to_base64, credential[:3])
    return (
        f"salt={salt},stored_key={stored_key},server_key={server_key},"
        f"iterations={credential.iterations}"
    )


def parse_credential(text: str) -> ScramCredential:
    """The credential that `format_credential` wrote; `ValueError` if it is bad."""
    parts = dict(each.partition("=")[::2] for each in text.split(","))
    if parts.keys() != {"salt", "stored_key", "server_key", "iterations"}:
        raise ValueError("not salt, stored_key, server_key and iterations")
    keys = (_from_base64(parts[name]) for name in ("salt", "stored_key", "server_key"))
    salt, stored_key, server_key = keys
    iterations = _read_iterations(parts["iterations"])
    if not salt or len(stored_key) != len(server_key) or iterations is None:
        raise ValueError("a salt, key or number of iterations is not valid")
    return ScramCredential(salt, stored_key, server_key, iterations)


class ScramServer:
    """The server's side. `credential_of` a name that is unknown is None.

    `nonce` is fresh random text of at least 128 bits, without a comma. `secret` makes up salts, and
    is the same on all brokers.
    """

    def __init__(
        self,
        mechanism: str,
        credential_of: Callable[[str], ScramCredential | None],
        nonce: str,
        secret: bytes,
    ) -> None:
        self._hash = HASHES[mechanism]
        self._credential_of = credential_of
        self._nonce = nonce
        self._secret = secret
        self._challenge: _Challenge | None = None

    def respond(self, message: bytes) -> tuple[bytes, Authenticated | None]:
        text = decoded(message)
        if self._challenge is None:
            self._challenge = self._read_first(text)
            return self._challenge.server_first.encode(), None
        return self._read_final(self._challenge, text)

    def _read_first(self, text: str) -> _Challenge:
        header, authorization_id, bare = read_gs2_header(text)
        fields = bare.split(",")
        if len(fields) < 2 or fields[0][:2] != "n=" or fields[1][:2] != "r=":
            raise refusal("a first message that is not n=name,r=nonce")
        name, client_nonce = decode_name(fields[0][2:]), fields[1][2:]
        if not name or not _is_printable(client_nonce):
            raise refusal("an empty name, or a nonce that is not printable ASCII")
        if "tokenauth=true" in fields[2:]:
            raise refusal(f"{shown(name)}: a delegation token, of which there are none")
        check_authorization_id(authorization_id, name)
        made_up = self._made_up(name)  # also for known names, so that it takes the same time
        credential = self._credential_of(name)
        fault = "unknown" if credential is None else "wrong password"
        if credential is not None and credential.iterations < ITERATIONS_MIN:
            credential, fault = None, f"its credential has fewer than {ITERATIONS_MIN} iterations"
        if credential is not None and len(credential.stored_key) != len(made_up.stored_key):
            credential, fault = None, "its credential is another mechanism's"
        usable = credential or made_up
        nonce = client_nonce + self._nonce
        server_first = f"r={nonce},s={_to_base64(usable.salt)},i={usable.iterations}"
        # librdkafka before 2.6.1 sends its own nonce twice.
        nonces = (nonce, client_nonce + nonce)
        return _Challenge(header, name, bare, server_first, nonces, usable, fault)

    def _made_up(self, name: str) -> ScramCredential:
        """Always the same for a name; no password fits."""

        def bytes_for(what: bytes) -> bytes:
            return hmac.digest(self._secret, what + name.encode(), self._hash)

        salt = salt_from(bytes_for(b"salt ")[:SALT_RANDOM_BYTES])
        return ScramCredential(salt, bytes_for(b"stored "), bytes_for(b"server "), ITERATIONS_MIN)

    def _read_final(self, challenge: _Challenge, text: str) -> tuple[bytes, Authenticated]:
        without_proof, _, proof_text = text.rpartition(",p=")
        fields = without_proof.split(",")
        binding = _to_base64(challenge.header.encode())
        if len(fields) < 2 or fields[0] != f"c={binding}" or fields[1][:2] != "r=":
            raise refusal("a last message that is not c=header,r=nonce,p=proof")
        if fields[1][2:] not in challenge.nonces:
            raise refusal(f"{shown(challenge.name)}: another nonce than was sent")
        signed = f"{challenge.client_first_bare},{challenge.server_first},{without_proof}".encode()
        credential = challenge.credential
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        proof = _read_proof(proof_text, len(signature))
        key = hashlib.new(self._hash, _xor(proof, signature)).digest()
        if not hmac.compare_digest(key, credential.stored_key):
            raise refusal(f"{shown(challenge.name)}: {challenge.fault}")
        verifier = _to_base64(hmac.digest(credential.server_key, signed, self._hash))
        return f"v={verifier}".encode(), Authenticated(challenge.name)


class ScramLogin:
    """A client's name and password. Its exchanges share the keys, which take time to compute."""

    def __init__(self, mechanism: str, name: str, password: str) -> None:
        self._mechanism = mechanism
        self.hash = HASHES[mechanism]
        self.name = name
        self._password = password
        self._last: tuple[tuple[bytes, int], _Keys] | None = None

    def keys(self, salt: bytes, iterations: int) -> _Keys:
        """The keys for what a server asks: the same until it gets another credential."""
        if self._last is None or self._last[0] != (salt, iterations):
            salted = salt_password(self._mechanism, self._password, salt, iterations)
            self._last = ((salt, iterations), _Keys.of(self.hash, salted))
        return self._last[1]


class ScramClient:
    """The client's side. `nonce` is fresh random text of at least 128 bits, without a comma."""

    def __init__(self, login: ScramLogin, nonce: str) -> None:
        self._login = login
        self._nonce = nonce
        self._bare = f"n={encode_name(login.name)},r={nonce}"
        self._server_signature: bytes | None = None

    def respond(self, challenge: bytes | None) -> bytes | None:
        if challenge is None:
            return f"n,,{self._bare}".encode()
        fields = dict(each.partition("=")[::2] for each in _server_text(challenge).split(","))
        if "e" in fields:
            raise AuthenticationFailed(f"the server refuses: {shown_error(fields['e'].encode())}")
        if self._server_signature is None:
            return self._answer(_server_text(challenge), fields)
        if not hmac.compare_digest(_server_base64(fields.get("v")), self._server_signature):
            raise AuthenticationFailed("the server does not prove that it knows the password")
        return None

    def _answer(self, server_first: str, fields: dict[str, str]) -> bytes:
        nonce, salt = fields.get("r", ""), _server_base64(fields.get("s"))
        iterations = _read_iterations(fields.get("i", ""))
        if "m" in fields or not salt or iterations is None:
            raise _unexpected()
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationFailed("the server's nonce does not extend the client's")
        if not ITERATIONS_MIN <= iterations <= _ITERATIONS_ASKED_MAX:
            allowed = f"{ITERATIONS_MIN} to {_ITERATIONS_ASKED_MAX}"
            raise AuthenticationFailed(
                f"the server asks for {iterations} iterations: {allowed} are allowed"
            )
        keys = self._login.keys(salt, iterations)
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare},{server_first},{without_proof}".encode()
        self._server_signature = hmac.digest(keys.server_key, signed, self._login.hash)
        proof = _xor(keys.client_key, hmac.digest(keys.stored_key, signed, self._login.hash))
        return f"{without_proof},p={_to_base64(proof)}".encode()


class _Keys(NamedTuple):
    client_key: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "_Keys()"

    @classmethod
    def of(cls, hash_name: str, salted_password: bytes) -> _Keys:
        client_key = hmac.digest(salted_password, b"Client Key", hash_name)
        stored_key = hashlib.new(hash_name, client_key).digest()
        return cls(client_key, stored_key, hmac.digest(salted_password, b"Server Key", hash_name))


class _Challenge(NamedTuple):
    """What the server remembers between the client's two messages."""

    header: str
    name: str
    client_first_bare: str
    server_first: str
    nonces: tuple[str, str]  # of which the client's last message has one
    credential: ScramCredential
    fault: str  # of a proof that does not fit, for the log


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("not base64") from None


def _read_proof(text: str, size: int) -> bytes:
    try:
        proof = _from_base64(text)
    except ValueError:
        raise refusal("a proof that is not base64") from None
    if len(proof) != size:
        raise refusal("a proof of the wrong size")
    return proof


def _server_text(challenge: bytes) -> str:
    try:
        return challenge.decode()
    except UnicodeDecodeError:
        raise _unexpected() from None


def _server_base64(text: str | None) -> bytes:
    try:
        return _from_base64(text or "")
    except ValueError:
        raise _unexpected() from None


def _unexpected() -> AuthenticationFailed:
    return AuthenticationFailed("the server's message is not SCRAM's")


def _read_iterations(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= 9
    return int(text) or None if is_number else None


def _is_printable(nonce: str) -> bool:
    return bool(nonce) and all("!" <= each <= "~" and each != "," for each in nonce)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
