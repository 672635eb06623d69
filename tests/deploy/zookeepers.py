"""What ZooKeeper servers say of themselves."""

from __future__ import annotations

from collections.abc import Iterable

from tests.deploy.deployed import Cluster, Member

UNIT = "kdist-zookeeper.service"


def ask(host: Member, command: str) -> str:
    """The answer to a four-letter command; empty from a server that is down.

    Only the four letters are sent, without a newline: if the server closes a connection with an
    unread byte, the kernel resets it, and the answer is sometimes lost.
    """
    client = f"{host['kdist_address']} {host['kdist_ports']['zookeeper_client']}"
    return str(host.shell.run(f"printf {command} | nc -w 5 {client}").stdout).strip()


def figures(host: Member) -> dict[str, str]:
    """The server's metrics."""
    return dict(line.split("\t", 1) for line in ask(host, "mntr").splitlines() if "\t" in line)


def states(cluster: Cluster) -> dict[Member, str]:
    """Each server's part in the ensemble: `leader`, `follower` or `standalone`; "" of the others,
    which do not serve.
    """
    return {host: figures(host).get("zk_server_state", "") for host in cluster.zookeepers}


def is_whole(cluster: Cluster) -> bool:
    """Whether every server serves."""
    return "" not in states(cluster).values()


def leader(cluster: Cluster) -> Member:
    """The ensemble's leader, or the server that stands alone."""
    (found,) = [h for h, state in states(cluster).items() if state in ("leader", "standalone")]
    return found


def processes(servers: Iterable[Member]) -> dict[Member, str]:
    """The pid of each server's main process; "0" while none runs."""
    return {host: host.unit(UNIT, "MainPID")["MainPID"] for host in servers}
