"""Names of certificates and the users they map to, as Java 17 and Apache Kafka 3.9.2 give them.

The texts were asked of `X500Principal.getName()` and of `SslPrincipalMapper`, which also agreed on
20,000 random names and on 18,000 random lists of rules, but for those with which its logins fail.
"""

from __future__ import annotations

import datetime
import random

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from kdist.security.names_of_certificates import (
    NAME_CHARS_MAX,
    MappingRules,
    end_of_certificate,
    name_of_certificate,
)
from tests.certificates import Authority, authority

UTF8, PRINTABLE, T61, IA5, BMP, UNIVERSAL = 0x0C, 0x13, 0x14, 0x16, 0x1E, 0x1C
KEYWORDS = {
    "CN": "550403",
    "C": "550406",
    "O": "55040a",
    "serial number": "550405",
    "e-mail": "2a864886f70d010901",
    "DC": "0992268993f22c640119",
    "2.999.1": "883701",
}


def der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(length))) + length + content


def attribute(keyword: str, text: str | bytes, tag: int = UTF8) -> bytes:
    content = text.encode() if isinstance(text, str) else text
    return der(0x30, der(0x06, bytes.fromhex(KEYWORDS[keyword])) + der(tag, content))


def certificate_of(*parts: bytes) -> bytes:
    """A certificate, as far as its subject; each part is one attribute or several."""
    subject = der(0x30, b"".join(der(0x31, part) for part in parts))
    before = der(0x02, b"\x01") + 3 * der(0x30, b"")
    return der(0x30, der(0x30, before + subject + der(0x30, b"")))


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ([], ""),
        ([attribute("C", "DE", PRINTABLE), attribute("CN", "alice")], "CN=alice,C=DE"),
        ([attribute("O", "a") + attribute("CN", "b"), attribute("CN", "c")], "CN=c,O=a+CN=b"),
        ([attribute("CN", 'a,b+c"d\\e<f>g;h=i#j')], r"CN=a\,b\+c\"d\\e\<f\>g\;h\=i\#j"),
        ([attribute("CN", "  two  ")], r"CN=\ \ two\ \ "),
        ([attribute("CN", "\ra\r")], "CN=\\\ra\\\r"),
        ([attribute("CN", " ")], r"CN=\ "),
        ([attribute("CN", "")], "CN="),
        ([attribute("CN", "a\0b")], r"CN=a\00b"),
        ([attribute("CN", "é中𝄞\t")], "CN=é中𝄞\t"),
        ([attribute("DC", "kdist", IA5)], "DC=kdist"),
        ([attribute("CN", b"\xe9", T61)], "CN=\ufffd"),
        ([attribute("CN", "é".encode("utf-16-be"), BMP)], "CN=\\00\ufffd"),
        ([attribute("CN", "a".encode("utf-32-be"), UNIVERSAL)], "CN=#1c0400000061"),
        ([attribute("CN", b"\x01\x02", 0x04)], "CN=#04020102"),
        (
            [attribute("e-mail", "a@b.c", IA5)],
            "1.2.840.113549.1.9.1=#16056140622e63",
        ),
        ([attribute("serial number", "7", PRINTABLE)], "2.5.4.5=#130137"),
        ([attribute("2.999.1", "x")], "2.999.1=#0c0178"),
    ],
)
def test_a_name_is_written_as_java_writes_it(parts: list[bytes], name: str) -> None:
    assert name_of_certificate(certificate_of(*parts)) == name


def test_the_name_of_a_real_certificate_is_read() -> None:
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example, Inc."),
            x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b.c"),
            x509.NameAttribute(NameOID.COMMON_NAME, "broker-1"),
        ]
    )
    assert name_of_certificate(authority().issue(subject).der) == (
        r"CN=broker-1,1.2.840.113549.1.9.1=#16056140622e63,O=Example\, Inc.,C=DE"
    )
    assert name_of_certificate(Authority("root").issued.der) == "CN=root"


@pytest.mark.parametrize("year", [1999, 2049, 2050, 9999])
def test_the_end_of_a_certificate_is_read(year: int) -> None:
    """Up to 2049 it is written with two digits."""
    end = datetime.datetime(year, 12, 31, 23, 59, 58, tzinfo=datetime.UTC)
    start = datetime.datetime(1990, 1, 1, tzinfo=datetime.UTC)
    issued = authority().issue(not_before=start, not_after=end)
    assert end_of_certificate(issued.der) == end.timestamp()


