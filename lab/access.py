"""How to reach the hosts: keys, and the ssh_config for ssh, Ansible and testinfra."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab import network
from lab.hosts import Description
from lab.place import Place
from lab.shell import run, succeeds

# ssh's control sockets are in the lab's directory, and a Unix socket's path has at most 107 bytes:
# subtract `/ssh/`, a hash of 40 digits, and the 17 bytes that ssh adds while it creates a socket.
HOME_LENGTH_MAX = 107 - len("/ssh/") - 40 - 17


def make(place: Place, description: Description) -> None:
    """Generate the keys that do not exist yet, and rewrite known_hosts and the ssh_config."""
    place.ssh.mkdir(parents=True, exist_ok=True)
    place.ssh.chmod(0o700)
    for name in ("key", "host_key"):
        if not (place.ssh / f"{name}.pub").exists():
            (place.ssh / name).unlink(missing_ok=True)
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", place.ssh / name)
    host_key = (place.ssh / "host_key.pub").read_text(encoding="utf-8")
    (place.ssh / "known_hosts").write_text(known_hosts(description, host_key), encoding="utf-8")
    place.ssh_config.write_text(ssh_config(place, description), encoding="utf-8")


def known_hosts(description: Description, host_key: str) -> str:
    """The known_hosts file: all hosts of a lab share one host key (pure)."""
    names = [name for host in description.hosts for name in (host.name, str(host.address))]
    kind, key, *_ = host_key.split()
    return f"{','.join(names)} {kind} {key}\n"


def ssh_config(place: Place, description: Description) -> str:
    """The ssh_config (pure). Commands share one connection per host, kept open for a minute."""
    lines = [
        "# Written by `lab up`. The hosts are in a network of their own: `python -m lab run`.",
        *(f"Host {host.name}\n    HostName {host.address}" for host in description.hosts),
        "Host *",
        "    User root",
        f"    IdentityFile {place.ssh / 'key'}",
        "    IdentitiesOnly yes",
        "    BatchMode yes",
        f"    UserKnownHostsFile {place.ssh / 'known_hosts'}",
        "    StrictHostKeyChecking yes",
        "    UpdateHostKeys no",
        "    ConnectTimeout 5",
        "    ServerAliveInterval 5",
        "    ServerAliveCountMax 6",
        "    ControlMaster auto",
        f"    ControlPath {place.ssh}/%C",
        "    ControlPersist 60s",
    ]
    return "\n".join(lines) + "\n"


def ssh_command(place: Place, host: str, command: Sequence[str]) -> list[str | Path]:
    """The command line that runs a command on the host by ssh (pure)."""
    return network.inside(place, "ssh", "-F", place.ssh_config, host, *command)


def forget(place: Place, host: str) -> None:
    """Close the shared connection to a host that went down: the next command would hang on it."""
    succeeds("ssh", "-F", place.ssh_config, "-O", "exit", host)


def run_inside(place: Place, command: Sequence[str | Path]) -> int:
    """Run a command in the lab's network, attached to this terminal; return its exit status."""
    network.refuse_if_down(place)
    return subprocess.run(command, check=False).returncode


def remove(place: Place) -> None:
    """Remove the keys and the ssh_config."""
    place.ssh_config.unlink(missing_ok=True)
    if place.ssh.is_dir():
        shutil.rmtree(place.ssh)
