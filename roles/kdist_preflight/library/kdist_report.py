#!/usr/bin/python
"""The module that looks at a host and judges it for kdist, changing nothing.

What it means is decided in module_utils/kdist_report.py; here is what asks the host.
"""

from __future__ import annotations

import os
import platform
import pwd
import re
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kdist_report import REFUSED, rows, table

DOCUMENTATION = """
module: kdist_report
short_description: What a host has against what kdist wants
description: Looks at system, memory, time, disks and ports, and says what cannot be applied.
options:
  wanted: {type: dict, required: true, description: "Wanted: os, kernel, python, memory_mb..."}
  disks: {type: list, elements: dict, required: true, description: "Disks: id, device, state."}
  brokers: {type: list, elements: dict, required: true, description: "The kdist_brokers."}
  ports: {type: dict, required: true, description: Ports of other listeners by name.}
  address: {type: str, required: true, description: Where all of them listen.}
  capabilities: {type: dict, required: true, description: What kdist.fact prints.}
author: The kdist authors
"""

EXAMPLES = """
- name: Look at the host
  kdist_report:
    wanted: "{{ kdist_preflight_wanted }}"
    disks: "{{ kdist_disks }}"
    brokers: "{{ kdist_brokers }}"
    ports: {node_exporter: 9100}
    address: "{{ kdist_address }}"
    capabilities: "{{ ansible_facts.ansible_local.kdist.capabilities }}"
"""

RETURN = """
rows: {type: list, elements: dict, returned: always, description: "Rows of the table."}
table: {type: list, elements: str, returned: always, description: The rows as lines.}
refused: {type: list, elements: str, returned: always, description: Subjects that were refused.}
"""


def system() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    fields = {k: v.strip('"') for k, _, v in (line.partition("=") for line in lines)}
    return f"{fields.get('ID', '?')} {fields.get('VERSION_ID', '')}".strip()


def look_at_disk(disk: dict[str, Any]) -> dict[str, Any]:
    """Its size in bytes; 0 if it is absent."""
    shown = {"id": disk["id"], "device": disk["device"], "bytes": 0}
    try:
        number = os.stat(disk["device"]).st_rdev
        size = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/size").read_text()
        return {**shown, "bytes": int(size) * 512}
    except OSError:
        return shown


def has_address(address: str) -> bool:
    """Whether it is one of this host's: only then something can listen there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def users_of_ports(module: AnsibleModule) -> dict[int, str]:
    """Port to the unit, or else the program, that listens on it."""
    _, out, _ = module.run_command(["ss", "--no-header", "--listening", "--tcp", "-np"])
    users = {}
    for line in out.splitlines():
        port = int(line.split()[3].rpartition(":")[2])
        name = re.search(r'\("([^"]+)",pid=(\d+)', line)
        users[port] = (unit_of(name[2]) or name[1]) if name else "something unknown"
    return users


def unit_of(pid: str) -> str:
    try:
        found = re.findall(r"/([^/\n]+)\.service", Path(f"/proc/{pid}/cgroup").read_text())
    except OSError:
        return ""
    return str(found[-1]) if found else ""


def synchronised(module: AnsibleModule) -> bool:
    command = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
    return bool(module.run_command(command)[1].strip() == "yes")


def look(module: AnsibleModule) -> dict[str, Any]:
    """What the host shows."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    users = users_of_ports(module)
    ports = {int(port): name for name, port in module.params["ports"].items()}
    disks = module.params["disks"]
    return {
        **module.params["capabilities"],
        "user": pwd.getpwuid(os.geteuid()).pw_name,
        "os": system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "memory_mb": memory_bytes >> 20,
        "address": (module.params["address"], has_address(module.params["address"])),
        "synchronised": synchronised(module),
        "sysctl": os.access("/proc/sys/vm/dirty_bytes", os.W_OK),
        "sysfs": os.access("/sys/class/block", os.W_OK) and os.access("/sys/kernel/mm", os.W_OK),
        "disks": [look_at_disk(disk) for disk in disks if disk.get("state", "active") == "active"],
        "ports": {port: (name, users.get(port, "")) for port, name in ports.items()},
    }


def main() -> None:
    """Looks, judges, prints."""
    arguments = {
        "wanted": {"type": "dict", "required": True},
        "disks": {"type": "list", "elements": "dict", "required": True},
        "brokers": {"type": "list", "elements": "dict", "required": True},
        "ports": {"type": "dict", "required": True},
        "address": {"type": "str", "required": True},
        "capabilities": {"type": "dict", "required": True},
    }
    module = AnsibleModule(argument_spec=arguments, supports_check_mode=True)
    found = list(rows(look(module), module.params["wanted"]))
    module.exit_json(
        changed=False,
        rows=[asdict(row) for row in found],
        table=table(found),
        refused=[
            f"{r.subject} is {r.found}, not {r.wanted}" for r in found if r.verdict == REFUSED
        ],
    )


if __name__ == "__main__":
    main()
