"""The settings of who may connect and do what, and each listener's own, read from them.

A setting of TLS or SASL is given for one listener as `listener.name.<listener>.<setting>`, for one
mechanism of it as `listener.name.<listener>.<mechanism>.<setting>`, both in lower case, or without
a prefix for all. The longest prefix wins, wherever it is given.

Kafka 3.9's names and defaults where the meaning is the same; a row that differs says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from kdist.config.declare import Setting, Settings, setting, settings
from kdist.config.jaas import Jaas, parse_jaas
from kdist.config.kinds import INT32_MAX, int32, int64, secret

ACL_AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
MECHANISMS: tuple[Mechanism, ...] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


@settings
class AuthorizationSettings(Settings):
    """Who may do what."""

    authorizer_class_name: Literal["kafka.security.authorizer.AclAuthorizer"] | None = setting(
        default=None,
        subject="Authorisation",
        doc="What decides about requests: ACLs in ZooKeeper; unset, everybody may do everything.",
    )
    super_users: str = setting(
        default="",
        doc="Who may do everything, whatever the ACLs say, as `User:name`, with `;` between: a "
        "certificate's name has commas.",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        default=False,
        doc="Whether everybody may do everything with what no ACL names.",
    )
    authorizer_dry_run: bool = setting(
        default=False,
        doc="kdist's own: decide, count and log, but refuse nothing; for finding out whom new ACLs "
        "would shut out.",
    )


@settings
class AuthenticationSettings(Settings):
    """What holds for connections before it is known whose they are."""

    authentication_timeout_ms: int32 = setting(
        default=10_000,
        minimum=1,
        subject="Authentication",
        doc="kdist's own: how long a connection may take to prove whose it is, TLS and SASL "
        "together.",
    )
    unauthenticated_connections_max: int32 = setting(
        default=1_000,
        minimum=1,
        doc="kdist's own: how many connections of a listener may be unauthenticated; a further one "
        "closes the oldest of them.",
    )
    unauthenticated_connections_max_per_ip: int32 = setting(
        default=100,
        minimum=1,
        doc="kdist's own: how many unauthenticated connections of a listener may come from one "
        "address; a further one closes the oldest of them.",
    )
    connection_failed_authentication_delay_ms: int32 = setting(
        default=100,
        minimum=0,
        doc="How long the answer to a failed authentication, and the close, are held back.",
    )
    sasl_server_max_receive_size: int32 = setting(
        default=64 << 10,
        minimum=1024,
        doc="The largest request before authentication (Kafka's default is 524288).",
    )
    scram_alter_over_clear_enable: bool = setting(
        default=False,
        doc="kdist's own: whether SCRAM credentials, which are as good as passwords, may be changed"
        " by requests on listeners without TLS.",
    )


@settings
class TlsSettings(Settings):
    """A listener's TLS: its own certificate, and whose certificates it trusts."""

    PREFIX = "ssl."

    keystore_type: str = setting(
        default="PEM",
        subject="TLS",
        doc="The format of the certificate and key (Kafka's default is JKS; `openssl pkcs12 -in "
        "store.p12 -out store.pem` converts).",
    )
    keystore_location: str | None = setting(
        default=None,
        doc="A PEM file with the listener's private key, certificate and chain.",
    )
    keystore_key: secret | None = setting(
        default=None, doc="The private key as PEM, in place of `ssl.keystore.location`."
    )
    keystore_certificate_chain: str | None = setting(
        default=None, doc="The certificate and its chain as PEM, with `ssl.keystore.key`."
    )
    key_password: secret | None = setting(
        default=None, doc="The password of an encrypted private key."
    )
    truststore_type: str = setting(
        default="PEM",
        doc="The format of the trusted certificates (Kafka's default is JKS).",
    )
    truststore_location: str | None = setting(
        default=None, doc="A PEM file with the CAs whose certificates are trusted."
    )
    truststore_certificates: str | None = setting(
        default=None, doc="The trusted CAs as PEM, in place of `ssl.truststore.location`."
    )
    client_auth: Literal["none", "requested", "required"] = setting(
        default="none",
        doc="Whether clients must show a certificate; for a listener with SASL it counts only with "
        "that one's prefix.",
    )
    enabled_protocols: tuple[Literal["TLSv1.2", "TLSv1.3"], ...] = setting(
        default=("TLSv1.2", "TLSv1.3"), doc="The versions of TLS that are spoken."
    )
    protocol: Literal["TLS", "TLSv1.2", "TLSv1.3"] = setting(
        default="TLSv1.3",
        doc="The newest version of TLS, if `ssl.enabled.protocols` has it.",
    )
    cipher_suites: tuple[str, ...] = setting(
        default=(),
        doc="The cipher suites of TLS 1.2 that are allowed, by their IANA names; those of TLS 1.3 "
        "are always allowed; unset, OpenSSL chooses.",
    )
    endpoint_identification_algorithm: Literal["https"] | None = setting(
        default="https",
        doc="Whether a broker checks the host name in another's certificate; empty, it does not.",
    )
    allow_dn_changes: bool = setting(
        default=False,
        doc="Whether a renewed certificate may have another distinguished name than the old one.",
    )
    allow_san_changes: bool = setting(
        default=False,
        doc="Whether a renewed certificate may lack alternative names that the old one has.",
    )
    principal_mapping_rules: str = setting(
        default="DEFAULT",
        doc="How a client certificate's distinguished name becomes a user's: `DEFAULT` or "
        "`RULE:pattern/replacement/[LU]`, with commas between; the first that matches counts.",
    )


