"""How a client's connections are secured: what the settings that all clients share mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from kdist.config.client_security import Protocol, SecuritySettings, TlsVersion
from kdist.config.jaas import parse_jaas
from kdist.config.security import Mechanism, TlsSettings
from kdist.errors import UserError
from kdist.network.client_security import ClientSecurity, Sasl, with_password
from kdist.network.tls import ClientTls
from kdist.runtime.clock import SystemClock
from kdist.runtime.process import secure_rng
from kdist.security.sasl import OAUTHBEARER

if TYPE_CHECKING:
    from kdist.client.tokens import Endpoint


class SecurityKeywords(TypedDict, total=False):
    """Those settings as clients take them by name."""

    security_protocol: Protocol
    sasl_mechanism: Mechanism | None
    sasl_username: str | None
    sasl_password: str | None
    sasl_jaas_config: str | None
    sasl_oauthbearer_token_endpoint_url: str | None
    ssl_truststore_location: str | None
    ssl_truststore_certificates: str | None
    ssl_truststore_type: str
    ssl_keystore_location: str | None
    ssl_keystore_key: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_keystore_type: str
    ssl_key_password: str | None
    ssl_endpoint_identification_algorithm: Literal["https"] | None
    ssl_enabled_protocols: TlsVersion | Sequence[TlsVersion]


def security_of(given: SecuritySettings) -> dict[str, Any]:
    """These settings alone, for another client of the same user."""
    return {row.attribute: getattr(given, row.attribute) for row in SecuritySettings.TABLE}


def check_security(given: SecuritySettings) -> None:
    """`UserError` for the first setting that is missing, or that the protocol has no use for."""
    protocol = given.security_protocol
    uses = {"sasl_": protocol.startswith("SASL_"), "ssl_": protocol.endswith("SSL")}
    for row in given.TABLE:
        is_used = next(
            (used for name, used in uses.items() if row.attribute.startswith(name)), True
        )
        if not is_used and getattr(given, row.attribute) != row.default:
            raise UserError(f"{row.name} is given, and security_protocol is {protocol}")
    if uses["sasl_"]:
        _check_credentials(given)


def client_security(given: SecuritySettings) -> ClientSecurity | None:
    """What connections need to know; None if they are in clear and nobody authenticates.

    `UserError` if settings do not fit each other, or a file cannot be used.
    """
    check_security(given)
    protocol = given.security_protocol
    if protocol == "PLAINTEXT":
        return None
    return ClientSecurity(
        _sasl(given) if protocol.startswith("SASL_") else None,
        _tls(given) if protocol.endswith("SSL") else None,
    )


def _tls(given: SecuritySettings) -> ClientTls:
    from kdist.network.tls_contexts import client_tls  # late, as a client in clear needs neither
    from kdist.runtime.disk import Disk

    own = {
        row.attribute.removeprefix("ssl_"): getattr(given, row.attribute)
        for row in SecuritySettings.TABLE
        if row.attribute.startswith("ssl_")
    }
    return client_tls(TlsSettings(**own), Disk().read, SystemClock().now_ms)


def _sasl(given: SecuritySettings) -> Sasl:
    mechanism, options, rng = given.sasl_mechanism, _options(given), secure_rng()
    assert mechanism is not None, "checked when the settings were read"
    if mechanism != OAUTHBEARER:
        return with_password(mechanism, options["username"], options["password"], rng)
    from kdist.client.tokens import TokenSource  # late, as it loads an HTTP client

    clock = SystemClock()
    source = TokenSource(_endpoint(given, options), lambda: clock.now_ms() / 1000)
    return Sasl(mechanism, source.exchange, rng, source.prepare)


def _check_credentials(given: SecuritySettings) -> None:
    """`UserError` unless there is all that the mechanism needs."""
    if given.sasl_mechanism is None:
        raise UserError(f"security_protocol is {given.security_protocol}, and needs sasl_mechanism")
    options = _options(given)
    if given.sasl_mechanism == OAUTHBEARER:
        _endpoint(given, options)
        return
    for name in ("username", "password"):
        if not options.get(name):
            raise UserError(
                f"{given.sasl_mechanism} needs sasl_{name}, or sasl_jaas_config with {name}"
            )


def _options(given: SecuritySettings) -> Mapping[str, str]:
    """What the login module would be given."""
    named = {"username": given.sasl_username, "password": given.sasl_password}
    if given.sasl_jaas_config is None:
        return {name: value for name, value in named.items() if value is not None}
    if any(value is not None for value in named.values()):
        raise UserError("sasl_jaas_config has name and password: leave out sasl_username and so on")
    try:
        jaas = parse_jaas(given.sasl_jaas_config)
    except ValueError as error:
        raise UserError(f"sasl_jaas_config {error}") from None
    if given.sasl_mechanism not in jaas.mechanisms:
        raise UserError(f"sasl_jaas_config is not for {given.sasl_mechanism}, the sasl_mechanism")
    return jaas.options


def _endpoint(given: SecuritySettings, options: Mapping[str, str]) -> Endpoint:
    """Where the token comes from; `UserError` if that is not said."""
    from kdist.client.tokens import Endpoint
    from kdist.network.documents import check_url

    url = given.sasl_oauthbearer_token_endpoint_url
    if url is None:
        raise UserError("OAUTHBEARER needs sasl_oauthbearer_token_endpoint_url")
    check_url("sasl_oauthbearer_token_endpoint_url", url)
    client = options.get("clientId", ""), options.get("clientSecret", "")
    if url.startswith("https:") and not all(client):
        raise UserError("an https: endpoint needs clientId and clientSecret in sasl_jaas_config")
    return Endpoint(url, *client, options.get("scope", ""))
