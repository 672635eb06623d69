"""JAAS texts, Kafka's form of SASL credentials: one login module and its options (pure).

    org.apache.kafka.common.security.plain.PlainLoginModule required
        username="broker" password="..." user_alice="..." user_bob="...";

Exactly three modules are known, and nothing is ever loaded: a text that names a class has been the
door to three holes in Apache Kafka. `username` and `password` are what this side logs in with,
`user_NAME` a password that a server accepts. The text is secret, so no sentence repeats it.

Source: Apache Kafka's `JaasConfig`, which reads it with Java's `StreamTokenizer`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MODULES: dict[str, tuple[str, ...]] = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": ("OAUTHBEARER",),
}
"""The login modules, each with the mechanisms that it serves."""

_FLAGS = ("required", "requisite", "sufficient", "optional")
_USER = "user_"
_TOKEN = re.compile(
    r"\s*(?:"
    r'"(?P<double>(?:[^"\\\r\n]|\\[^\r\n])*)"'
    r"|'(?P<single>(?:[^'\\\r\n]|\\[^\r\n])*)'"
    r"|(?P<word>[A-Za-z_$][A-Za-z0-9_$.-]*)"
    r"|(?P<mark>[=;]))",
)
_ESCAPE = re.compile(r"\\([0-3][0-7]{2}|[0-7]{1,2}|.)")
_SHORT = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class Jaas:
    """A login module's mechanisms and options."""

    mechanisms: tuple[str, ...]
    options: Mapping[str, str] = field(repr=False)

    @property
    def username(self) -> str | None:
        """Whom this side logs in as."""
        return self.options.get("username")

    @property
    def password(self) -> str | None:
        return self.options.get("password")

    @property
    def users(self) -> dict[str, str]:
        """The passwords that a server accepts, by user."""
        return {
            name.removeprefix(_USER): text
            for name, text in self.options.items()
            if name.startswith(_USER)
        }


def parse_jaas(text: str) -> Jaas:
    """`ValueError` with a claim that follows the setting's name, such as "has ..."."""
    tokens = _tokens(text)
    module = _text(tokens, 0)
    if module not in MODULES:
        raise ValueError(f"must begin with one of {', '.join(MODULES)}")
    if (_text(tokens, 1) or "").lower() not in _FLAGS:
        raise ValueError(f"must have one of {', '.join(_FLAGS)} after the class")
    if tokens[-1] != ("mark", ";"):
        raise ValueError("must end in a semicolon")
    return Jaas(MODULES[module], _options(tokens[2:-1]))


def _options(tokens: list[tuple[str, str]]) -> dict[str, str]:
    options: dict[str, str] = {}
    for at in range(0, len(tokens), 3):
        name, value = _text(tokens, at), _text(tokens, at + 2)
        if name is None or value is None or tokens[at + 1] != ("mark", "="):
            raise ValueError(f'must have name="value" as its option {at // 3 + 1}')
        if name in options:
            raise ValueError(f"gives its option {at // 3 + 1} twice")
        options[name] = value
    return options


def _text(tokens: list[tuple[str, str]], at: int) -> str | None:
    """The word or quoted text there; None if there is none."""
    kind, text = tokens[at] if at < len(tokens) else ("mark", "")
    return None if kind == "mark" else text


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"cannot be read from its character {at + 1} on")
        kind = str(found.lastgroup)
        is_quoted = kind in ("single", "double")
        tokens.append((kind, _ESCAPE.sub(_meant, found[kind]) if is_quoted else found[kind]))
        at = found.end()
    return tokens


def _meant(found: re.Match[str]) -> str:
    escaped = found[1]
    return (
        chr(int(escaped, 8))
        if escaped.isdigit() and escaped < "8"
        else _SHORT.get(escaped, escaped)
    )
