"""What stands before the handler of a listener's requests, and how brokers pass it at each other's.

protocol               who a peer is
PLAINTEXT              nobody knows: `User:ANONYMOUS`
SSL                    whom its certificate names; without one, `User:ANONYMOUS`
SASL_PLAINTEXT, _SSL   who it has proved to be, by a mechanism (`Gate`)
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from kdist.broker.authentication import Gate, GateSettings, GateShared, Mechanism
from kdist.broker.stored_users import StoredUsers
from kdist.config.broker_config import BrokerConfig
from kdist.config.security import ListenerSecurity
from kdist.network.client_security import ClientSecurity, with_password
from kdist.network.connection import Handler
from kdist.security.sasl import PLAIN, PlainServer
from kdist.security.scram import HASHES


class Doors(NamedTuple):
    """Makes what stands before each listener's handler. `users` have credentials of SCRAM."""

    config: BrokerConfig
    users: StoredUsers
    shared: GateShared

    def before(self, listener: str, inner: Handler, *, is_for_brokers: bool) -> Handler:
        """The handler of a listener's connections; `inner` is that of their requests.

        `is_for_brokers`: brokers are told of their APIs there, before it is known who they are.
        """
        security = self.config.listener(listener)
        if security.sasl is None:
            return inner
        limits = self.config.authentication
        settings = GateSettings(
            self._mechanisms(security),
            is_for_brokers,
            limits.sasl_server_max_receive_size,
            limits.authentication_timeout_ms,
            limits.connection_failed_authentication_delay_ms,
            limits.unauthenticated_connections_max,
            limits.unauthenticated_connections_max_per_ip,
        )
        gate = Gate(listener, inner, settings, self.shared)
        self.users.on_removed.append(gate.disconnect)
        return gate

    def _mechanisms(self, listener: ListenerSecurity) -> Mapping[str, Mechanism]:
        return {
            name: self._mechanism(name, listener, settings.connections_max_reauth_ms)
            for name, settings in listener.mechanisms.items()
        }

    def _mechanism(self, name: str, listener: ListenerSecurity, reauth_ms: int) -> Mechanism:
        if name in HASHES:
            return Mechanism(partial(self.users.begin, name), reauth_ms)
        assert name == PLAIN, "the settings have no other"
        jaas = listener.jaas(PLAIN)
        passwords = {} if jaas is None else jaas.users
        return Mechanism(lambda: PlainServer(passwords.get), reauth_ms)


def security_of_brokers(config: BrokerConfig, rng: random.Random) -> ClientSecurity | None:
    """How a broker connects to another; None: in clear, and as nobody. `rng` makes nonces."""
    listener, mechanism = (
        config.listener(config.inter_broker_listener),
        config.inter_broker_mechanism,
    )
    if listener.sasl is None or mechanism is None:
        return None
    jaas = listener.jaas(mechanism)
    assert jaas is not None, "the settings are checked"
    assert jaas.username is not None, "the settings are checked"
    assert jaas.password is not None, "the settings are checked"
    return ClientSecurity(with_password(mechanism, jaas.username, jaas.password, rng))
