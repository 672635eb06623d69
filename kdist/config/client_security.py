"""How a client's connections are secured: the settings that all clients share.

Kafka's names, but for `sasl.username` and `sasl.password`, which are librdkafka's, and stand for a
JAAS text with them.
"""

from __future__ import annotations

from typing import Literal

from kdist.config.declare import Settings, setting, settings
from kdist.config.kinds import secret
from kdist.config.security import Mechanism

TlsVersion = Literal["TLSv1.2", "TLSv1.3"]
Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]


@settings
class SecuritySettings(Settings):
    """How connections are secured."""

    security_protocol: Protocol = setting(
        default="PLAINTEXT",
        subject="Security",
        doc="What the brokers' port speaks: with SSL, TLS; with SASL, a user has to authenticate.",
    )
    sasl_mechanism: Mechanism | None = setting(
        default=None,
        doc="How the user authenticates (Kafka's default is GSSAPI, which kdist does not have).",
    )
    sasl_username: str | None = setting(
        default=None, doc="The user's name, for PLAIN and SCRAM; librdkafka's name."
    )
    sasl_password: secret | None = setting(
        default=None, doc="The user's password; librdkafka's name."
    )
    sasl_jaas_config: secret | None = setting(
        default=None,
        doc="Name and password as JAAS text, in place of those two; for OAUTHBEARER, clientId, "
        "clientSecret and scope.",
    )
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        default=None,
        doc="Where the token of OAUTHBEARER comes from: a file: URL, or an https: URL of OAuth's "
        "client credentials grant.",
    )
    ssl_truststore_location: str | None = setting(
        default=None,
        doc="A PEM file with the CAs whose certificates are trusted; by default those that the "
        "machine trusts.",
    )
    ssl_truststore_certificates: str | None = setting(
        default=None, doc="Those CAs as PEM, in place of a file."
    )
    ssl_truststore_type: str = setting(
        default="PEM", doc="The format of that file (Kafka's default is JKS)."
    )
    ssl_keystore_location: str | None = setting(
        default=None,
        doc="A PEM file with the client's own private key, certificate and chain, if the brokers "
        "ask for one.",
    )
    ssl_keystore_key: secret | None = setting(
        default=None, doc="The private key as PEM, in place of a file."
    )
    ssl_keystore_certificate_chain: str | None = setting(
        default=None, doc="The certificate and its chain as PEM, with that key."
    )
    ssl_keystore_type: str = setting(
        default="PEM", doc="The format of the client's file (Kafka's default is JKS)."
    )
    ssl_key_password: secret | None = setting(
        default=None, doc="The password of an encrypted private key."
    )
    ssl_endpoint_identification_algorithm: Literal["https"] | None = setting(
        default="https", doc="Whether a broker's host name is checked; empty, it is not."
    )
    ssl_enabled_protocols: tuple[TlsVersion, ...] = setting(
        default=("TLSv1.2", "TLSv1.3"), doc="The versions of TLS that are spoken."
    )
