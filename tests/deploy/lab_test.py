"""Bare hosts to a running cluster, tested, broken, and removed again: `make lab-test`, as root.

Makes a lab of its own, beside any that is up, and waits while another run has it. Each step's words
are in .cache/lab-test; a step that fails shows its last ones. KEEP=1 leaves the hosts up. `make
test` leaves all drills but a few quick ones to `make lab-test`. Ends with 0 if every step went
well, else with 1.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from kdist.errors import UserError
from lab.demo import flights
from lab.lock import held
from lab.place import DEFAULT_HOME, ROOT, Place
from tests.deploy.deployed import ansible_environment, read_inventory
from tests.deploy.drilling import NOTES, Run, next_version, recap

INVENTORY = Path("inventory") / "lab"
RACKS = Path("inventory") / "lab-racks"
"""The larger form: three bare racks, and a host with twelve disks."""
LOGS = ROOT / ".cache" / "lab-test"
HOME = "/var/lib/kdist-lab-trial"
LOCKS = Path("/run/lock")

_LINES_SHOWN = 60
_PYTHON = sys.executable
_LAB = [_PYTHON, "-m", "lab"]
_NO_BECOME = ["--extra-vars", "ansible_become=false"]
# As on real hosts: somebody who logs in with a key, and becomes root by sudo.
_OPERATOR = """set -e
useradd --create-home --shell /bin/bash deploy
install -d -o deploy -g deploy -m 700 /home/deploy/.ssh
install -o deploy -g deploy -m 600 /root/.ssh/authorized_keys /home/deploy/.ssh/
echo "deploy ALL=(ALL:ALL) NOPASSWD: ALL" >/etc/sudoers.d/deploy
"""
_INSTALLED = "dpkg-query --show --showformat='.\\n' | wc --lines"
_INSTALL_TOOLS = "apt-get -qq install --yes curl kcat netcat-openbsd >/dev/null"
"""What the tests ask hosts with."""
# The drills that `make test` has the time for.
QUICK = (
    "test_a_wrong_setting_is_refused_before_any_broker_stops",
    "test_a_killed_brokers_session_is_ended_by_systemd_and_the_broker_started",
)
_PYTEST = [_PYTHON, "-m", "pytest", "-n0", "-q", "--durations=25", "--tb=short", "tests/deploy"]


class StepFailed(Exception):
    """A step did not have the result that it must have."""


@dataclass
class Outcome:
    """A step's result."""

    name: str
    seconds: float
    words: str


