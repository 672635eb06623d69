"""Credentials and certificates for ZooKeeper: what is read, and what is said if it cannot be."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption

from kdist.config.load import broker_from
from kdist.errors import UserError
from kdist.zk.security import ZooKeeperSecurity, read_security
from tests.certificates import Authority, authority

SECRET = "of-brokers"


def security_of(**settings: object) -> ZooKeeperSecurity:
    given = {
        "broker.id": "1",
        "log.dir": "/d",
        "zookeeper.connect": "zk:2181",
        **{f"zookeeper.{name.replace('_', '.')}": str(each) for name, each in settings.items()},
    }
    return read_security(broker_from(given).zookeeper, lambda path: Path(path).read_bytes())


def context_of(**settings: object) -> ssl.SSLContext:
    found = security_of(ssl_client_enable="true", **settings).context
    assert found is not None
    return found()


@pytest.fixture
def trusted(tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    path.write_bytes(authority().pem)
    return path


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    path = tmp_path / "broker.pem"
    path.write_bytes(authority().issue().pem)
    return path


def test_nothing_is_shown_and_set_by_default() -> None:
    assert security_of() == ZooKeeperSecurity(None, None, False, False)


def test_only_the_given_cas_are_trusted_and_names_are_checked(trusted: Path, shown: Path) -> None:
    context = context_of(ssl_truststore_location=trusted, ssl_keystore_location=shown)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(context.get_ca_certs()) == 1


def test_names_are_not_checked_on_request(trusted: Path) -> None:
    context = context_of(ssl_truststore_location=trusted, ssl_endpoint_identification_algorithm="")
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)


def test_renewed_certificates_are_used_by_the_next_connection(trusted: Path) -> None:
    security = security_of(ssl_client_enable="true", ssl_truststore_location=trusted)
    assert security.context is not None
    trusted.write_bytes(authority().pem + Authority("next").pem)
    assert len(security.context().get_ca_certs()) == 2


def test_an_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    issued, path = authority().issue(), tmp_path / "broker.pem"
    encrypted = issued.encrypted_key(BestAvailableEncryption(SECRET.encode()))
    path.write_bytes(encrypted + issued.certificate_pem)
    context_of(ssl_keystore_location=path, ssl_keystore_password=SECRET)
    for password in ({}, {"ssl_keystore_password": "wrong"}):
        with pytest.raises(UserError, match=r"zookeeper.ssl.keystore.location: cannot use .*pem"):
            context_of(ssl_keystore_location=path, **password)


@pytest.mark.parametrize("store", ["keystore", "truststore"])
def test_a_file_that_cannot_be_used_is_named_with_its_setting(store: str, tmp_path: Path) -> None:
    path = tmp_path / "store.pem"
    with pytest.raises(UserError, match=rf"zookeeper.ssl.{store}.location: cannot read {path}: No"):
        context_of(**{f"ssl_{store}_location": path})
    path.write_bytes(b"no PEM")
    with pytest.raises(UserError, match=rf"zookeeper.ssl.{store}.location: cannot use {path}: "):
        context_of(**{f"ssl_{store}_location": path})


def test_the_digest_is_the_files_one_line(tmp_path: Path) -> None:
    path = tmp_path / "digest"
    path.write_text(f"broker:{SECRET}\n")
    found = security_of(digest_file=path, digest_over_clear_enable="true", set_acl="true")
    assert (found.digest, found.sets_acls) == (f"broker:{SECRET}", True)
    assert SECRET not in repr(found)


@pytest.mark.parametrize("content", [b"", b"broker", b":word", b"broker:", b"a:b\nc:d", b"\xff:a"])
def test_a_file_without_a_digest_is_told_without_its_content(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "digest"
    path.write_bytes(content)
    with pytest.raises(UserError) as told:
        security_of(digest_file=path, digest_over_clear_enable="true")
    assert str(told.value) in (
        f"zookeeper.digest.file: {path} is not one line of the form user:password",
        f"zookeeper.digest.file: {path} is not UTF-8",
    )


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"zookeeper.digest.file: cannot read .*: No such file"):
        security_of(digest_file=tmp_path / "digest", digest_over_clear_enable="true")


def test_sasl_needs_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "digest"
    path.write_text(f"broker:{SECRET}")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UserError, match="needs the package pure-sasl: pip install"):
        security_of(digest_file=path, digest_sasl_enable="true")
