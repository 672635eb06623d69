"""How a flow's connections to its source and its target are secured."""

from __future__ import annotations

from typing import NamedTuple

from kdist.client.security import client_security
from kdist.config.client_security import SecuritySettings
from kdist.config.mirror import Flow
from kdist.errors import UserError
from kdist.network.client_security import ClientSecurity


class Ends(NamedTuple):
    """What connections to either cluster need to know."""

    source: ClientSecurity | None
    target: ClientSecurity | None


def security_of_ends(flow: Flow) -> Ends:
    """`UserError` if settings do not fit each other, or a file cannot be used."""
    return Ends(
        _security(f"flow.{flow.name}.source", flow.source_security),
        _security(f"flow.{flow.name}.target", flow.target_security),
    )


def _security(end: str, given: SecuritySettings) -> ClientSecurity | None:
    try:
        return client_security(given)
    except UserError as error:
        raise UserError(f"{end}: {error}") from None
