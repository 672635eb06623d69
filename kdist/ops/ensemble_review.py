"""Whether servers of a ZooKeeper ensemble may begin, or would undo what others know (pure).

A majority of servers without data, or with data of the day they were stopped, elects one of its
own. The other servers would discard their data to follow it: all of it if the leader has none, or
all changes since the leader was stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from kdist.errors import UserError


class Server(NamedTuple):
    """A host as it was found: whether it has been in an ensemble, and was running ever since."""

    host: str
    has_data: bool
    goes_on: bool


def review(members: Sequence[str], found: Collection[Server]) -> str | None:
    """Why the members may not begin; None if they may.

    Members that were not looked at count as running. Hosts that are no members any more may have
    newer data than those that are.
    """
    seen = [server for server in found if server.host in members]
    blank = [server.host for server in seen if not server.has_data]
    late = [server.host for server in seen if not (server.has_data and server.goes_on)]
    left = [each.host for each in found if each.host not in members and each.has_data]
    known = [host for host in (*members, *left) if host not in blank]
    ahead = [host for host in known if host not in late]
    minority = len(members) // 2
    if not (known and len(blank) > minority) and not (ahead and len(late) > minority):
        return None
    return (
        f"{', '.join(late)} would begin without data, or with what they knew when they were "
        f"stopped: a majority that {', '.join(ahead or known)} would have to follow, and all that "
        "came since would be lost"
    )


def read_servers(rows: Sequence[Mapping[str, Any]]) -> list[Server]:
    """Servers as a playbook found them. `UserError` if a row lacks something."""
    try:
        return [Server(str(r["host"]), bool(r["has_data"]), bool(r["goes_on"])) for r in rows]
    except (KeyError, TypeError) as error:
        raise UserError(f"this does not describe servers: {error!r}") from None
