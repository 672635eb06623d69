"""A site of three hosts on this machine, for plays: ssh, systemctl, kdist on hosts are fakes.

Host `a` has broker 101 as d01, `b` 202 as d02, `c` 303 as d03. A host is dead while there is a file
`dead-a`; it dies by itself after `systemctl stop d02` if the file `on-stop-d02` names it, and once
the lock is taken if `on-lock` does. Another run holds the lock while there is a file `locked`;
`moves` says for how many questions of the gate partitions are moving. With a file `slow-d01`, d01
does not serve before another broker is started; while `hangs-d01` is a pipe, it does not stop. A
host that is rebooted starts its broker again, or is dead while there is a file `stays-off-a`. The
gate is the real one, over partitions whose ISR is whoever is alive; a broker that does not run is
alive all the same while there is a file `registered-d01`. What a broker lacks, from one question to
the next, is in `lack.json`. The plan of moves is in `plan`; they are not done while there is a file
`unfinished`, and are being carried out once if there is `reassigns`.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml
from deploy_plays import script
from deploy_plugins import ROOT

BROKERS = {"d01": ("a", 101), "d02": ("b", 202), "d03": ("c", 303)}
OLD, NEW = "1.0-aaaaaaaaaaaa", "2.0-bbbbbbbbbbbb"

SSH = """\
while [ $# -gt 2 ]; do shift; done
[ ! -e {site}/dead-$1 ] || exit 255
PATH={site}/bin:$PATH
exec sh -c "$2"
"""
SYSTEMCTL = """\
[ "$1" != --no-block ] || shift
for word; do case $word in *@*) unit=${{word#*@}}; unit=${{unit%%.*}} ;; esac; done
cd {site}/units
case "$*" in
*reset-failed*|*daemon-reload*) ;;
is-enabled*) echo enabled ;;
is-active*) sed -n 's/^ActiveState=//p' $unit ;;
*kdist-reassign*)
  echo ActiveState=$(cat ../reassigns 2>/dev/null || echo inactive)
  rm -f ../reassigns ;;
*UserspaceTimestamp*) echo @$(cat ../booted 2>/dev/null || echo 500) ;;
show*) cat $unit ;;
stop*)
  [ ! -p ../hangs-$unit ] || exec cat ../hangs-$unit
  echo "stop $unit" >> ../events
  sed -i 's/^ActiveState=.*/ActiveState=inactive/; s/^SubState=.*/SubState=dead/' $unit
  [ ! -e ../on-stop-$unit ] || touch ../dead-$(cat ../on-stop-$unit) ;;
start*)
  echo "start $unit" >> ../events
  sed -i 's/=@1000/=@5000/; s/^ActiveState=.*/ActiveState=failed/' $unit
  release=$(basename $(readlink {site}/etc/brokers/$unit/current/release))
  if [ -e ../fails-$unit ] && [ $release = {new} ]; then
    sed -i "s/^ExecMainStatus=.*/ExecMainStatus=$(cat ../fails-$unit)/" $unit
    exit 0
  fi
  echo $release > $unit.runs
  sed -i 's/^ActiveState=.*/ActiveState=activating/; s/^SubState=.*/SubState=start/' $unit
  [ ! -e ../slow-$unit ] || exit 0
  for each in $unit $(cd ..; ls slow-* 2>/dev/null | cut -c 6-); do
    sed -i 's/=activating/=active/; s/^SubState=start/SubState=running/' $each
  done ;;
disable*) echo "disable $unit" >> ../events ;;
esac
"""
KDIST = """\
import json, sys
from pathlib import Path
from kdist.model import TopicPartition
from kdist.ops.gate import PartitionView, View, review_return, review_stop
site, words = Path({site!r}), sys.argv[1:]
with open(site / "calls", "a") as calls:
    print(*words, file=calls)
if words[:2] == ["gate", "lock"]:
    if (site / "locked").exists():
        sys.exit("kdist: another run holds the lock")
    print(json.dumps({{"taken": True, "since_ms": 600000}}))
    if (site / "on-lock").exists():
        (site / ("dead-" + (site / "on-lock").read_text())).touch()
elif words[:2] == ["gate", "unlock"]:
    print(json.dumps({{"released": True}}))
