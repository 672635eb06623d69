"""The file with what secures a read's connections: secrets are in no option, as Spark shows those.

The driver and each task read it on their own host, so that Spark passes no secret on either.
"""

from __future__ import annotations

from typing import Any

from kdist.client.security import security_of
from kdist.client.settings import read_settings
from kdist.config.client_security import SecuritySettings
from kdist.config.faults import raise_if_any
from kdist.config.texts import parse_properties
from kdist.errors import UserError
from kdist.runtime.disk import Disk


def read_security(path: str | None) -> dict[str, Any]:
    """The settings in the file, by attribute, none without a file; `UserError` if it is wrong."""
    if path is None:
        return {}
    try:
        text = Disk().read(path).decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read on this host: {error.strerror}") from None
    properties = parse_properties(text, path)
    raise_if_any(properties.faults)
    given = {name: each.text for name, each in properties.given.items()}
    try:
        return security_of(read_settings(SecuritySettings, given, "a read")[0])
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
