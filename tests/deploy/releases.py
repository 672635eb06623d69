"""Releases that drills install: a bundle whose brokers can be told not to start."""

from __future__ import annotations

import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.deploy.deployed import ROOT, Broker
from tools.describe_release import describe

_DIST = ROOT / "dist"
_PROGRAM = "kdist/cli/broker.py"
_BEFORE = "    diagnostics.set_up("
_FAULT = """\
    fault = os.path.join(os.path.dirname(os.path.dirname(path)), "fails")
    if os.path.exists(fault):
        return int(open(fault).read())
"""


def make_faulty(version: str) -> str:
    """Make the release `version` anew, as another one whose brokers `fail` where they are told to.

    Returns its version.
    """
    faulty = f"{version}+faulty"
    with tempfile.TemporaryDirectory() as name:
        bundle = Path(name)
        with tarfile.open(_DIST / f"kdist-{version}.tar") as given:
            given.extractall(bundle)
        (wheel,) = (bundle / "wheels").glob(f"kdist-{version}-*.whl")
        _rewrite(wheel, version, faulty)
        describe(bundle, faulty, "a drill's")
        with tarfile.open(_DIST / f"kdist-{faulty}.tar", "w") as made:
            for part in ("RELEASE.json", "requirements.txt", "wheels"):
                made.add(bundle / part, part)
    return faulty


def _rewrite(wheel: Path, version: str, faulty: str) -> None:
    """Put the fault and the new version in; pip checks the wheel's own hash alone."""
    named = (f"kdist-{version}.dist-info", f"kdist-{faulty}.dist-info")
    with (
        zipfile.ZipFile(wheel) as given,
        zipfile.ZipFile(wheel.with_name(wheel.name.replace(version, faulty)), "w") as made,
    ):
        for name in given.namelist():
            content = given.read(name)
            if name == _PROGRAM:
                assert _BEFORE.encode() in content
                content = content.replace(_BEFORE.encode(), f"{_FAULT}{_BEFORE}".encode())
            if name.startswith(named[0]):
                content = content.replace(named[0].encode(), named[1].encode())
                content = content.replace(
                    f"\nVersion: {version}\n".encode(), f"\nVersion: {faulty}\n".encode()
                )
            made.writestr(name.replace(*named), content)
    wheel.unlink()


def fail(broker: Broker, status: int) -> None:
    """With a faulty release, this broker ends with the status instead of starting."""
    broker.host.says(f"echo {status} >{_fault(broker)}")


def mend(broker: Broker) -> None:
    broker.host.says(f"rm -f {_fault(broker)}")


def _fault(broker: Broker) -> str:
    return f"/etc/kdist/brokers/{broker.instance}/fails"
