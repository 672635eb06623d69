"""The keys of tokens: read again and again, kept while the issuer is away, asked for in measure."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Coroutine
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kdist.broker.token_keys import TokenKeys
from kdist.config.security import SaslSettings
from kdist.security.sasl import Authenticated, AuthenticationFailed
from kdist.testing.virtual_clock import VirtualClock
from kdist.testing.virtual_loop import VirtualLoop
from kdist.testing.virtual_process import VirtualProcess

KEY = ec.generate_private_key(ec.SECP256R1())
SETTINGS = SaslSettings(
    oauthbearer_jwks_endpoint_url="https://issuer/keys",
    oauthbearer_expected_issuer="issuer",
    oauthbearer_expected_audience=("kdist",),
    oauthbearer_jwks_endpoint_refresh_ms=600_000,
)


def published(*names: str) -> bytes:
    """A set of keys with one key under these names."""
    reader: Any = jwt.get_algorithm_by_name("ES256")
    jwk = reader.to_jwk(KEY.public_key(), as_dict=True)
    return json.dumps({"keys": [{"kid": name, **jwk} for name in names]}).encode()


class Issuer:
    """Publishes keys, and has keys read by a `TokenKeys` on a loop in virtual time."""

    def __init__(self) -> None:
        self.loop = VirtualLoop(VirtualClock())
        self.process = VirtualProcess(self.loop, random.Random(1))
        self.content: bytes | OSError = published("one")
        self.reads = 0
        self.keys = TokenKeys(SETTINGS, frozenset({"broker"}), self.process, self.fetch)

    def fetch(self, url: str, bytes_max: int) -> bytes:
        assert (url, bytes_max) == ("https://issuer/keys", 1 << 20)
        self.reads += 1
        if isinstance(self.content, OSError):
            raise self.content
        return self.content

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        async def whole() -> None:
            running = asyncio.create_task(self.keys.run())
            try:
                await asyncio.sleep(1)
                await scenario
            finally:
                running.cancel()
                await asyncio.wait([running])

        self.loop.run_until_complete(self.process.run(whole()))
        self.loop.close()

    def user(self, key: str, name: str = "alice") -> Authenticated:
        """Whose a new token is that is signed by a key of this name."""
        now_s = self.process.clock.now_ms() / 1000
        claims = {"iss": "issuer", "aud": "kdist", "sub": name, "iat": now_s, "exp": now_s + 60}
        return self.keys.validate(jwt.encode(claims, KEY, "ES256", {"kid": key}))

    def refuses(self, key: str, name: str = "alice") -> bool:
        with pytest.raises(AuthenticationFailed):
            self.user(key, name)
        return True


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


async def test_a_token_is_believed_by_a_published_key_unless_its_name_is_reserved(
    issuer: Issuer,
) -> None:
    assert issuer.user("one").name == "alice"
    assert issuer.refuses("one", "broker")


async def test_keys_are_read_again_after_a_while(issuer: Issuer) -> None:
    issuer.content = published("two")
    await asyncio.sleep(599)
    assert issuer.reads == 1
    await asyncio.sleep(2)
    assert issuer.reads == 2
    assert issuer.user("two").name == "alice"
    assert issuer.refuses("one")


@pytest.mark.parametrize("content", [OSError("away"), b"{}", b"<html>", b'{"keys":[]}'])
async def test_keys_stay_while_the_issuer_gives_none(
    issuer: Issuer, content: bytes | OSError
) -> None:
    issuer.content = content
    await asyncio.sleep(700)
    assert issuer.reads > 5  # it is tried again, at ever longer intervals
    assert issuer.reads < 30
    assert issuer.user("one").name == "alice"
    issuer.content = published("two")
    await asyncio.sleep(11)
    assert issuer.user("two").name == "alice"


async def test_an_unknown_key_has_the_keys_read_at_once(issuer: Issuer) -> None:
    issuer.content = published("one", "two")
    assert issuer.refuses("two")
    await asyncio.sleep(1)
    assert issuer.user("two").name == "alice"


async def test_made_up_keys_have_the_keys_read_seldom(issuer: Issuer) -> None:
    for number in range(1000):
        assert issuer.refuses(f"made up {number}")
        assert issuer.refuses("made up")
        await asyncio.sleep(0.05)
    assert issuer.reads <= 17
    await asyncio.sleep(60)
    before = issuer.reads
    assert issuer.refuses("made up")
    await asyncio.sleep(1)
    assert issuer.reads == before + 1
