"""What a secured `kdist standalone` adds to its directory, and to the brokers' settings.

security/users.json     the users' passwords, made once; a changed one belongs here too
security/broker.pem     the brokers' key and certificate, made once
security/ca.pem         whom clients trust: not secret
client.properties, admin.properties, client.librdkafka    for clients; rewritten at each start

The brokers log in to each other, and clients to them, by SCRAM over TLS. `broker` and `admin` are
super users; `client` may do what ACLs allow. Each file with a password is its owner's alone to
read, and no password goes anywhere else.

Java's clients and kdist's take one file. librdkafka refuses Java's names for passwords and trusted
CAs, and Java has no others, so there is a second one for it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kdist.cli.standalone.certificate import issue
from kdist.client.admin.client_settings import read_settings
from kdist.config.security import ACL_AUTHORIZER
from kdist.config.texts import escape_properties
from kdist.errors import UserError
from kdist.network.client import ClientSettings
from kdist.runtime.files import Files

BROKER, ADMIN, CLIENT = "broker", "admin", "client"
MECHANISM = "SCRAM-SHA-512"
FOLDER = "security"
PROTOCOL = "SASL_SSL"
_USERS = (BROKER, ADMIN, CLIENT)
_PASSWORD_BITS = 192
_WRITTEN = "# Written by `kdist standalone` at each start: changes here do not last."


class Making(NamedTuple):
    """What passwords and certificates are made with: `rng` is one that nobody can foresee."""

    rng: random.Random
    now_ms: int


@dataclass(frozen=True)
class Security:
    """The secrets of the directory at `home`. Owner: the command."""

    home: str
    passwords: Mapping[str, str] = field(repr=False)
    now_ms: int

    @classmethod
    def of(cls, files: Files, home: str, making: Making) -> Security:
        """As kept in the directory, else new ones, which `save` writes. `UserError`."""
        path = f"{home}/{FOLDER}/users.json"
        if files.exists(path):
            return cls(home, _read(path, files.read(path)), making.now_ms)
        made = {name: f"{making.rng.getrandbits(_PASSWORD_BITS):048x}" for name in _USERS}
        return cls(home, made, making.now_ms)

    def save(self, files: Files, addresses: Sequence[str]) -> None:
        """Write what is missing, and the clients' files. The directory exists."""
        folder = f"{self.home}/{FOLDER}"
        if not files.exists(folder):
            files.make_directory(folder)
        if not files.exists(f"{folder}/users.json"):
            text = json.dumps(dict(self.passwords), indent=2)
            files.replace(f"{folder}/users.json", f"{text}\n".encode(), is_secret=True)
        if not (files.exists(self._trusted) and files.exists(self._own)):
            issued = issue(self.now_ms)
            files.replace(self._own, issued.own, is_secret=True)
            files.replace(self._trusted, issued.trusted)
        for path, lines in self._clients(addresses).items():
            text = "".join(f"{line}\n" for line in (_WRITTEN, *lines))
            files.replace(path, text.encode(), durable=False, is_secret=True)

    @property
    def of_brokers(self) -> dict[str, str]:
        """The brokers' settings."""
        return {
            "security.inter.broker.protocol": PROTOCOL,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.jaas.config": self._jaas(BROKER),
            "ssl.keystore.location": self._own,
            "ssl.truststore.location": self._trusted,
            "authorizer.class.name": ACL_AUTHORIZER,
            "super.users": f"User:{BROKER};User:{ADMIN}",
        }

    @property
    def own_connections(self) -> ClientSettings:
        """Those by which the command asks whether a broker is ready: as a broker would."""
        return read_settings({"client_id": "kdist", **self._of_client(BROKER)}).connections

    def file_of(self, user: str) -> str:
        """The settings of a user's clients."""
        return f"{self.home}/{user}.properties"

    @property
    def client_files(self) -> dict[str, str]:
        """All clients' files, by what they are for."""
        own = {each: self.file_of(each) for each in (ADMIN, CLIENT)}
        return own | {"librdkafka": self.file_of_librdkafka}

    @property
    def file_of_librdkafka(self) -> str:
        """The client's settings for kcat and whatever else is made of librdkafka."""
        return f"{self.home}/{CLIENT}.librdkafka"

    @property
    def _trusted(self) -> str:
        return f"{self.home}/{FOLDER}/ca.pem"

    @property
    def _own(self) -> str:
        return f"{self.home}/{FOLDER}/broker.pem"

    def _clients(self, addresses: Sequence[str]) -> dict[str, list[str]]:
        """The lines of each file. Only Java's form has escapes."""
        servers = {"bootstrap.servers": ",".join(addresses)}
        librdkafka = {
            **servers,
            "security.protocol": PROTOCOL,
            "ssl.ca.location": self._trusted,
            "sasl.mechanism": MECHANISM,
            "sasl.username": CLIENT,
            "sasl.password": self.passwords[CLIENT],
        }
        lines = {
            self.file_of(user): [
                escape_properties(*each) for each in (servers | self._of_client(user)).items()
            ]
            for user in (ADMIN, CLIENT)
        }
        lines[self.file_of_librdkafka] = [f"{name}={text}" for name, text in librdkafka.items()]
        return lines

    def _of_client(self, user: str) -> dict[str, str]:
        return {
            "security.protocol": PROTOCOL,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self._trusted,
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": self._jaas(user),
        }

    def _jaas(self, user: str) -> str:
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return f'{module} required username="{user}" password="{self.passwords[user]}";'


def _read(path: str, content: bytes) -> dict[str, str]:
    try:
        found = json.loads(content)
        passwords = {name: found[name] for name in _USERS}
    except (ValueError, KeyError, TypeError):
        passwords = {}
    if not all(map(_is_plain, passwords.values())):
        passwords = {}
    if not passwords:
        names = ", ".join(_USERS)
        raise UserError(f"{path} is damaged: it has passwords, of letters and digits, of {names}")
    return passwords


def _is_plain(password: object) -> bool:
    """Whether it stands for itself in JAAS texts, properties files and librdkafka's."""
    return isinstance(password, str) and password.isascii() and password.isalnum()
