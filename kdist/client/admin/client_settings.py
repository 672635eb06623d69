"""The settings of an admin client, each declared once (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kdist.client import settings as shared
from kdist.client.cluster import RETRY_MS
from kdist.client.security import SecurityKeywords, client_security
from kdist.config.client_security import SecuritySettings
from kdist.config.declare import setting, settings
from kdist.config.kinds import int32
from kdist.network.client import ClientSettings


@settings
class AdminSettings(SecuritySettings):
    """All settings of an admin client."""

    bootstrap_servers: tuple[str, ...] = shared.bootstrap_servers()
    zk_connect: str = shared.zk_connect()
    client_id: str = setting(
        default="kdist-admin",
        subject="Connections",
        doc="The name of this client in the brokers' logs and metrics.",
    )
    request_timeout_ms: int32 = shared.request_timeout_ms()
    default_api_timeout_ms: int32 = setting(
        default=RETRY_MS,
        minimum=1,
        doc="How long a call retries after retriable errors. (Kafka's default is 60000. It is less "
        "here because a change that was sent is not sent again, so most of it is waiting for a "
        "broker that is gone.)",
    )

    @property
    def connections(self) -> ClientSettings:
        """Those of its connections."""
        return ClientSettings(
            self.client_id,
            request_timeout_ms=self.request_timeout_ms,
            security=client_security(self),
        )


class AdminKeywords(shared.ClientKeywords, SecurityKeywords, total=False):
    """The type of a dict of settings for `Admin`; what it takes by name."""

    default_api_timeout_ms: int


def read_settings(values: Mapping[str, Any]) -> AdminSettings:
    """The settings of an admin client; `UserError` for the first that is wrong."""
    return shared.read_settings(AdminSettings, values, "an admin client")[0]
