"""The base image: Debian with what the roles need, built once by mmdebstrap, shared by all hosts.

It is cached under a key derived from all its inputs: the list of packages, the files of lab/image,
and the commands below. It contains no secrets and no host's name: `lab.machine` adds those.
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
# Units that their packages enable by default, but that the roles have to start.
_NOT_STARTED = (
    "chrony nftables smartmontools prometheus prometheus-alertmanager prometheus-node-exporter"
)
# Timers and terminals that a host that lives for minutes does not need, and that cost CPU.
_MASKED = (
    "systemd-networkd-wait-online apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer"
    " e2scrub_reap.service fstrim.timer dpkg-db-backup.timer console-getty.service getty.target"
    " prometheus-node-exporter-apt.timer prometheus-node-exporter-ipmitool-sensor.timer"
    " prometheus-node-exporter-mellanox-hca-temp.timer prometheus-node-exporter-nvme.timer"
    " prometheus-node-exporter-smartmon.timer"
)

# The image must not contain a host's identity or anybody's access. systemd fills in an empty
# machine-id when a host starts. A name server that does not answer would delay each run of Ansible
# by ten seconds.
_ANONYMOUS = """
rm -f "$1"/etc/ssh/ssh_host_* "$1/etc/hostname" "$1/etc/resolv.conf"
: >"$1/etc/machine-id"
echo "# There is no DNS in the lab." >"$1/etc/resolv.conf"
touch "$1/etc/default/locale"
"""

# The build dies with this process, and its mounts are in a namespace of their own: so an unfinished
# image can be removed at any time.
_TIED = (
    *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"),
    "--mount-proc",
)


def packages() -> list[str]:
    """The list of lab/packages.txt."""
    lines = PACKAGES.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def plan(names: Sequence[str], target: Path) -> Iterator[Command]:
    """The commands that build the image in the directory `target`.

    Pure, except that it lists the files of lab/image.
    """
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
    # Each with an explicit owner and mode: those of the checkout must not affect the image.
    for file in _files():
        mode = "755" if file.stat().st_mode & 0o100 else "644"
        there = target / file.relative_to(FILES)
        yield ["install", "-D", "--owner=root", "--group=root", f"--mode={mode}", file, there]
    for verb, units in (("enable", _STARTED), ("disable", _NOT_STARTED), ("mask", _MASKED)):
        yield ["chroot", target, "systemctl", "--quiet", verb, *units.split()]
    yield ["sh", "-c", _ANONYMOUS, "sh", target]


def key() -> str:
    """Sixteen hex digits that change whenever any input of the image does."""
    commands = [[str(word) for word in command] for command in plan(packages(), Path("/target"))]
    digest = hashlib.sha256(repr(commands).replace(str(ROOT), "").encode())
    for file in _files():
        digest.update(b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _files() -> list[Path]:
    return sorted(path for path in FILES.rglob("*") if path.is_file())


def path(place: Place) -> Path:
    """Where the image of the current key is, whether or not it exists."""
    return place.images / key()


def make(place: Place) -> Path:
    """Build the image if it does not exist, and remove unfinished ones of earlier builds."""
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
    """Remove every base image, finished or not; UserError if hosts of another lab use one."""
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
        # Keep the directory if it contains anything that is not the lab's.
        if set(place.images.iterdir()) == {lock}:
            shutil.rmtree(place.images)
