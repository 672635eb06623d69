"""Why TLS fails with a peer, in a sentence that says what to do about it."""

from __future__ import annotations

import ssl


class TlsFailed(ConnectionError):
    """The handshake failed, or a record later; the text says why. `reason` is OpenSSL's name."""

    def __init__(self, why: str, reason: str = "") -> None:
        super().__init__(why)
        self.reason = reason


_SPEAKS_HTTP = (b"GET ", b"POST", b"HEAD", b"PUT ", b"HTTP")
_REASONS = {
    "HTTP_REQUEST": "it speaks HTTP without TLS",
    "NO_SHARED_CIPHER": "it has no cipher suite in common with this side",
    "UNSUPPORTED_PROTOCOL": "it has no version of TLS in common with this side",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it has no version of TLS in common with this side",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it refuses the handshake: no cipher suite in common, or it"
    " wants a certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the CA of this side's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "to it, this side's certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refuses this side's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it refuses this side's certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it refuses this side's certificate",
    "TLSV1_ALERT_ACCESS_DENIED": "it refuses this side's certificate",
}


def tls_failed(error: OSError, first: bytes) -> TlsFailed:
    """The sentence for an error of OpenSSL's, on a connection that began with these bytes."""
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(f"its certificate is refused: {error.verify_message}", reason)
    if (why := _REASONS.get(reason)) is None:
        if first.startswith(_SPEAKS_HTTP):
            why = "it speaks HTTP without TLS"
        elif first[:1] == b"\0":
            why = "it speaks Kafka's protocol without TLS"
        elif first[:1] not in (b"\x16", b"\x15", b""):
            why = "it does not speak TLS"
        else:
            why = f"TLS failed: {reason.replace('_', ' ').lower() or error}"
    return TlsFailed(why, reason)
