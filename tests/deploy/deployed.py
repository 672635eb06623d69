"""A site as its inventory describes it: its hosts, and the brokers and clusters they must run.

Ansible reads the inventory once, with all derived variables. Tests take their expectations from it
alone, so the same tests work for the lab, for Vagrant's machines and for a real site.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import testinfra
import yaml
from testinfra.host import Host

ROOT = Path(__file__).resolve().parents[2]
KDIST = "/opt/kdist/current/bin/kdist"

_BIN = Path(sys.executable).parent
# A host's variables, rendered; the `debug` module does not connect to the host.
_VARIABLES = (
    "{% set names = query('ansible.builtin.varnames', '^kdist_',"
    " '^ansible_(host|user|port|become|ssh_common_args|ssh_private_key_file)$') %}"
    "{{ dict(names | zip(query('ansible.builtin.vars', *names)))"
    " | combine({'group_names': group_names}) }}"
)


def ansible_environment() -> dict[str, str]:
    """An environment with this virtual environment's programs on PATH, and with Mitogen's strategy
    if it is installed: plays then take a quarter of the time."""
    found = {**os.environ, "PATH": f"{_BIN}:{os.environ['PATH']}", "ANSIBLE_NOCOLOR": "1"}
    mitogen = importlib.util.find_spec("ansible_mitogen")
    if mitogen is not None and mitogen.submodule_search_locations:
        package = Path(next(iter(mitogen.submodule_search_locations)))
        found["ANSIBLE_STRATEGY_PLUGINS"] = str(package / "plugins" / "strategy")
        found["ANSIBLE_STRATEGY"] = "mitogen_linear"
    return found


@dataclass(frozen=True, eq=False, repr=False)
class Member:
    """A host of the inventory: its variables, and a shell on it."""

    name: str
    given: Mapping[str, Any]
    shell: Host

    def __repr__(self) -> str:
        return self.name

    def __getitem__(self, variable: str) -> Any:
        return self.given[variable]

    def says(self, command: str) -> str:
        """The output of a command, which must succeed."""
        return self.shell.check_output(command).strip()

    def works(self, command: str) -> bool:
        """Whether a command exits with 0."""
        return bool(self.shell.run(command).rc == 0)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The host's local facts of kdist: `capabilities` and `not_applied`."""
        found: dict[str, Any] = json.loads(self.says("/etc/ansible/facts.d/kdist.fact"))
        return found

    def could_not(self, *words: str) -> bool:
        """Whether a role has recorded that something matching could not be applied here."""
        sentences = self.facts["not_applied"]
        return any(all(word in sentence for word in words) for sentence in sentences)

    def unit(self, name: str, *properties: str) -> dict[str, str]:
        """The unit's properties, from systemd."""
        shown = self.says(f"systemctl show --property={','.join(properties)} {shlex.quote(name)}")
        return dict(line.split("=", 1) for line in shown.splitlines())


@dataclass(frozen=True, repr=False)
class Broker:
    """A broker that must be running: the one of a disk of a host."""

    host: Member
    instance: str
    id: int
    port: int
    metrics_port: int
    mount: str
    log_dir: str
    device: str

    def __repr__(self) -> str:
        return f"{self.host}-{self.instance}"

    @property
    def unit(self) -> str:
        return f"kdist-broker@{self.instance}.service"

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"{self.host['kdist_address']}:{self.port}"

    @property
    def file(self) -> str:
        """The path of its settings file."""
        return f"/etc/kdist/broker-{self.instance}.properties"

    def pid(self) -> int:
        """The main process; 0 while none runs."""
        return int(self.host.unit(self.unit, "MainPID")["MainPID"])

    def health(self) -> dict[str, Any]:
        """Its own health report; empty while it does not answer."""
        url = f"http://{self.host['kdist_address']}:{self.metrics_port}/health"
        said = self.host.shell.run(f"curl -sS --max-time 10 {url}").stdout
        found: dict[str, Any] = json.loads(said) if said else {}
        return found

    @property
    def is_well(self) -> bool:
        """Whether it reports itself healthy."""
        return self.health().get("status") == "ok"


