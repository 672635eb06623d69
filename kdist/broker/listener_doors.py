"""What stands before the handler of a listener's requests, and how brokers pass it at each other's.

protocol               who a peer is
PLAINTEXT              nobody knows: `User:ANONYMOUS`
SSL                    whom its certificate names; without one, `User:ANONYMOUS`
SASL_PLAINTEXT, _SSL   who it has proved to be, by a mechanism (`Gate`)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from kdist.broker.authentication import Gate, GateSettings, GateShared, Mechanism
from kdist.broker.context import BrokerContext
from kdist.broker.measures import Measures
from kdist.broker.stored_users import StoredUsers
from kdist.config.security import ListenerSecurity, SaslSettings
from kdist.errors import UserError
from kdist.model import Principal
from kdist.network.client_security import ClientSecurity, Sasl, with_password
from kdist.network.connection import Connection, Handler
from kdist.network.tls import ServerTls
from kdist.network.tls_contexts import TlsContexts
from kdist.security.names_of_certificates import MappingRules, name_of_certificate
from kdist.security.principals import parse_super_users
from kdist.security.sasl import OAUTHBEARER, PLAIN, OAuthServer, PlainServer, ServerExchange
from kdist.security.scram import HASHES

logger = logging.getLogger(__name__)


class Doors:
    """All listeners'. Owner: the broker. `users` have credentials of SCRAM."""

    def __init__(self, context: BrokerContext, users: StoredUsers, measures: Measures) -> None:
        """Raises `UserError` if certificates, keys or mapping rules cannot be used."""
        self._config = context.config
        self._process = context.process
        self._users = users
        now_ms, brokers = context.process.clock.now_ms, self._config.inter_broker_listener
        self._rules: dict[str, MappingRules] = {}
        self._contexts: dict[str, TlsContexts] = {}
        for name, listener in self._config.listeners.items():
            if listener.tls is None:
                continue
            try:
                self._rules[name] = _rules_of(listener.tls.principal_mapping_rules)
                self._contexts[name] = TlsContexts(
                    *(name, listener.tls, context.files.read, now_ms, measures.tls[name,]),
                    is_between_brokers=name == brokers,
                )
            except UserError as fault:
                raise UserError(f"listener {name}: {fault}") from fault

    def begin(self) -> None:
        """Look for renewed certificates, as long as the broker runs."""
        for contexts in self._contexts.values():
            contexts.begin(self._process)

    def end(self) -> None:
        for contexts in self._contexts.values():
            contexts.end()

    def tls(self, listener: str) -> ServerTls | None:
        """How the listener's connections begin TLS; None: they are in clear."""
        found = self._contexts.get(listener)
        if found is None:
            return None
        limits = self._config.authentication
        return found.server._replace(
            handshake_s=limits.authentication_timeout_ms / 1000,
            handshakes_max=limits.unauthenticated_connections_max,
            handshakes_per_host_max=limits.unauthenticated_connections_max_per_ip,
        )

    def before(
        self, listener: str, inner: Handler, shared: GateShared, *, is_for_brokers: bool
    ) -> Handler:
        """The handler of a listener's connections; `inner` is that of their requests.

        `is_for_brokers`: brokers are told of their APIs there, before it is known who they are.
        """
        security = self._config.listener(listener)
        if security.sasl is not None:
            return self._gate(security, inner, shared, is_for_brokers=is_for_brokers)
        if security.tls is not None:
            return CertificateReader(inner, self._rules[listener])
        return inner

    def _gate(
        self,
        listener: ListenerSecurity,
        inner: Handler,
        shared: GateShared,
        *,
        is_for_brokers: bool,
    ) -> Gate:
        limits = self._config.authentication
        settings = GateSettings(
            self._mechanisms(listener),
            is_for_brokers,
            limits.sasl_server_max_receive_size,
            limits.connection_failed_authentication_delay_ms,
        )
        gate = Gate(listener.name, inner, settings, shared)
        self._users.on_removed.append(gate.disconnect)
        return gate

    def _mechanisms(self, listener: ListenerSecurity) -> Mapping[str, Mechanism]:
        return {
            name: Mechanism(self._exchange(name, listener), settings.connections_max_reauth_ms)
            for name, settings in listener.mechanisms.items()
        }

    def _exchange(self, mechanism: str, listener: ListenerSecurity) -> Callable[[], ServerExchange]:
        """What begins an exchange."""
        if mechanism in HASHES:
            return partial(self._users.begin, mechanism)
        if mechanism == PLAIN:
            jaas = listener.jaas(PLAIN)
            passwords = {} if jaas is None else jaas.users
            return lambda: PlainServer(passwords.get)
        assert mechanism == OAUTHBEARER, "there is no other"
        assert listener.sasl is not None, "it has a mechanism"
        return self._tokens(listener.name, listener.sasl)

    def _tokens(self, listener: str, settings: SaslSettings) -> Callable[[], ServerExchange]:
        try:
            # Late: they take long, and the first needs the extra `security`.
            from kdist.broker.token_keys import TokenKeys
            from kdist.network.documents import fetch
        except ModuleNotFoundError as error:
            raise UserError(f"OAUTHBEARER needs {error.name}: install kdist[security]") from error
        keys = TokenKeys(settings, self._reserved(), self._process, fetch)
        self._process.start(keys.run(), f"keys of tokens of {listener}")
        return lambda: OAuthServer(keys.validate)

    def _reserved(self) -> frozenset[str]:
        """The names that no token may claim: they may do everything."""
        super_users = parse_super_users(self._config.authorization.super_users)
        own = self.of_brokers_jaas()
        return frozenset((*(each.name for each in super_users), *([own[0]] if own else ())))

    # Between brokers

    def of_brokers_jaas(self) -> tuple[str, str] | None:
        """The name and the password with which brokers log in to each other, if they do."""
        mechanism = self._config.inter_broker_mechanism
        listener = self._config.listener(self._config.inter_broker_listener)
        if listener.sasl is None or mechanism is None:
            return None
        jaas = listener.jaas(mechanism)
        assert jaas is not None, "the settings are checked"
        return jaas.username or "", jaas.password or ""

    def security_of_brokers(self) -> ClientSecurity | None:
        """How a broker connects to another; None: in clear, and as nobody."""
        contexts = self._contexts.get(self._config.inter_broker_listener)
        sasl: Sasl | None = None
        if (own := self.of_brokers_jaas()) is not None:
            mechanism = self._config.inter_broker_mechanism
            assert mechanism is not None, "there are credentials for it"
            sasl = with_password(mechanism, *own, self._process.secrets)
        if sasl is None and contexts is None:
            return None
        return ClientSecurity(sasl, contexts.client if contexts is not None else None)


class CertificateReader:
    """The `Handler` of a listener with TLS and without SASL: reads whose certificate it is shown.

    A certificate that no rule makes a user of is refused; none is anybody's.
    """

    def __init__(self, inner: Handler, rules: MappingRules) -> None:
        self._inner = inner
        self._rules = rules
        self.on_frame = inner.on_frame
        self.on_disconnect = inner.on_disconnect

    def on_connect(self, connection: Connection) -> None:
        """As of `Handler`, after the handshake."""
        certificate = connection.get_extra_info("peer_der")
        if certificate:
            user = self._user(certificate)
            if user is None:
                logger.info(
                    "closing the connection of %s: its certificate is nobody's", connection.peer
                )
                connection.abort()
                return
            connection.principal = Principal("User", user)
        self._inner.on_connect(connection)

    def _user(self, certificate: bytes) -> str | None:
        try:
            return self._rules.user(name_of_certificate(certificate)) or None
        except ValueError:
            return None


def _rules_of(text: str) -> MappingRules:
    try:
        return MappingRules(text)
    except ValueError as fault:
        raise UserError(f"ssl.principal.mapping.rules: {fault}") from fault
