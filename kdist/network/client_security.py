"""How a client's connection is secured: what proves who it is.

The exchange itself is a matter of `kdist.security`; here are its requests, and a sentence for each
way in which a broker refuses. A broker that ends sessions tells how long this one lasts: the client
authenticates again before that, on the same connection (KIP-368).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from kdist.errors import ApiError, Error
from kdist.network.tls import ClientTls
from kdist.protocol.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kdist.protocol.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kdist.security.sasl import PLAIN, AuthenticationFailed, ClientExchange, PlainClient
from kdist.security.scram import HASHES, ScramClient, ScramLogin

# When to authenticate again, in parts of the session: as in Kafka, not all at the same time.
_RENEW_FROM, _RENEW_TO = 0.85, 0.95
_RENEW_MS_MIN = 1_000  # Kafka's brokers refuse to begin again sooner

Ask = Callable[[Any], Awaitable[Any]]


class Sasl(NamedTuple):
    """By which mechanism a client authenticates.

    `exchange` makes a new exchange for each time; `prepare`, if there is one, is awaited before, to
    fetch a token for instance. `rng` spreads the times of authenticating again.
    """

    mechanism: str
    exchange: Callable[[], ClientExchange]
    rng: random.Random
    prepare: Callable[[], Awaitable[None]] | None = None


class ClientSecurity(NamedTuple):
    """How connections are secured: in clear, and without a user, if both are None."""

    sasl: Sasl | None = None
    tls: ClientTls | None = None


def with_password(mechanism: str, name: str, password: str, rng: random.Random) -> Sasl:
    """PLAIN or SCRAM. `rng` makes nonces, so that nobody may foresee it: `secure_rng`."""
    if mechanism == PLAIN:
        return Sasl(PLAIN, lambda: PlainClient(name, password), rng)
    assert mechanism in HASHES, "checked where settings are read"
    login = ScramLogin(mechanism, name, password)
    return Sasl(mechanism, lambda: ScramClient(login, f"{rng.getrandbits(160):040x}"), rng)


async def authenticate(sasl: Sasl, ask: Ask, broker: str) -> float:
    """Prove who the client is; in how many ms it has to do so again, 0 for never.

    `ApiError` UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE or SASL_AUTHENTICATION_FAILED if that
    is refused, or the broker does not prove itself.
    """
    if sasl.prepare is not None:
        await sasl.prepare()
    session_ms, challenge = 0, None
    try:
        exchange = sasl.exchange()
        _check_handshake(await ask(SaslHandshakeRequest(mechanism=sasl.mechanism)), sasl, broker)
        while (message := exchange.respond(challenge)) is not None:
            answer = await ask(SaslAuthenticateRequest(auth_bytes=message))
            _check_answer(answer, sasl, broker)
            challenge, session_ms = answer.auth_bytes, answer.session_lifetime_ms
    except AuthenticationFailed as error:
        raise ApiError(Error.SASL_AUTHENTICATION_FAILED, f"{broker}: {error}") from error
    share = sasl.rng.uniform(_RENEW_FROM, _RENEW_TO)
    return max(session_ms * share, _RENEW_MS_MIN) if session_ms > 0 else 0


def _check_handshake(answer: SaslHandshakeResponse, sasl: Sasl, broker: str) -> None:
    error = Error.of(answer.error_code)
    if error is Error.UNSUPPORTED_SASL_MECHANISM:
        has = ", ".join(answer.mechanisms) or "none"
        why = f"does not have SASL mechanism {sasl.mechanism}; it has {has} (sasl.mechanism)"
    elif error is Error.ILLEGAL_SASL_STATE:
        why = "takes no SASL on this port: that is another port's, or security.protocol is wrong"
    elif error:
        why = f"refuses SASL: {error.sentence}"
    else:
        return
    raise ApiError(error, f"{broker} {why}")


def _check_answer(answer: SaslAuthenticateResponse, sasl: Sasl, broker: str) -> None:
    error = Error.of(answer.error_code)
    if error:
        why = answer.error_message or error.sentence
        raise ApiError(error, f"{broker} refuses the credentials for {sasl.mechanism}: {why}")