@dataclass(frozen=True, repr=False)
class Cluster:
    """The cluster of one datacenter: brokers that share a ZooKeeper ensemble."""

    datacenter: str
    brokers: tuple[Broker, ...]
    zookeepers: tuple[Member, ...]

    def __repr__(self) -> str:
        return self.datacenter

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    @property
    def hosts(self) -> tuple[Member, ...]:
        """The hosts that its brokers run on."""
        return tuple(dict.fromkeys(broker.host for broker in self.brokers))

    def asks(self, *arguments: str) -> str:
        """The output of a kdist command, run on a host of the cluster."""
        return self.hosts[0].says(shlex.join([KDIST, *arguments]))

    def remove(self, topic: str) -> None:
        """Delete a topic."""
        self.asks("topics", "delete", topic, "--yes", "--broker", self.bootstrap)


class Site:
    """All hosts of an inventory."""

    def __init__(self, inventory: Path) -> None:
        self.inventory = inventory
        self._sockets = tempfile.TemporaryDirectory(prefix="kdist-ssh-")  # removed with the site
        defaults = _role_defaults()
        self.hosts = tuple(
            self._member(name, defaults | given)
            for name, given in read_inventory(inventory).items()
        )

    @property
    def environment(self) -> str:
        """lab, vagrant, production."""
        return str(self.hosts[0]["kdist_environment"])

    def host(self, name: str) -> Member:
        return next(host for host in self.hosts if host.name == name)

    def group(self, name: str) -> list[Member]:
        """The hosts of a group."""
        return [host for host in self.hosts if name in host["group_names"]]

    @cached_property
    def brokers(self) -> list[Broker]:
        return [
            Broker(host, **broker)
            for host in self.group("broker")
            for broker in host["kdist_brokers"]
        ]

    @property
    def widest(self) -> Cluster:
        """The cluster with the most brokers, for drills that need hosts with more than one."""
        return max(self.clusters, key=lambda cluster: len(cluster.brokers))

    @cached_property
    def clusters(self) -> list[Cluster]:
        """The clusters of all datacenters that have brokers."""
        centers = dict.fromkeys(broker.host["kdist_datacenter"] for broker in self.brokers)
        return [
            Cluster(
                center,
                tuple(b for b in self.brokers if b.host["kdist_datacenter"] == center),
                tuple(z for z in self.group("zookeeper") if z["kdist_datacenter"] == center),
            )
            for center in centers
        ]

    def _member(self, name: str, given: Mapping[str, Any]) -> Member:
        user, address = given.get("ansible_user", "root"), given.get("ansible_host", name)
        shell = testinfra.get_host(
            f"ssh://{user}@{address}",
            ssh_extra_args=given.get("ansible_ssh_common_args"),
            ssh_identity_file=given.get("ansible_ssh_private_key_file"),
            sudo=given.get("ansible_become", False),
            controlpath=None if given["kdist_environment"] == "lab" else self._socket(),
        )
        return Member(name, given, shell)

    def _socket(self) -> str:
        """The path of ssh's control sockets; testinfra formats it, and ssh expands %C.

        The lab's ssh_config sets a path of its own, which `lab pull` uses to close connections.
        """
        return f"{self._sockets.name}/%%C"


def read_inventory(inventory: Path) -> dict[str, dict[str, Any]]:
    """Every host's variables, by name; ValueError if Ansible cannot read it."""
    command = [_BIN / "ansible", "--inventory", inventory, "all"]
    command += ["--module-name", "ansible.builtin.debug", "--args", f"msg={json.dumps(_VARIABLES)}"]
    quiet = {
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
        "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1",
        "ANSIBLE_STRATEGY": "linear",  # with Mitogen's the callback loses all hosts but one
    }
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=ansible_environment() | quiet,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"{inventory} cannot be read: {done.stderr or done.stdout}")
    (play,) = json.loads(done.stdout)["plays"]
    found: dict[str, dict[str, Any]] = {
        name: result["msg"] for name, result in play["tasks"][0]["hosts"].items()
    }
    return found


def _role_defaults() -> dict[str, Any]:
    """The roles' default values; templates are not rendered."""
    files = sorted((ROOT / "roles").glob("*/defaults/main.yml"))
    each = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
    return {name: value for defaults in each for name, value in (defaults or {}).items()}