elif words[0] == "config":
    print(json.dumps({{"faults": [], "digest": "s"}}))
elif words[0] == "topics":
    print(json.dumps({{"steps": [], "refusals": [f.name for f in site.glob("refused-*")]}}))
elif words[:2] == ["reassign", "plan"]:
    print("a table")
    if "--output" in words:
        Path(words[words.index("--output") + 1]).write_text((site / "plan").read_text())
elif words[:2] == ["reassign", "verify"]:
    sys.exit((site / "unfinished").exists())
elif words[0] in ("cluster", "reassign"):
    pass  # nobody has to be elected
else:
    given = dict(zip(words, words[1:]))
    number = lambda option: [int(n) for n in given.get(option, "").split(",") if n]
    brokers = {brokers!r}
    alive = {{
        broker
        for disk, (host, broker) in brokers.items()
        if not (site / f"dead-{{host}}").exists()
        and "ActiveState=active" in (site / "units" / disk).read_text()
        or (site / f"registered-{{disk}}").exists()
    }}
    partitions = []
    for name, replicas in json.loads((site / "topics.json").read_text()).items():
        isr = tuple(r for r in replicas if r in alive)
        leader, isr = (isr[0], isr) if isr else (-1, tuple(replicas))
        one = TopicPartition(name, 0)
        partitions.append(PartitionView(one, tuple(replicas), leader, isr, 1))
    asked = site / "moves"  # so often the gate is asked before they end
    left = int(asked.read_text()) if asked.exists() else 0
    mover = f"bert ({{left}} to go)" * (left > 0)
    if left:
        asked.write_text(str(left - 1))
    view = View(frozenset(alive), min(alive, default=None), tuple(partitions), mover=mover)
    mine = [brokers[given["--config"].rpartition("-")[2].split(".")[0]][1]]
    if "--after" in words:
        verdict = review_return(view, mine, number("--expect"))
    else:
        known = {{"down": number("--down")}} if "--down" in words else {{}}
        verdict = review_stop(view, mine, number("--expect"), **known)
    lacks = json.loads((site / "lack.json").read_text()) if "--measure" in words else []
    lack = lacks and dict(zip(("partitions", "bytes"), lacks[0]))
    held = [each.partition.topic for each in partitions if mine[0] in each.replicas]
    reasons = [*verdict.reasons, *(["not yet in the ISR"] if lack else [])]
    if lacks:
        (site / "lack.json").write_text(json.dumps(lacks[1:] or lacks))
    said = {{"partitions": len(held), "topics": held, "lack": lack}}
    said |= {{"moving": (site / "moving").exists()}}
    said |= {{"reasons": reasons, "moves": verdict.moves, "brokers": sorted(alive)}}
    print(json.dumps(said))
    sys.exit(bool(reasons))
"""


REBOOT = """\
from pathlib import Path
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({{"msg": {{}}, "reboot_timeout": {{"type": "int"}}}})
site, host = Path({site!r}), module.params["msg"].split()[0]
with (site / "events").open("a") as events:
    print("reboot", host, file=events)
if (site / f"stays-off-{{host}}").exists():
    (site / f"dead-{{host}}").touch()
    module.fail_json(msg="Timed out waiting for last boot time check")
for disk, (its, _) in {brokers!r}.items():
    if its == host:
        said = (site / "units" / disk).read_text().replace("=inactive", "=active")
        (site / "units" / disk).write_text(said.replace("=dead", "=running"))
