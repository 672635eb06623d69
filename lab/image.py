"""The base image: Debian as hosts start with, built once by mmdebstrap, shared by all hosts.

The full image has what the roles install. The bare one has what a fresh Debian has, and the rest in
a repository that the roles install from; packages start their services there, as on a real host.
An image is cached under a key derived from all its inputs: the lists of packages, the files of
lab/image, the commands below. It has no secrets and no host's name: `lab.machine` adds those.
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
PACKAGES = ROOT / "lab" / "packages"
FILES = ROOT / "lab" / "image"
STARTS_NOTHING = FILES / "usr" / "sbin" / "policy-rc.d"
MOUNTS = Path("/proc/self/mounts")
_IMAGE = re.compile(r"[0-9a-f]{16}(\.unfinished)?")

_STARTED = "systemd-networkd ssh lab-fstab"
# Units that their packages enable by default, but that the roles have to start in the full image.
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

# Fetched by the apt that builds the image, from where the image's own packages come. apt takes the
# hashes of an index of its own, so that nothing but dpkg is needed to write one.
_REPOSITORY = """set -e
APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get --quiet=2 --yes --download-only install {names}
mkdir "$1/srv/apt"
mv "$1"/var/cache/apt/archives/*.deb "$1/srv/apt"
cd "$1/srv/apt"
for deb in *.deb; do
    dpkg-deb --field "$deb"
    stat --format "Size: %s" "$deb"
    echo "SHA256: $(sha256sum <"$deb" | cut -d " " -f 1)"
    echo "Filename: ./$deb"
    echo
done >Packages
echo "deb [trusted=yes] file:/srv/apt ./" >"$1/etc/apt/sources.list"
"""

# The build dies with this process, and its mounts are in a namespace of their own: so an unfinished
# image can be removed at any time.
_TIED = (
    *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"),
    "--mount-proc",
)


def packages(name: str) -> list[str]:
    """The list of lab/packages/<name>.txt: `bare` or `roles`."""
    lines = (PACKAGES / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def plan(names: Sequence[str], repository: Sequence[str], target: Path) -> Iterator[Command]:
    """The commands that build the image in the directory `target`.

    The image has the packages `names`. With a `repository` of others it is a bare one. Pure, except
    that it lists the files of lab/image.
    """
    fetch = _REPOSITORY.format(names=" ".join(repository))
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
        *([f"--customize-hook={fetch}"] if repository else []),
        f"--include={','.join(names)}",
        SUITE,
        str(target),
    ]
    # Each with an explicit owner and mode: those of the checkout must not affect the image.
    for file in _files():
        if repository and file == STARTS_NOTHING:
            continue
        mode = "755" if file.stat().st_mode & 0o100 else "644"
        there = target / file.relative_to(FILES)
        yield ["install", "-D", "--owner=root", "--group=root", f"--mode={mode}", file, there]
    for verb, units in (("enable", _STARTED), ("disable", _NOT_STARTED), ("mask", _MASKED)):
        if not (repository and units == _NOT_STARTED):
            yield ["chroot", target, "systemctl", "--quiet", verb, *units.split()]
    yield ["sh", "-c", _ANONYMOUS, "sh", target]


def _plan(is_bare: bool, target: Path) -> Iterator[Command]:
    bare, roles = packages("bare"), packages("roles")
    return plan(bare, roles, target) if is_bare else plan([*bare, *roles], [], target)


def key(is_bare: bool) -> str:
    """Sixteen hex digits that change whenever any input of the image does."""
    commands = [[str(word) for word in command] for command in _plan(is_bare, Path("/target"))]
    digest = hashlib.sha256(repr(commands).replace(str(ROOT), "").encode())
    for file in _files():
        digest.update(b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _files() -> list[Path]:
    return sorted(path for path in FILES.rglob("*") if path.is_file())


def path(place: Place, is_bare: bool) -> Path:
    """Where the image of the current key is, whether or not it exists."""
    return place.images / key(is_bare)


def make(place: Place, is_bare: bool) -> Path:
    """Build the image if it does not exist, and remove unfinished ones of earlier builds."""
    image = path(place, is_bare)
    if image.is_dir():
        return image
    place.images.mkdir(parents=True, exist_ok=True)
    with held(place.images / "lock", "making the base image", waits=True):
        if not image.is_dir():
            for left in place.images.glob("*.unfinished"):
                shutil.rmtree(left)
            unfinished = image.with_suffix(".unfinished")
            run_all([*_TIED, *command] for command in _plan(is_bare, unfinished))
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