@settings
class SaslSettings(Settings):
    """A listener's SASL: the mechanisms, and the tokens that are accepted."""

    PREFIX = "sasl."

    enabled_mechanisms: tuple[Mechanism, ...] = setting(
        default=(),
        subject="SASL",
        doc="The mechanisms by which clients may authenticate (Kafka's default is GSSAPI, which "
        "kdist does not have).",
    )
    plain_over_clear_enable: bool = setting(
        default=False,
        doc="kdist's own: whether PLAIN, which sends passwords as they are, is allowed on a "
        "listener without TLS.",
    )
    oauthbearer_jwks_endpoint_url: str | None = setting(
        default=None,
        doc="Where the keys are that sign tokens: a `file:` or `https:` URL of a JWKS.",
    )
    oauthbearer_jwks_endpoint_refresh_ms: int64 = setting(
        default=3_600_000, minimum=1, doc="The pause between two readings of those keys."
    )
    oauthbearer_jwks_endpoint_retry_backoff_ms: int64 = setting(
        default=100, minimum=1, doc="The pause after the first reading that failed."
    )
    oauthbearer_jwks_endpoint_retry_backoff_max_ms: int64 = setting(
        default=10_000, minimum=1, doc="The longest pause after a reading that failed."
    )
    oauthbearer_expected_issuer: str | None = setting(
        default=None, doc="The `iss` of tokens; with OAUTHBEARER it must be given."
    )
    oauthbearer_expected_audience: tuple[str, ...] = setting(
        default=(), doc="Of these a token's `aud` must have one; with OAUTHBEARER it must be given."
    )
    oauthbearer_clock_skew_seconds: int32 = setting(
        default=30, minimum=0, doc="How far the clocks of issuer and broker may differ."
    )
    oauthbearer_scope_claim_name: str = setting(
        default="scope", doc="The claim of a token that holds its scope."
    )
    oauthbearer_sub_claim_name: str = setting(
        default="sub", doc="The claim of a token that holds the user's name."
    )


@settings
class MechanismSettings(Settings):
    """What may differ between the mechanisms of one listener."""

    sasl_jaas_config: secret | None = setting(
        default=None,
        subject="SASL",
        doc="The credentials as JAAS text: `username` and `password` are what brokers log in to "
        "each other with, and `user_NAME` each a user of PLAIN.",
    )
    sasl_server_callback_handler_class: (
        Literal[
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
            "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
        ]
        | None
    ) = setting(
        default=None,
        doc="What checks tokens; both names, like none, mean that a token must be signed.",
    )
    connections_max_reauth_ms: int64 = setting(
        default=0,
        minimum=0,
        doc="After this long, or when its token ends, a client has to authenticate again; 0: only "
        "when its token ends.",
    )


@settings
class ListenerLimits(Settings):
    """What is given with a listener's prefix only, and holds besides the broker's own limits."""

    max_connections: int32 = setting(
        default=INT32_MAX,
        minimum=0,
        subject="Listeners",
        doc="How many connections of the listener may be open.",
    )
    max_connection_creation_rate: int32 = setting(
        default=INT32_MAX, minimum=1, doc="How many connections it accepts in a second."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSecurity:
    """A listener's protocol and own settings; `tls` and `sasl` are None if it has none of them.

    `mechanisms` has those of SASL that are enabled, by name.
    """

    name: str
    protocol: str
    limits: ListenerLimits
    tls: TlsSettings | None
    sasl: SaslSettings | None
    mechanisms: Mapping[str, MechanismSettings]

    @property
    def authenticates(self) -> bool:
        """Whether peers may prove who they are here."""
        return self.sasl is not None or (self.tls is not None and self.tls.client_auth != "none")

    def jaas(self, mechanism: str) -> Jaas | None:
        """The mechanism's credentials; `ValueError` if the text cannot be read."""
        text = self.mechanisms[mechanism].sasl_jaas_config
        return None if text is None else parse_jaas(text)


OF_LISTENERS: tuple[type[Settings], ...] = (TlsSettings, SaslSettings, MechanismSettings)
"""The classes that may be given with a listener's prefix, or without one for all."""

_PREFIX = "listener.name."
_ROWS = (*(row for cls in OF_LISTENERS for row in cls.TABLE), *ListenerLimits.TABLE)


def prefix_of(listener: str, mechanism: str = "") -> str:
    """What is before the name of a setting that one listener has, or one mechanism of it."""
    own = f"{_PREFIX}{listener}.".lower()
    return f"{own}{mechanism}.".lower() if mechanism else own


def names_of_listener(listener: str) -> Iterator[str]:
    """Every name that has the listener's prefix."""
    yield from (prefix_of(listener) + row.name for row in _ROWS)
    for mechanism in MECHANISMS:
        yield from (prefix_of(listener, mechanism) + row.name for row in MechanismSettings.TABLE)


def is_prefixed(name: str) -> bool:
    """Whether a setting is one listener's only."""
    return name.startswith(_PREFIX)


def row_of_prefixed(name: str) -> Setting | None:
    """The row of a setting that is given with a listener's prefix."""
    found = (row for row in _ROWS if is_prefixed(name) and name.endswith(f".{row.name}"))
    return max(found, key=lambda row: len(row.name), default=None)