module.exit_json(changed=True, rebooted=True)
"""


class Site:
    """The hosts' state, in files below a directory."""

    def __init__(self, directory: Path, ports: dict[str, int]) -> None:
        self.directory = directory
        self.ports = ports
        self.environment: dict[str, str] = {}
        self.ensemble = ["a", "b", "c"]
        self.monitors: list[str] = []
        for name in ("bin", "units", "etc/wanted"):
            (directory / name).mkdir(parents=True)
        script(directory / "bin/ssh", SSH.format(site=directory))
        script(directory / "bin/systemctl", SYSTEMCTL.format(site=directory, new=NEW))
        script(directory / "bin/systemd-run", 'while [ "${1#--}" != "$1" ]; do shift; done; "$@"\n')
        script(directory / "bin/journalctl", "echo broker 202 is down\n")
        (directory / "plan").write_text('{"partitions": [{}]}')
        self.topics(everywhere=[101, 202, 303])
        (directory / "events").touch()
        self.lacks()
        for release in (OLD, NEW):
            program = directory / "root/releases" / release / "bin/kdist"
            program.parent.mkdir(parents=True)
            body = KDIST.format(site=str(directory), brokers=BROKERS)
            program.write_text(f"#!{sys.executable}\n{body}")
            program.chmod(0o755)
        (directory / "root/current").symlink_to(f"releases/{OLD}")
        for disk in BROKERS:
            self._lay_out(disk)
        self._copy_the_tree()

    def _lay_out(self, disk: str) -> None:
        """A broker that runs the old release."""
        settings = f"broker-{disk}.properties"
        (self.directory / "etc/wanted" / settings).write_text("s\n")
        generation = self.directory / "etc/brokers" / disk / "old"
        generation.mkdir(parents=True)
        (generation / "release").symlink_to(self.directory / "root/releases" / OLD)
        (generation / "broker.properties").write_text("s\n")
        (generation / "served").touch()
        (generation.parent / "current").symlink_to("old")
        data = self.directory / "data" / disk
        data.mkdir(parents=True)
        (data / "disk.json").touch()
        state = "LoadState=loaded\nActiveState=active\nSubState=running\n"
        state += "ExecMainStatus=0\nActiveEnterTimestamp=@1000\n"
        (self.directory / "units" / disk).write_text(state)
        (self.directory / "units" / f"{disk}.runs").write_text(OLD)

    def _copy_the_tree(self) -> None:
        """Playbooks and roles, for other directories than those of a host, and this user."""
        tree = self.directory / "tree"
        shutil.copytree(ROOT / "playbooks", tree / "playbooks")
        shutil.copytree(ROOT / "roles", tree / "roles")
        shutil.copy(ROOT / "ansible.cfg", tree)
        (tree / "kdist").symlink_to(ROOT / "kdist")
        me, mine = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
        (tree / "playbooks/validate.yml").write_text("- hosts: all\n  gather_facts: false\n")
        (tree / "playbooks/library").mkdir()
        fake = REBOOT.format(site=str(self.directory), brokers=BROKERS)
        (tree / "playbooks/library/fake_reboot.py").write_text(fake)
        changes = {"/etc/kdist": f"{self.directory}/etc", "/etc/systemd": f"{self.directory}/etc"}
        changes |= {"/opt/kdist": f"{self.directory}/root"}
        changes |= {'"/data/': f'"{self.directory}/data/', "owner: root": f"owner: {me}"}
        changes |= {"group: root": f"group: {mine}", 'f"/data/': f'f"{self.directory}/data/'}
        changes |= {"kdist_group: kdist": f"kdist_group: {mine}"}
        changes |= {"ansible.builtin.reboot:": "fake_reboot:"}
        for page in [*tree.rglob("*.yml"), *tree.rglob("*.py")]:
            text = page.read_text()
            for old, new in changes.items():
                text = text.replace(old, new)
            page.write_text(text)

    def topics(self, **topics: list[int]) -> None:
        """The cluster's topics, of one partition each, by their replicas."""
        (self.directory / "topics.json").write_text(json.dumps(topics))

    def lacks(self, *looks: tuple[int, int]) -> None:
        """What a broker lacks, partitions and bytes, at each question; the last stays."""
        (self.directory / "lack.json").write_text(json.dumps(looks))

    def play(
        self,
        *words: str,
        steps: list[dict[str, Any]] | None = None,
        disk_states: dict[str, str] | None = None,
        **given: Any,
    ) -> subprocess.CompletedProcess[str]:
        """The roll and the summary, or other steps of a playbook."""
        states = {disk: {"state": state} for disk, state in (disk_states or {}).items()}
        hosts = {
            host: {
                "kdist_host_number": broker // 100,
                "kdist_disks": [
                    {"id": disk, "device": "/dev/x", "port": self.ports[disk] - 200}
                    | states.get(disk, {})
                ],
                "kdist_broker_digests": {disk: "s"},
            }
            for disk, (host, broker) in BROKERS.items()
        }
        groups = {name: {"hosts": dict.fromkeys(hosts)} for name in ("dc1", "broker")}
        groups["zookeeper"] = {"hosts": dict.fromkeys(self.ensemble)}
        groups["monitor"] = {"hosts": dict.fromkeys(self.monitors)}
        inventory = self.directory / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts, "children": groups}}))
        playbook = self.directory / "tree/playbooks/play.yml"
        usual = [{"import_playbook": f"{name}.yml"} for name in ("roll", "summary")]
        playbook.write_text(yaml.safe_dump(steps or usual))
        variables = {
            "ansible_python_interpreter": sys.executable,
            "ansible_ssh_executable": str(self.directory / "bin/ssh"),
            "ansible_ssh_transfer_method": "piped",
            "kdist_address": "127.0.0.1",
            "kdist_datacenter": "dc1",
            "kdist_environment": "test",
            "kdist_version": "2.0",
            "kdist_release_name": NEW,
            "kdist_release_path": f"{self.directory}/root/releases/{NEW}",
            "kdist_release_digest": NEW,
            "kdist_release_is_staged": True,
            "kdist_broker_unit_digest": "u",
            "kdist_roll_run_id": "run",
            "kdist_roll_poll_s": 1,
            "kdist_roll_gate_wait_s": 2,
            "kdist_roll_moves_wait_s": 6,
            "kdist_roll_moves_told_s": 2,
            "kdist_roll_return_wait_s": 2,
            "kdist_roll_stall_s": 3,
            "kdist_broker_start_wait_s": 4,
        }
        program = Path(sys.executable).with_name("ansible-playbook")
        command = [str(program), "--inventory", str(inventory), str(playbook), *words]
        command += ["--extra-vars", json.dumps(variables | given)]
        return subprocess.run(
            command,
            cwd=self.directory / "tree",
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def keep_a_journal(self) -> Path:
        """Have modules find a systemd; returns the file of what they write into its journal.

        They do, whatever the tree's ansible.cfg says of it: a site may have its own.
        """
        package, journal = self.directory / "modules/systemd", self.directory / "journal"
        package.mkdir(parents=True)
        journal.touch()
        (package / "__init__.py").touch()
        (package / "daemon.py").write_text("def booted():\n    return True\n")
        (package / "journal.py").write_text(
            "def send(*words, **fields):\n"
            f"    with open({str(journal)!r}, 'a') as opened:\n"
            "        print(words, fields, file=opened)\n"
            "sendv = send\n"
        )
        self.environment |= {
            "PYTHONPATH": str(package.parent),
            "ANSIBLE_NO_TARGET_SYSLOG": "False",
        }
        return journal

    def events(self) -> list[str]:
        """What systemctl was asked for, in order: `stop d01`, `start d01`."""
        return (self.directory / "events").read_text().splitlines()

    def calls(self, words: str) -> list[str]:
        """The calls of kdist on the hosts that begin with these words."""
        calls = self.directory / "calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        return [line for line in lines if line.startswith(words)]

    def runs(self) -> dict[str, str]:
        """The release that each broker's process was started with."""
        units = self.directory / "units"
        return {disk: (units / f"{disk}.runs").read_text().strip() for disk in BROKERS}


class Health(BaseHTTPRequestHandler):
    """A broker's /health, as long as its host and its process are alive."""

    def __init__(self, directory: Path, disk: str, *rest: Any) -> None:
        self.directory, self.disk = directory, disk
        super().__init__(*rest)

    def do_GET(self) -> None:
        state = (self.directory / "units" / self.disk).read_text()
        if "=active" not in state or (self.directory / f"dead-{BROKERS[self.disk][0]}").exists():
            return  # nothing is answered
        runs = (self.directory / "units" / f"{self.disk}.runs").read_text().strip()
        said = {"release": runs, "settings": "s", "unit": "u", "controller": self.disk == "d03"}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


@contextmanager
def site_at(directory: Path) -> Iterator[Site]:
    """A site whose brokers run the old release, and shall run the new one."""
    servers = {
        disk: socketserver.ThreadingTCPServer(("127.0.0.1", 0), partial(Health, directory, disk))
        for disk in BROKERS
    }
    for server in servers.values():
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Site(directory, {disk: each.server_address[1] for disk, each in servers.items()})
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()
