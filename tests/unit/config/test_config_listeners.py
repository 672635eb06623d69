"""A listener's settings: the longest prefix wins, a typo is refused, and no secret is shown."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdist.config.broker_config import BrokerConfig
from kdist.config.faults import HIDDEN, ConfigError
from kdist.config.jaas import MODULES, parse_jaas
from kdist.config.kinds import INT32_MAX
from kdist.config.layers import Source, layer_of
from kdist.config.load import broker_from, with_dynamic

PLAIN, SCRAM, TOKENS = MODULES
USERS = f'{PLAIN} required username="kdist" password="hunter2" user_alice="hunter3";'
GIVEN = {
    "broker.id": "1",
    "log.dir": "/d",
    "zookeeper.connect": "zk:2181",
    "listeners": "IN://:9091,OUT://:9092,SSL://:9093",
    "listener.security.protocol.map": "IN:SASL_SSL,OUT:PLAINTEXT,SSL:SSL",
    "ssl.keystore.location": "/all.pem",
    "ssl.key.password": "hunter1",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.in.plain.sasl.jaas.config": USERS,
}


def broker(**more: str) -> BrokerConfig:
    """The configuration of the above and these, given as log_dir for log.dir."""
    return broker_from(GIVEN | {name.replace("_", "."): text for name, text in more.items()}, "f")


def faults_of(given: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        broker_from(GIVEN | given)
    return caught.value.faults


def test_each_listener_has_what_its_protocol_needs() -> None:
    config = broker()
    assert list(config.listeners) == ["IN", "OUT", "SSL"]
    inner, outer, tls = config.listeners.values()
    assert (inner.protocol, outer.protocol, tls.protocol) == ("SASL_SSL", "PLAINTEXT", "SSL")
    assert inner.tls is not None
    assert inner.sasl is not None
    assert (outer.tls, outer.sasl, tls.sasl) == (None, None, None)
    assert list(inner.mechanisms) == ["PLAIN", "SCRAM-SHA-512"]
    assert not tls.mechanisms
    assert config.listener("OUT") is outer


def test_the_longest_prefix_wins() -> None:
    name = "connections.max.reauth.ms"
    config = broker_from(
        GIVEN
        | {name: "1", f"listener.name.in.{name}": "2", f"listener.name.in.plain.{name}": "3"}
        | {"listener.name.ssl.ssl.keystore.location": "/own.pem"}
    )
    inner, tls = config.listener("IN"), config.listener("SSL")
    assert inner.mechanisms["PLAIN"].connections_max_reauth_ms == 3
    assert inner.mechanisms["SCRAM-SHA-512"].connections_max_reauth_ms == 2
    assert tls.tls is not None
    assert tls.tls.keystore_location == "/own.pem"
    assert inner.tls is not None
    assert inner.tls.keystore_location == "/all.pem"
    assert not config.warnings


def test_a_listeners_limits_are_not_the_brokers() -> None:
    config = broker(**{"max.connections": "9", "listener.name.out.max.connections": "4"})
    assert config.network.max_connections == 9
    assert config.listener("OUT").limits.max_connections == 4
    assert config.listener("IN").limits.max_connections == INT32_MAX


def test_a_certificate_of_clients_with_sasl_is_asked_for_by_prefix_only() -> None:
    trusting = GIVEN | {"ssl.truststore.location": "/ca.pem", "ssl.client.auth": "required"}
    config = broker_from(trusting)
    found = {name: each.tls and each.tls.client_auth for name, each in config.listeners.items()}
    assert found == {"IN": "none", "OUT": None, "SSL": "required"}
    assert config.warnings == (
        "ssl.client.auth does not hold for IN, which has SASL: give"
        " listener.name.in.ssl.client.auth.",
    )
    own = broker_from(trusting | {"listener.name.in.ssl.client.auth": "requested"})
    assert own.listener("IN").tls
    assert own.listener("IN").tls.client_auth == "requested"
    assert not own.warnings


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        ("listener.name.inn.ssl.key.password", "did you mean listener.name.in.ssl.key.password?"),
        ("listener.name.IN.ssl.key.password", "did you mean listener.name.in.ssl.key.password?"),
        ("listener.name.in.ssl.key.pasword", "did you mean listener.name.in.ssl.key.password?"),
        ("listener.name.in.plan.sasl.jaas.config", "mean listener.name.in.plain.sasl.jaas.config?"),
        ("listener.name.in.log.dir", "is not a setting"),
        ("listener.name.in.ssl.keystore.password", "PEM has no such password"),
        ("listener.name.out.ssl.key.password", "but the protocol of OUT is PLAINTEXT."),
        ("listener.name.ssl.sasl.jaas.config", "but the protocol of SSL is SSL."),
        ("listener.name.ssl.plain.sasl.jaas.config", "but the protocol of SSL is SSL."),
    ],
)
def test_a_prefixed_name_that_has_no_effect_is_refused(name: str, claim: str) -> None:
    (fault,) = faults_of({name: "hunter2"})
    assert fault.startswith(name)
    assert fault.endswith(claim) or f"{claim}" in fault
    assert "hunter2" not in fault


@pytest.mark.parametrize("protocol", ["", "TLS", "SASL", "SSL_SASL", "CLEAR"])
def test_an_unknown_protocol_is_refused(protocol: str) -> None:
    faults_of({"listener.security.protocol.map": f"IN:SASL_SSL,SSL:SSL,OUT:{protocol}"})


def test_a_bad_value_names_the_prefixed_setting_once() -> None:
    (fault,) = faults_of({"listener.name.in.connections.max.reauth.ms": "soon"})
    assert fault.startswith("listener.name.in.connections.max.reauth.ms is 'soon', but must be")


def test_the_brokers_listener_is_named_by_itself_or_by_its_protocol() -> None:
    assert broker().inter_broker_listener == "IN"
    assert broker(security_inter_broker_protocol="SSL").inter_broker_listener == "SSL"
    assert broker(inter_broker_listener_name="out").inter_broker_listener == "OUT"
    both = {"inter.broker.listener.name": "IN", "security.inter.broker.protocol": "SSL"}
    assert faults_of(both) == (
        "inter.broker.listener.name and security.inter.broker.protocol are both given.",
    )
    assert faults_of({"security.inter.broker.protocol": "PLAINTEXT"}) == (
        "security.inter.broker.protocol is PLAINTEXT, which is not in listeners.",
    )


@pytest.mark.parametrize(
    ("more", "claim"),
    [
        ({"sasl.mechanism.inter.broker.protocol": ""}, "must be given: IN has several mechanisms"),
        ({"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"}, "which is not enabled on IN"),
        (
            {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"},
            "listener.name.in.scram-sha-512.sasl.jaas.config must have the username",
        ),
        (
            {"listener.name.in.plain.sasl.jaas.config": USERS.replace("password", "pass")},
            "listener.name.in.plain.sasl.jaas.config must have the username and the password",
        ),
    ],
)
def test_brokers_must_be_able_to_log_in(more: dict[str, str], claim: str) -> None:
    (fault,) = faults_of(more)
    assert claim in fault


def test_the_only_mechanism_is_the_brokers() -> None:
    config = broker_from(
        GIVEN | {"sasl.enabled.mechanisms": "PLAIN", "sasl.mechanism.inter.broker.protocol": ""}
    )
    assert config.inter_broker_mechanism == "PLAIN"
    plain = broker_from(GIVEN | {"inter.broker.listener.name": "OUT"})
    assert plain.inter_broker_listener == "OUT"


def test_no_secret_is_shown() -> None:
    config = broker()
    assert config.layers[-1].given["ssl.key.password"].text == "hunter1"  # what is hidden is there
    for text in (f"{config}", f"{config.layers}", f"{list(config.describe())}", config.digest()):
        assert "hunter" not in text
    jaas = config.listener("IN").jaas("PLAIN")
    assert jaas is not None
    assert "hunter" not in f"{jaas}"


def test_a_prefixed_setting_is_described_under_its_whole_name() -> None:
    found = {each.name: each for each in broker().describe()}
    assert found["listener.name.in.plain.sasl.jaas.config"].text == HIDDEN
    assert found["listener.name.in.plain.sasl.jaas.config"].row.name == "sasl.jaas.config"
    assert found["connections.max.reauth.ms"].text == "0"


def test_a_prefixed_setting_is_changed_by_a_restart() -> None:
    name = "listener.name.in.ssl.key.password"
    with pytest.raises(ConfigError, match=f"{re.escape(name)} cannot be changed while"):
        with_dynamic(broker(), [layer_of(Source.DYNAMIC_BROKER_CONFIG, {name: "hunter9"})])


def test_a_changed_secret_or_prefixed_setting_changes_the_digest() -> None:
    same = {broker().digest(), broker().digest()}
    others = {
        broker(ssl_key_password="hunter4").digest(),
        broker(**{"listener.name.in.ssl.key.password": "hunter1"}).digest(),
        broker(**{"listener.name.in.ssl.keystore.location": "/all.pem"}).digest(),
        broker(**{"listener.name.in.plain.sasl.jaas.config": USERS.replace("3", "5")}).digest(),
    }
    assert (len(same), len(others | same)) == (1, 5)


# JAAS


def test_a_jaas_text_gives_its_options() -> None:
    jaas = parse_jaas(
        f'\n{PLAIN}\n  Required username=broker \'password\'="a \\"b\\" \\101\\n;="'
        '\n user_alice=\'it is "hers"\' "user_a b"="c" ; \n'
    )
    assert jaas.mechanisms == ("PLAIN",)
    assert (jaas.username, jaas.password) == ("broker", 'a "b" A\n;=')
    assert jaas.users == {"alice": 'it is "hers"', "a b": "c"}
    assert parse_jaas(f"{SCRAM} required;").username is None


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("", "must begin with one of"),
        ('com.sun.security.auth.module.JndiLoginModule required user="hunter2";', "must begin"),
        (f'"{PLAIN}x" required;', "must begin with one of"),
        (f"{PLAIN};", "must have one of required"),
        (f'{PLAIN} username="hunter2";', "must have one of required"),
        (f'{PLAIN} required username="hunter2"', "must end in a semicolon"),
        (f'{PLAIN} required username "hunter2";', "as its option 1"),
        (f'{PLAIN} required username="a" password=;', "as its option 2"),
        (f'{PLAIN} required a="hunter2" a="hunter2";', "gives its option 2 twice"),
        (f'{PLAIN} required a="hunter2;', "cannot be read from its character"),
        (f"{PLAIN} required a=b; {SCRAM} required;", "as its option 2"),
    ],
)
def test_another_text_is_refused_without_being_repeated(text: str, claim: str) -> None:
    with pytest.raises(ValueError, match=claim) as caught:
        parse_jaas(text)
    assert "hunter2" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for whole in (text, f"{SCRAM} required {text};"):
        with contextlib.suppress(ValueError):
            assert parse_jaas(whole).mechanisms


@given(st.dictionaries(st.from_regex("[a-z_]{1,9}", fullmatch=True), st.text()))
def test_quoted_options_are_read_as_they_were_written(options: dict[str, str]) -> None:
    def quoted(text: str) -> str:
        return "".join(f"\\{ord(each):03o}" if each in '"\\\r\n' else each for each in text)

    given = " ".join(f'{name}="{quoted(text)}"' for name, text in options.items())
    assert parse_jaas(f"{TOKENS} required {given};").options == options