@given(st.binary(max_size=200))
def test_what_is_no_certificate_is_refused(data: bytes) -> None:
    for read in (name_of_certificate, end_of_certificate):
        with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
            read(data)


@given(st.integers(0, 10_000), st.integers(1, 255), st.integers(0, 1 << 32))
def test_a_changed_certificate_is_read_or_refused(at: int, change: int, cut: int) -> None:
    data = bytearray(authority().issued.der)
    data[at % len(data)] ^= change
    for read in (name_of_certificate, end_of_certificate):
        for changed in (bytes(data), bytes(data[: cut % len(data)])):
            try:
                read(changed)
            except ValueError:
                pass


# Rules


DUKE = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", DUKE, DUKE),
        (" DEFAULT , ", DUKE, DUKE),
        ("", DUKE, None),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", DUKE, "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", DUKE, "duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/U,DEFAULT", DUKE, "DUKE"),
        ("RULE:^CN=(.*?),OU=Others.*$/$1/", DUKE, None),
        ("RULE:^CN=(.*?),OU=Others.*$/$1/,DEFAULT", DUKE, DUKE),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$2@$1/", DUKE, "ServiceUsers@Duke"),
        ("RULE:CN=Duke/x/", DUKE, None),  # the whole name has to match
        ("RULE:.*/x/", DUKE, "xx"),  # the empty match at the end is replaced, too
        ("RULE:^.*$/x/", DUKE, "x"),
        ("RULE:(.*?)/$1a/", "x", "axa"),
        ("RULE:^(.*?)//L", "CN=x", "cn=x"),
        ("RULE:^CN=(.*?),.*$/$9$1$12/", DUKE, "$9DukeDuke2"),
        ("RULE:^CN=(.*?),.*$/$0/", "CN=a,b", "CN=a,b"),
        (r"RULE:^CN=(.*?),.*$/\$1\/\\/", DUKE, r"$1/\ ".strip()),
        (r"RULE:^CN=(a|(b)),.*$/[$2]/", "CN=a,b", "[]"),
        ("RULE:^CN=(.*?),OU=x,RULE:y/$1/", "CN=a,OU=x,RULE:y", "a"),
        (r"RULE:^CN=(.*)\/(.*)$/$2/", "CN=a/b", "b"),
        (r"RULE:^CN=(\w+)$/$1/", "CN=é", None),  # as in Java, letters are those of ASCII
        ("RULE:^CN=(.*)$/$1/", "CN=a\nb", None),
    ],
)
def test_a_name_maps_to_what_kafka_maps_it_to(rules: str, name: str, user: str | None) -> None:
    assert MappingRules(rules).user(name) == user


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAULT x",
        "RULE:",
        "RULE:a/b",
        "RULE:a/b/X",
        "RULE:a/b/LU",
        "RULE:a/b/ L",
        "RULE:(/b/",
        "DEFAULT,RULE:a",
        r"RULE:\p{Alpha}/b/",
        "RULE:[a-z&&[^b]]/b/",
        # With these, Kafka starts, and no login succeeds.
        "RULE:a/$1/",
        "RULE:(a)/$/",
        "RULE:(a)/${x}/",
    ],
)
def test_rules_that_cannot_be_used_are_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be used|does not begin|names no group"):
        MappingRules(rules)


def test_no_rule_is_applied_to_a_very_long_name() -> None:
    rules = MappingRules("RULE:^CN=(a*)$/$1/")
    longest = "CN=" + (NAME_CHARS_MAX - 3) * "a"
    assert rules.user(longest) == longest[3:]
    assert rules.user(longest + "a") is None


def test_any_list_of_rules_is_accepted_or_refused() -> None:
    rng = random.Random(3)
    pieces = ("RULE:", "DEFAULT", ",", "/", "\\", "$1", "$", "(", ")", ".*", "L", "a", " ")
    accepted = 0
    for _ in range(5_000):
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(0, 9)))
        try:
            MappingRules(text).user(DUKE)
        except ValueError:
            continue
        accepted += 1
    assert accepted > 100
