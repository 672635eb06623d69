"""The keys that sign bearer tokens (JWKS), read again and again; by them tokens are believed.

Keys that were read stay in use while the issuer cannot be reached. A token that names a key which
is not known has the keys read at once, as the issuer may have a new one, but only once a minute for
each name, of which few are remembered: anybody can make up names. That token itself is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kdist.config.security import SaslSettings
from kdist.runtime.process import Process
from kdist.security.sasl import Authenticated
from kdist.security.tokens import KEYS_BYTES_MAX, Keys, TokenRules, UnknownKey, read_keys, validate

logger = logging.getLogger(__name__)

_UNKNOWN_MAX = 16
_ASK_AGAIN_S = 60.0

Fetch = Callable[[str, int], bytes]
"""The content of a URL of at most so many bytes, as `network.documents.fetch`."""


class TokenKeys:
    """A listener's. Owner: the broker."""

    def __init__(
        self, settings: SaslSettings, reserved: frozenset[str], process: Process, fetch: Fetch
    ) -> None:
        """`reserved`: names that no token may claim."""
        assert settings.oauthbearer_jwks_endpoint_url, "the settings are checked"
        assert settings.oauthbearer_expected_issuer, "the settings are checked"
        self._url = settings.oauthbearer_jwks_endpoint_url
        self._settings = settings
        self._rules = TokenRules(
            settings.oauthbearer_expected_issuer,
            frozenset(settings.oauthbearer_expected_audience),
            reserved,
            settings.oauthbearer_clock_skew_seconds,
            settings.oauthbearer_sub_claim_name,
            settings.oauthbearer_scope_claim_name,
        )
        self._process = process
        self._fetch = fetch
        self._keys: Keys = {}
        self._asked_s: dict[str, float] = {}  # when an unknown key's name last had them read
        self._is_wanted = asyncio.Event()

    def validate(self, token: str) -> Authenticated:
        """Whose the token is; `AuthenticationFailed` if it is no good."""
        try:
            return validate(token, self._rules, self._keys, self._process.clock.now_ms())
        except UnknownKey as error:
            self._ask_for(error.key_id)
            raise

    def _ask_for(self, key_id: str) -> None:
        now_s, asked_s = self._process.loop.time(), self._asked_s
        for each in [name for name, at_s in asked_s.items() if now_s - at_s >= _ASK_AGAIN_S]:
            del asked_s[each]
        if key_id not in asked_s and len(asked_s) < _UNKNOWN_MAX:
            asked_s[key_id] = now_s
            self._is_wanted.set()

    async def run(self) -> None:
        """Read the keys, for as long as the broker runs."""
        settings = self._settings
        first_ms = settings.oauthbearer_jwks_endpoint_retry_backoff_ms
        backoff_ms = first_ms
        while True:
            self._is_wanted.clear()
            if await self._read():
                backoff_ms, wait_ms = first_ms, settings.oauthbearer_jwks_endpoint_refresh_ms
            else:
                wait_ms = backoff_ms
                most_ms = settings.oauthbearer_jwks_endpoint_retry_backoff_max_ms
                backoff_ms = min(2 * backoff_ms, most_ms)
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._is_wanted.wait()
            except TimeoutError:
                pass

    async def _read(self) -> bool:
        found: list[bytes] = []
        try:
            await self._process.blocking(
                lambda: found.append(self._fetch(self._url, KEYS_BYTES_MAX))
            )
            keys = read_keys(found[0])
        except (OSError, ValueError) as error:
            logger.warning("the keys of tokens cannot be read from %s: %s", self._url, error)
            return False
        if keys.keys() != self._keys.keys():
            logger.info("%d keys of tokens are read from %s", len(keys), self._url)
        self._keys = keys
        return True
