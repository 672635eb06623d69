"""One host's life cycle: its root over the base image, power on and off, power cut, and state.

A host is a systemd-nspawn container that runs systemd as its init process; lab/keeper.sh starts
nspawn and restarts it after a reboot. The container is not registered with machined, so that this
also works on a machine that systemd does not run.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path

from kdist.errors import UserError
from lab import cgroups, disks, network
from lab.hosts import Description, Host
from lab.place import BRIDGE, ROOT, Place
from lab.shell import run, succeeds, wait_until

KEEPER = ROOT / "lab" / "keeper.sh"

# Signals that systemd takes as commands when it is the init process (systemd(1), "Signals").
_POWER_OFF = signal.SIGRTMIN + 4
_REBOOT = signal.SIGRTMIN + 5

_KEEPER_S = 20.0
_BOOT_S = 90.0
_POWER_OFF_S = 60.0

# The address stays when the carrier is lost, as on a host whose switch died. Otherwise a cut link
# would show at once, by an error that no real network gives.
_NETWORK = """[Match]
Name=host0

[Network]
Address={address}/{prefix}
Gateway={gateway}
ConfigureWithoutCarrier=yes
IgnoreCarrierLoss=yes
IPv6AcceptRA=no
"""


def hosts_file(description: Description) -> str:
    """/etc/hosts of each host: all hosts of the lab, running or not (pure)."""
    lines = [f"{host.address} {host.name}" for host in description.hosts]
    return "\n".join(["127.0.0.1 localhost", "::1 localhost", *lines, ""])


def make_root(place: Place, description: Description, host: Host, image: Path) -> None:
    """Mount the root of a host that is off as an overlay on the image, and write its identity.

    Changes that the host made in earlier runs are kept.
    """
    if cgroups.of_host(place, host.name).leader() is not None:
        return
    root = place.root(host.name)
    upper, work = (place.hosts / host.name / name for name in ("upper", "work"))
    if not root.is_mount():
        for directory in (root, upper, work):
            directory.mkdir(parents=True, exist_ok=True)
        layers = f"lowerdir={image},upperdir={upper},workdir={work}"
        run("mount", "-t", "overlay", place.name, "-o", layers, root)
    # None of these files may be a symlink in the image: it would lead to this machine's own files.
    _write(root / "etc/hostname", f"{host.name}\n")
    _write(root / "etc/hosts", hosts_file(description))
    link = _NETWORK.format(
        address=host.address,
        prefix=description.network.prefixlen,
        gateway=description.control_address,
    )
    _write(root / "etc/systemd/network/10-host0.network", link)
    _write(root / "root/.ssh/authorized_keys", (place.ssh / "key.pub").read_text())
    _write(root / "etc/ssh/ssh_host_ed25519_key", (place.ssh / "host_key").read_text(), 0o600)


def power_on(place: Place, description: Description, host: Host) -> None:
    """Attach the host's disks and start it; `wait_for_boot` returns once it is up."""
    groups = cgroups.of_host(place, host.name)
    if groups.leader() is not None:
        return
    if not place.root(host.name).is_mount():
        raise UserError(f"{host.name} is not made yet: `python -m lab up {host.name}`")
    # A power cut, or an `up` that died, may leave a keeper without its host, and a network port.
    groups.end_processes()
    network.remove_port(place, host.name)
    disks.attach(place, host, description.disk_size_mib)
    list_disks(place, host)
    nspawn = nspawn_command(place, host.name)
    # systemd gives a service its own cgroup; otherwise the keeper enters the ones created here.
    procs: list[Path] = []
    command: list[str | Path] = []
    if groups.is_v2 and cgroups.has_systemd():
        command = service_command(place, host.name)
    else:
        procs = [_made(group) / "cgroup.procs" for group in groups.groups]
    with place.console(host.name).open("ab") as console:
        subprocess.Popen(
            [*command, KEEPER, *procs, "--", *nspawn],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
        )
    wait_until(lambda: any(groups.processes()), _KEEPER_S, f"{host.name}'s keeper to start")


def list_disks(place: Place, host: Host) -> None:
    """Write the list of the host's attached disks, which `lab-init` reads at each start."""
    present = [(disk, disks.of_disk(place, host, disk)) for disk in host.disks]
    lines = [f"{disk.device_name} {disks.node(loop.device)}\n" for disk, loop in present if loop]
    _write(place.root(host.name) / "etc/lab-disks", "".join(lines))


def nspawn_command(place: Place, host: str) -> list[str | Path]:
    """The command that starts the container (pure)."""
    return network.inside(
        place,
        "systemd-nspawn",
        "--quiet",
        f"--directory={place.root(host)}",
        f"--machine={host}",
        "--register=no",
        "--keep-unit",
        "--kill-signal=SIGRTMIN+3",
        f"--network-bridge={BRIDGE}",
        "--console=pipe",
        "/usr/local/sbin/lab-init",
    )


def service_command(place: Place, host: str) -> list[str | Path]:
    """The prefix that runs the keeper as a systemd service, its cgroup delegated to it (pure)."""
    return [
        "systemd-run",
        "--quiet",
        "--pipe",
        "--collect",
        f"--unit={place.unit(host)}",
        f"--slice={place.name}",
        "--property=Delegate=yes",
    ]


