"""The bearer token by which a client authenticates: fetched, and renewed before it ends.

`file:` is a token that somebody else keeps up to date; from `https:` it is got by OAuth's client
credentials grant (RFC 6749, 4.4).
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote_plus, urlencode

from kdist.errors import ApiError, Error
from kdist.network.documents import fetch
from kdist.security.sasl import ClientExchange, OAuthClient

logger = logging.getLogger(__name__)

_ANSWER_BYTES_MAX = 64 << 10
_PATIENCE_S = 15.0
_USED_SHARE = 0.8  # of a token's life: then it is renewed, as by Kafka's clients


class Endpoint(NamedTuple):
    """Where a token comes from, and as whom it is asked for."""

    url: str
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"

    def read(self) -> dict[str, Any]:
        """OAuth's answer, or as if it were; it blocks. `OSError` if there is no token."""
        if self.url.startswith("file:"):
            text = fetch(self.url, _ANSWER_BYTES_MAX).decode(errors="replace").strip()
            return {"access_token": text}
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        user = f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret)}"
        headers = {
            "Authorization": f"Basic {base64.b64encode(user.encode()).decode()}",
            "Accept": "application/json",
        }
        text = fetch(
            self.url, _ANSWER_BYTES_MAX, form=urlencode(form).encode(), headers=headers
        ).decode(errors="replace")
        return _json_of(text)


class TokenSource:
    """One client's token. Owner: the loop. `now_s` is a wall clock."""

    def __init__(self, endpoint: Endpoint, now_s: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._now_s = now_s
        self._token = ""
        self._renew_at_s = self._ends_at_s = 0.0
        self._lock = asyncio.Lock()

    async def prepare(self) -> None:
        """Have a token that lasts; `ApiError` NETWORK_EXCEPTION, which may pass, if none is got."""
        async with self._lock:
            if self._now_s() < self._renew_at_s:
                return
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    self._take(await loop.run_in_executor(None, self._endpoint.read))
            except OSError as error:
                if self._now_s() >= self._ends_at_s:
                    why = f"no token to authenticate with: {error or 'no answer in time'}"
                    raise ApiError(Error.NETWORK_EXCEPTION, why) from error
                logger.warning(
                    "the token is not renewed, and still lasts: %s", error or "no answer in time"
                )

    def exchange(self) -> ClientExchange:
        """The exchange by the present token."""
        return OAuthClient(self._token)

    def _take(self, answer: dict[str, Any]) -> None:
        token = answer.get("access_token")
        if not isinstance(token, str) or not token:
            raise OSError(f"{self._endpoint.url}: it has no token")
        now_s = self._now_s()
        life_s = answer.get("expires_in")
        if not isinstance(life_s, int | float):
            ends_at_s = _json_of(_payload_of(token)).get("exp", now_s)
            life_s = ends_at_s - now_s if isinstance(ends_at_s, int | float) else 0
        self._token = token
        self._renew_at_s, self._ends_at_s = now_s + _USED_SHARE * life_s, now_s + life_s


def _payload_of(token: str) -> str:
    """The claims of a JWT as JSON, unchecked: that is the broker's matter. "" if it is none."""
    part = (*token.split("."), "")[1]
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode()
    except ValueError:
        return ""


def _json_of(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
