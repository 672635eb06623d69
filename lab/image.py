"""The base image: Debian with what the roles need, made once by mmdebstrap and shared by all hosts.

It is cached under a key of all that goes into it: the list of packages, the files of lab/image, the
commands below. There is nothing secret in it and no host's name: `lab.machine` adds those.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from kdist.errors import UserError
from lab.lock import held
from lab.place import ROOT, Place
from lab.shell import Command, run_all

SUITE = "bookworm"
PACKAGES = ROOT / "lab" / "packages.txt"
FILES = ROOT / "lab" / "image"
MOUNTS = Path("/proc/self/mounts")
_IMAGE = re.compile(r"[0-9a-f]{16}(\.unfinished)?")

_STARTED = "systemd-networkd ssh lab-fstab"
# What packages start at boot of themselves, and the roles are to start instead.
_NOT_STARTED = (
    "chrony nftables smartmontools prometheus prometheus-alertmanager prometheus-node-exporter"
)
# Timers and terminals that a host of minutes has no use for, and that would load the machine.
_MASKED = (
    "systemd-networkd-wait-online apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer"
    " e2scrub_reap.service fstrim.timer dpkg-db-backup.timer console-getty.service getty.target"
    " prometheus-node-exporter-apt.timer prometheus-node-exporter-ipmitool-sensor.timer"
    " prometheus-node-exporter-mellanox-hca-temp.timer prometheus-node-exporter-nvme.timer"
    " prometheus-node-exporter-smartmon.timer"
)

# What the image must not know: who the host is, and who may log in. An empty machine-id is filled
# in as a host starts. A name server that does not answer would cost each run of Ansible ten
# seconds.
_ANONYMOUS = """
rm -f "$1"/etc/ssh/ssh_host_* "$1/etc/hostname" "$1/etc/resolv.conf"
: >"$1/etc/machine-id"
echo "# There is no DNS in the lab." >"$1/etc/resolv.conf"
touch "$1/etc/default/locale"
"""

# What makes an image dies with this process, and mounts nothing where another would find it: so one
# that was left half made can be removed at any time.
_TIED = (
    *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"),
    "--mount-proc",
)


def packages() -> list[str]:
    """The list of lab/packages.txt."""
    lines = PACKAGES.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def plan(names: Sequence[str], target: Path) -> Iterator[Command]:
    """What makes the image in the directory `target` (pure but for the list of lab/image)."""
    yield [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        "--mode=root",
        '--aptopt=Acquire::Languages "none"',
        '--aptopt=Apt::Install-Recommends "false"',
        "--dpkgopt=force-unsafe-io",
        "--dpkgopt=path-exclude=/usr/share/man/*/*",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        # The JRE's postinst fails without this directory.
        '--essential-hook=mkdir -p "$1/usr/share/man/man1"',
        f"--include={','.join(names)}",
        SUITE,
        str(target),
    ]
    # One by one, so that the owner and the umask of the clone stay out of the image.
    for file in _files():
        mode = "755" if file.stat().st_mode & 0o100 else "644"
        there = target / file.relative_to(FILES)
        yield ["install", "-D", "--owner=root", "--group=root", f"--mode={mode}", file, there]
    for verb, units in (("enable", _STARTED), ("disable", _NOT_STARTED), ("mask", _MASKED)):
        yield ["chroot", target, "systemctl", "--quiet", verb, *units.split()]
    yield ["sh", "-c", _ANONYMOUS, "sh", target]


def key() -> str:
    """Sixteen digits that change when anything that goes into the image does."""
    commands = [[str(word) for word in command] for command in plan(packages(), Path("/target"))]
    digest = hashlib.sha256(repr(commands).replace(str(ROOT), "").encode())
    for file in _files():
        digest.update(b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _files() -> list[Path]:
    return sorted(path for path in FILES.rglob("*") if path.is_file())


def path(place: Place) -> Path:
    """Where the image of the present key is, or would be."""
    return place.images / key()


def make(place: Place) -> Path:
    """Make the image unless it is there; one that was left half made is made anew."""
    image = path(place)
    if image.is_dir():
        return image
    place.images.mkdir(parents=True, exist_ok=True)
    with held(place.images / "lock", "making the base image", waits=True):
        if not image.is_dir():
            for left in place.images.glob("*.unfinished"):
                shutil.rmtree(left)
            unfinished = image.with_suffix(".unfinished")
            run_all([*_TIED, *command] for command in plan(packages(), unfinished))
            unfinished.rename(image)
    return image


def remove_all(place: Place) -> None:
    """Remove every base image, finished or not; UserError if hosts of another lab stand on one."""
    if not place.images.is_dir():
        return
    lock = place.images / "lock"
    with held(lock, "removing the base images", waits=True):
        images = [path for path in place.images.iterdir() if _IMAGE.fullmatch(path.name)]
        mounts = MOUNTS.read_text(encoding="utf-8")
        for image in images:
            if f"lowerdir={image}," in mounts:
                raise UserError(f"hosts of another lab stand on {image}: `down` there first")
        for image in images:
            shutil.rmtree(image)
        # What is not the lab's stays.
        if set(place.images.iterdir()) == {lock}:
            shutil.rmtree(place.images)
