"""Constraints between the settings of one listener (pure). As in `broker_rules`."""

from __future__ import annotations

from collections.abc import Callable

from kdist.config.security import ListenerSecurity, prefix_of

Rule = Callable[[ListenerSecurity], str | None]

CONVERTED = (
    "`openssl pkcs12 -in store.p12 -out store.pem` makes one of a PKCS12 store, and keytool"
    " -importkeystore makes that of a JKS store"
)
_SCHEMES = ("file:", "https:")


def stores_are_pem(listener: ListenerSecurity) -> str | None:
    """`ssl.keystore.type` and `ssl.truststore.type` are PEM."""
    tls = listener.tls
    types = (tls.keystore_type, tls.truststore_type) if tls else ()
    for store, kind in zip(("keystore", "truststore"), types, strict=False):
        if kind.upper() != "PEM":
            return (
                f"ssl.{store}.type of {listener.name} is {kind}, but kdist reads PEM only:"
                f" {CONVERTED}"
            )
    return None


def certificate_is_given(listener: ListenerSecurity) -> str | None:
    """A listener with TLS has a certificate and its key: in one file, or both as text."""
    tls = listener.tls
    if tls is None:
        return None
    inline = (tls.keystore_key, tls.keystore_certificate_chain)
    if tls.keystore_location is not None:
        return f"{listener.name} has its key as a file and as text" if any(inline) else None
    if all(inline):
        return None
    return (
        f"{listener.name} needs ssl.keystore.location, or ssl.keystore.key and"
        " ssl.keystore.certificate.chain"
    )


def trust_is_given(listener: ListenerSecurity) -> str | None:
    """If clients show certificates, the CAs that sign them are given: as a file or as text."""
    tls = listener.tls
    if tls is None:
        return None
    given = (tls.truststore_location, tls.truststore_certificates)
    if all(given):
        return f"{listener.name} has the CAs that it trusts as a file and as text"
    if tls.client_auth == "none" or any(given):
        return None
    return (
        f"{listener.name} needs ssl.truststore.location or ssl.truststore.certificates: clients'"
        f" certificates are {tls.client_auth}"
    )


def versions_are_enabled(listener: ListenerSecurity) -> str | None:
    """`ssl.enabled.protocols` has a version."""
    if listener.tls is None or listener.tls.enabled_protocols:
        return None
    return f"ssl.enabled.protocols of {listener.name} is empty"


def mechanisms_are_enabled(listener: ListenerSecurity) -> str | None:
    """A listener with SASL has a mechanism."""
    if listener.sasl is None or listener.mechanisms:
        return None
    return f"{listener.name} needs sasl.enabled.mechanisms"


def passwords_are_not_in_clear(listener: ListenerSecurity) -> str | None:
    """PLAIN is enabled on a listener without TLS only with `sasl.plain.over.clear.enable`."""
    if listener.sasl is None or listener.tls is not None or "PLAIN" not in listener.mechanisms:
        return None
    if listener.sasl.plain_over_clear_enable:
        return None
    return (
        f"{listener.name} has PLAIN without TLS, which shows passwords to the network: use"
        " SASL_SSL or SCRAM, or set sasl.plain.over.clear.enable"
    )


def jaas_can_be_read(listener: ListenerSecurity) -> str | None:
    """Each `sasl.jaas.config` is a JAAS text whose class serves the mechanism."""
    for mechanism in listener.mechanisms:
        name = f"{prefix_of(listener.name, mechanism)}sasl.jaas.config"
        try:
            jaas = listener.jaas(mechanism)
        except ValueError as fault:
            return f"{name} {fault}"
        if jaas is not None and mechanism not in jaas.mechanisms:
            return f"{name} has the login module of {' and '.join(jaas.mechanisms)}"
    return None


def plain_has_users(listener: ListenerSecurity) -> str | None:
    """PLAIN has a user, as `user_NAME` of its JAAS text."""
    if "PLAIN" not in listener.mechanisms or jaas_can_be_read(listener):
        return None
    jaas = listener.jaas("PLAIN")
    if jaas is not None and jaas.users and all((*jaas.users, *jaas.users.values())):
        return None
    return (
        f'{prefix_of(listener.name, "PLAIN")}sasl.jaas.config needs user_NAME="password" for each'
        " user of PLAIN"
    )


def tokens_can_be_checked(listener: ListenerSecurity) -> str | None:
    """With OAUTHBEARER, it is given where the keys are, and which issuer and audience count."""
    if listener.sasl is None or "OAUTHBEARER" not in listener.mechanisms:
        return None
    sasl = listener.sasl
    url = sasl.oauthbearer_jwks_endpoint_url or ""
    if not url.startswith(_SCHEMES):
        return (
            f"sasl.oauthbearer.jwks.endpoint.url of {listener.name} must be a URL that begins with"
            f" {' or '.join(_SCHEMES)}"
        )
    needed = {
        "sasl.oauthbearer.expected.issuer": sasl.oauthbearer_expected_issuer,
        "sasl.oauthbearer.expected.audience": sasl.oauthbearer_expected_audience,
    }
    lacking = next((name for name, value in needed.items() if not value), None)
    return lacking and f"{lacking} must be given for {listener.name}, which has OAUTHBEARER"


REFUSES: tuple[Rule, ...] = (
    stores_are_pem,
    certificate_is_given,
    trust_is_given,
    versions_are_enabled,
    mechanisms_are_enabled,
    passwords_are_not_in_clear,
    jaas_can_be_read,
    plain_has_users,
    tokens_can_be_checked,
)