def wait_for_boot(place: Place, host: str) -> None:
    """Return once systemd reports the host as up; UserError names any units that failed."""
    refuse_if_frozen(place, host)
    groups = cgroups.of_host(place, host)

    def is_up() -> bool:
        if not list(groups.processes()):
            raise UserError(f"{host} did not start: {_last_line(place.console(host))}")
        return state(place, host) in ("running", "degraded")

    wait_until(is_up, _BOOT_S, f"{host} to start")
    if state(place, host) == "degraded":
        failed = run(*entered(place, host, "systemctl", "--failed", "--plain", "--no-legend"))
        units = ", ".join(line.split()[0] for line in failed.splitlines())
        if units:
            raise UserError(f"{host} started, but {units} failed: `python -m lab ssh {host}`")


def state(place: Place, host: str) -> str:
    """`off`, `frozen`, or the host's systemd state, such as `starting`, `running`, `degraded`."""
    groups = cgroups.of_host(place, host)
    if groups.is_frozen():
        return "frozen"
    leader = groups.leader()
    if leader is None:
        return "off"
    done = subprocess.run(
        [*_entry(leader), "systemctl", "is-system-running"],
        capture_output=True,
        text=True,
        check=False,  # the exit status is not 0 in any state but `running`
    )
    return done.stdout.strip() or "starting"


def entered(place: Place, host: str, *command: str | Path) -> list[str | Path]:
    """The command prefixed to run in the host's namespaces, except its network namespace.

    Raises UserError if the host is off.
    """
    return [*_entry(leader_of(place, host)), *command]


def leader_of(place: Place, host: str) -> int:
    """The pid of the host's init process; UserError if the host is off."""
    leader = cgroups.of_host(place, host).leader()
    if leader is None:
        raise UserError(f"{host} is off: `python -m lab on {host}`")
    return leader


def refuse_if_frozen(place: Place, host: str) -> None:
    """Raise UserError if the host is frozen, since its systemd would not answer."""
    if cgroups.of_host(place, host).is_frozen():
        raise UserError(f"{host} is frozen: `python -m lab thaw {host}`")


def power_off(place: Place, host: str) -> None:
    """Shut the host down cleanly, and wait until it is off."""
    groups = cgroups.of_host(place, host)
    groups.freeze(False)
    os.kill(leader_of(place, host), _POWER_OFF)
    wait_until(lambda: not list(groups.processes()), _POWER_OFF_S, f"{host} to go off")


def reboot(place: Place, host: str) -> None:
    """Reboot the host cleanly, and wait until it is up again."""
    before = leader_of(place, host)
    groups = cgroups.of_host(place, host)
    groups.freeze(False)
    os.kill(before, _REBOOT)
    wait_until(lambda: groups.leader() not in (None, before), _BOOT_S, f"{host} to restart")
    wait_for_boot(place, host)


def pull_the_plug(place: Place, host: str) -> None:
    """Cut the host's power: data not synced to its data disks are lost, and no peer is notified.

    The order of the steps matters. Killed processes would close their connections, so the link is
    taken down first. The container's end would unmount its disks cleanly, so their filesystems are
    shut down before it. The host's root loses nothing: it is a directory of this machine.
    """
    groups = cgroups.of_host(place, host)
    leader = leader_of(place, host)
    network.unplug(place, host)
    for mount in _data_mounts(place, host, leader):
        stop_filesystem(mount)
    groups.end_processes()
    network.remove_port(place, host)


def stop_filesystem(mount: Path) -> None:
    """Shut the filesystem down: calls fail with EIO, and nothing is written, not even its log."""
    try:
        os.stat(mount)
    except OSError as error:
        if error.errno == errno.EIO:
            return  # it was shut down before
        raise
    run("xfs_io", "-x", "-c", "shutdown", mount)


def thaw_disks(place: Place, host: str) -> None:
    """Unfreeze every disk of the host: processes that wait for a write cannot be killed."""
    for pid in cgroups.of_host(place, host).processes():
        for mount in _data_mounts(place, host, pid):
            succeeds("fsfreeze", "--unfreeze", mount)  # fails if it is not frozen


def mounted_at(place: Place, host: str, disk_number: str) -> Path | None:
    """This machine's path to where the host has mounted the device `major:minor`; None if not."""
    leader = leader_of(place, host)
    paths = disks.mounts_of(leader, disk_number)
    return Path(f"/proc/{leader}/root{paths[0]}") if paths else None


def _data_mounts(place: Place, host: str, pid: int) -> list[Path]:
    """One mount of each of the host's disks as seen by a process.

    One is enough, as freezing or shutting down affects the whole filesystem.
    """
    numbers = [
        loop.number for loop in disks.loops(place) if place.hosts / host in loop.image.parents
    ]
    mounts = [disks.mounts_of(pid, number) for number in numbers]
    return [Path(f"/proc/{pid}/root{paths[0]}") for paths in mounts if paths]


def _entry(leader: int) -> list[str]:
    return ["nsenter", f"--target={leader}", "--mount", "--uts", "--ipc", "--pid"]


def _last_line(console: Path) -> str:
    lines = console.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else "it said nothing"


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