class Trial:
    """The steps of the test, and their results."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.has_failed = False
        self.inventory = INVENTORY
        self.environment = environment()
        self._log = LOGS / "log"

    def step(self, name: str, work: Callable[[], str]) -> bool:
        """Run one step and print its result; return whether it succeeded."""
        click.echo(f"{time.strftime('%H:%M:%S')}  {name} ...")
        self._log = LOGS / f"{len(self.outcomes) + 1:02}-{name.replace(' ', '-')}.log"
        self._log.write_text("", encoding="utf-8")
        begin = time.monotonic()
        try:
            words, ended_well = work(), True
        except (StepFailed, UserError) as failure:
            words, ended_well = f"FAILED: {failure}", False
            self.has_failed = True
        seconds = time.monotonic() - begin
        self.outcomes.append(Outcome(name, seconds, words))
        click.echo(f"{time.strftime('%H:%M:%S')}  {name}: {words}, {seconds:.0f} s")
        if not ended_well:
            said = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            click.echo("\n".join(f"    {line}" for line in said[-_LINES_SHOWN:]))
        return ended_well

    def run(self, command: Sequence[str | Path]) -> str:
        """Run a command and return its output; `StepFailed` if it failed."""
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"$ {shlex.join(map(str, command))}\n")
            log.flush()
            begin = log.tell()
            status = subprocess.run(
                command,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        if status:
            raise StepFailed(f"{Path(command[0]).name} ended with {status}, see {self._log}")
        return self._log.read_bytes()[begin:].decode(errors="replace")

    def play(self, playbook: str, *arguments: str) -> Run:
        """Run a playbook."""
        command = [_program("ansible-playbook"), "--inventory", self.inventory]
        command += [f"playbooks/{playbook}.yml", *arguments]
        said = self.run([*_LAB, "run", *command])
        return Run(0, said, recap(said))

    # The steps

    def make_hosts(self) -> str:
        """Create the hosts, and meanwhile build the bundles of two releases and of PySpark."""
        version = next(iter(read_inventory(self.inventory).values()))["kdist_version"]
        builds = [self._build("release", each) for each in (version, next_version(version))]
        builds.append(self._build("spark_bundle", version))
        self._up(builds)
        return "up, with two releases and PySpark to install"

    def make_racks(self) -> str:
        """Create the hosts of the larger form, where nobody but root may log in until then.

        From here on the strategy is Ansible's own, as in an operator's runs.
        """
        self.inventory = RACKS
        for name in ("ANSIBLE_STRATEGY", "ANSIBLE_STRATEGY_PLUGINS"):
            self.environment.pop(name, None)
        self.environment["KDIST_LAB_INVENTORY"] = str(RACKS / "hosts.yml")
        hosts = read_inventory(self.inventory)
        self._up([self._build("release", next(iter(hosts.values()))["kdist_version"])])
        for host in hosts:
            self.run([*_LAB, "ssh", host, _OPERATOR])
        disks = [len(given["kdist_disks"]) for given in hosts.values()]
        return f"up, with {' + '.join(map(str, disks))} disks and a user with sudo"

    def check_operator(self) -> str:
        """What a task lacks root's rights for fails unless it becomes root; Mitogen is not used."""
        strategy = "DEFAULT_STRATEGY(default) = linear"
        if strategy not in self.run([_program("ansible-config"), "dump"]):
            raise StepFailed(f"Ansible's settings have no {strategy}")
        everyone = ["all", "--inventory", self.inventory, "--args", "id --user --name"]
        said = self.run([*_LAB, "run", _program("ansible"), *everyone, *_NO_BECOME]).splitlines()
        if said.count("deploy") != len(read_inventory(self.inventory)):
            raise StepFailed("a host lets somebody else in than the user deploy")
        return "Ansible's own strategy, as a user who is not root without sudo"

    def deploy_to_bare(self) -> str:
        """Deploy where packages are missing, which the roles install."""
        before = self._packages()
        words = self.deploy()
        if not (new := self._packages() - before):
            raise StepFailed("no package was installed")
        return f"{words}, {new} packages installed"

    def look_with_tools(self) -> str:
        """Run the tests of hosts, which ask them with tools that no role installs."""
        for host in read_inventory(self.inventory):
            self.run([*_LAB, "ssh", host, _INSTALL_TOOLS])
        return self.look()

    def _packages(self) -> int:
        """How many packages the hosts have, all together."""
        hosts = read_inventory(self.inventory)
        return sum(int(self.run([*_LAB, "ssh", host, _INSTALLED])) for host in hosts)

    def _up(self, builds: Sequence[subprocess.Popen[str]]) -> None:
        """Start the hosts, while bundles are built."""
        try:
            self.run([*_LAB, "up"])
        finally:
            words = [build.communicate()[0] for build in builds]
        for build, said in zip(builds, words, strict=True):
            if build.returncode:
                with self._log.open("a", encoding="utf-8") as log:
                    log.write(said)
                raise StepFailed(f"{build.args} failed")

    def _build(self, what: str, version: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [ROOT / "tools" / f"build_{what}.sh"],
            cwd=ROOT,
            env=self.environment | {"KDIST_RELEASE_VERSION": version},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def foretell(self) -> str:
        """Run in check mode, which must change nothing, even on bare hosts."""
        self.play("site", "--check")
        return "foretold"

    def deploy(self) -> str:
        return f"{sum(self.play('site').changed.values())} tasks changed something"

    def deploy_again(self) -> str:
        """Deploy a second time: no task changes anything, and no process is restarted."""
        before = self._processes()
        self._refuse_changes(self.play("site"))
        if self._processes() != before:
            raise StepFailed("a process was restarted")
        units = sum(shown.count("MainPID=") for shown in before.values())
        return f"nothing changed, {units} units have the same processes"

    def restart_all(self) -> str:
        """Restart every broker, one after another, and nothing else."""
        before = self._units()
        self.play("rolling-restart")
        after = self._units()
        brokers = {each for each in after if "Id=kdist-broker@" in each[1]}
        if wrong := brokers ^ (after - before):
            raise StepFailed(f"not restarted, or no broker: {sorted(wrong)}")
        return f"{len(brokers)} brokers have new processes, and nothing else has"

    def foretell_nothing(self) -> str:
        self._refuse_changes(self.play("site", "--check"))
        return "nothing foretold"

    def verify(self) -> str:
        self.play("verify")
        return "the playbook finds all well"

    def look(self) -> str:
        """Run the tests of hosts and clusters, without the drills."""
        said = self.run([*_LAB, "run", *_PYTEST, "--inventory", self.inventory])
        return said.splitlines()[-1].strip("= ")

    def drill(self) -> str:
        flights.fetch()  # first: the lab's network, in which the drills run, has no internet
        return self._drill()

    def drill_quickly(self) -> str:
        return self._drill("-k", " or ".join(QUICK))

    def _drill(self, *chosen: str) -> str:
        NOTES.write_text("", encoding="utf-8")
        drills = [*_PYTEST, "--inventory", self.inventory, "--drills", "-m", "drill", *chosen]
        try:
            said = self.run([*_LAB, "run", *drills])
        finally:
            click.echo(NOTES.read_text(encoding="utf-8"))
        return said.splitlines()[-1].strip("= ")

    def try_the_labs_faults(self) -> str:
        """Run the tests of the lab's faults, in a lab of their own."""
        said = self.run([*_PYTEST, "-m", "lab"])
        return said.splitlines()[-1].strip("= ")

    def remove(self) -> str:
        self.run([*_LAB, "down"])
        place = Place.of_environment()
        if place.netns.exists() or place.home.exists():
            raise StepFailed(f"{place.netns} or {place.home} is still there")
        return "nothing left"

    def _refuse_changes(self, run: Run) -> None:
        if busy := [host for host, count in run.changed.items() if count]:
            raise StepFailed(f"something changed on {', '.join(busy)}")

    def _processes(self) -> dict[str, str]:
        """kdist's units and their main processes, as each host's systemd shows them."""
        # Without the loads, which are started by timers and end.
        show = "systemctl show --property=Id,MainPID 'kdist-[!l]*.service'"
        hosts = json.loads(self.run([*_LAB, "status", "--json"]))["hosts"]
        return {host: self.run([*_LAB, "ssh", host, show]) for host in hosts}

    def _units(self) -> set[tuple[str, str]]:
        """Each host's units of kdist, as they are shown."""
        hosts = self._processes().items()
        return {(host, unit.strip()) for host, shown in hosts for unit in shown.split("\n\n")}


def _program(name: str) -> Path:
    """A program of this virtual environment."""
    return Path(_PYTHON).with_name(name)


def environment() -> dict[str, str]:
    """Ansible's environment, with this lab's directory."""
    found = ansible_environment()
    found.setdefault("KDIST_LAB_DIR", HOME)
    found.setdefault("KDIST_LAB_IMAGES", str(DEFAULT_HOME / "base"))
    return found


def why_not() -> str:
    """What this machine lacks to run the lab, in one sentence; empty if it can."""
    check = subprocess.run(
        [*_LAB, "check"], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    return " ".join(line.removeprefix("lab: ") for line in check.stderr.splitlines())


def go_through_racks(trial: Trial) -> None:
    """Deploy to the larger form as an operator does, and break nothing."""
    steps = {
        "twelve disks: hosts": trial.make_racks,
        "twelve disks: operator": trial.check_operator,
        "twelve disks: check mode on bare hosts": trial.foretell,
        "twelve disks: site": trial.deploy_to_bare,
        "twelve disks: site again": trial.deploy_again,
        "twelve disks: verify": trial.verify,
        "twelve disks: rolling restart": trial.restart_all,
        "twelve disks: tests": trial.look_with_tools,
    }
    all(trial.step(name, work) for name, work in steps.items())


def go_through(trial: Trial, *, is_quick: bool) -> None:
    """Run the steps: each builds on the earlier ones, but a failed check does not stop the rest."""
    foundations = {
        "hosts": trial.make_hosts,
        "check mode on bare hosts": trial.foretell,
        "site": trial.deploy,
        "site again": trial.deploy_again,
    }
    if all(trial.step(name, work) for name, work in foundations.items()):
        trial.step("verify", trial.verify)
        trial.step("static and cluster tests", trial.look)
        if is_quick:
            trial.step("quick drills", trial.drill_quickly)
            return
        trial.step("check mode on converged hosts", trial.foretell_nothing)
        if trial.step("drills", trial.drill):
            trial.step("tests after the drills", trial.look)
        trial.step("faults of the lab", trial.try_the_labs_faults)


def table(outcomes: Sequence[Outcome]) -> str:
    """The steps with their times (pure)."""
    width = max(len(outcome.name) for outcome in outcomes)
    rows = [f"{each.name:{width}}  {each.seconds:6.0f} s  {each.words}" for each in outcomes]
    total = sum(outcome.seconds for outcome in outcomes)
    return "\n".join([*rows, f"{'all':{width}}  {total:6.0f} s"])


def lock() -> Path:
    """The lock of the lab's name: a run removes whatever has that name, another run's hosts too."""
    return LOCKS / f"{Place.of_environment().name}.lock"


def run_alone(is_quick: bool, only_racks: bool) -> Trial:
    """Run the steps, and print their table."""
    with held(lock(), "a test", waits=True):
        LOGS.mkdir(parents=True, exist_ok=True)
        for log in LOGS.iterdir():
            log.unlink()
        trial = Trial()
        try:
            trial.step("what an earlier run left", trial.remove)
            if not only_racks:
                go_through(trial, is_quick=is_quick)
            if not is_quick:
                trial.step("removed before twelve disks", trial.remove)
                go_through_racks(trial)
        finally:
            if os.environ.get("KEEP"):
                click.echo(
                    f"Kept: KDIST_LAB_DIR={Place.of_environment().home} python -m lab status"
                )
            else:
                trial.step("all removed", trial.remove)
            click.echo(table(trial.outcomes))
    return trial


@click.command()
@click.option("--if-able", is_flag=True, help="A machine that cannot run the lab is no failure.")
@click.option("--quick", "is_quick", is_flag=True, help="One form alone, and a few of the drills.")
@click.option("--only-racks", is_flag=True, help="Deploy to the form with twelve disks alone.")
def main(if_able: bool, is_quick: bool, only_racks: bool) -> None:
    """Deploy to bare hosts, test them, break them; remove them whatever happens, unless KEEP=1."""
    os.environ |= environment()
    if reason := why_not():
        click.echo(f"The lab's hosts cannot run here, so kdist is not deployed to any: {reason}")
        sys.exit(0 if if_able else 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(int(run_alone(is_quick, only_racks).has_failed))


if __name__ == "__main__":
    main(prog_name="python -m tests.deploy.lab_test")
