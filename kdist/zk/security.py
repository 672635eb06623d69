"""How a client of ZooKeeper shows who it is, and knows the servers: TLS, and `user:password`.

A TLS context is made anew for each connection, so that renewed certificates are used. What is
wrong at the start is a `UserError` there; later it is the reason of a connection that failed.
"""

from __future__ import annotations

import importlib.util
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from kdist.config.broker import ZooKeeperSettings
from kdist.errors import UserError

_NO_SASL = (
    "zookeeper.digest.sasl.enable needs the package pure-sasl: pip install '.[zookeeper-sasl]' in"
    " kdist's tree"
)


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """`context` makes the TLS context, None in clear; `digest` is `user:password`."""

    context: Callable[[], ssl.SSLContext] | None = None
    digest: str | None = field(default=None, repr=False)
    is_sasl: bool = False  # the digest is shown by SASL's DIGEST-MD5
    sets_acls: bool = False


IN_CLEAR = ZooKeeperSecurity()


def read_security(settings: ZooKeeperSettings, read: Callable[[str], bytes]) -> ZooKeeperSecurity:
    """By the settings and the files that they name; `UserError` if those cannot be used."""
    context = None
    if settings.ssl_client_enable:

        def context() -> ssl.SSLContext:
            return make_context(settings)

        context()
    digest = _read_digest(settings, read)
    if settings.digest_sasl_enable and importlib.util.find_spec("puresasl") is None:
        raise UserError(_NO_SASL)
    return ZooKeeperSecurity(context, digest, settings.digest_sasl_enable, settings.set_acl)


def _read_digest(settings: ZooKeeperSettings, read: Callable[[str], bytes]) -> str | None:
    path = settings.digest_file
    if path is None:
        return None
    try:
        digest = read(path).decode().strip()
    except OSError as error:
        raise UserError(f"zookeeper.digest.file: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"zookeeper.digest.file: {path} is not UTF-8") from None
    user, _, password = digest.partition(":")
    if not user or not password or "\n" in digest:
        raise UserError(f"zookeeper.digest.file: {path} is not one line of the form user:password")
    return digest


def make_context(settings: ZooKeeperSettings) -> ssl.SSLContext:
    """`UserError` if a file cannot be used. Without a truststore it trusts the machine's CAs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.ssl_endpoint_identification_algorithm is not None
    # As in Java, whatever is trusted is enough, though it may be no root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusted, shown = settings.ssl_truststore_location, settings.ssl_keystore_location
    if trusted is None:
        context.set_default_verify_paths()
    else:
        _load("truststore", trusted, lambda: context.load_verify_locations(trusted))
    if shown is not None:
        password = settings.ssl_keystore_password or ""  # never asked for on a terminal
        _load("keystore", shown, lambda: context.load_cert_chain(shown, password=password))
    return context


def _load(store: str, path: str, load: Callable[[], None]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        reason = (error.reason or "it is no PEM").replace("_", " ").lower()
        raise UserError(f"zookeeper.ssl.{store}.location: cannot use {path}: {reason}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"zookeeper.ssl.{store}.location: cannot read {path}: {reason}") from None
