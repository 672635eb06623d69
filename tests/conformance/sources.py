"""Fetches the suites, from a package registry or a given folder, and keeps them in a cache.

Nothing of a suite enters the repository. Its folder in .cache/conformance, named after its version,
is created atomically and reused by later runs. kafka-python's tests are in its source distribution
on PyPI. librdkafka's are in Debian's source package, fetched through a sources list of our own, so
that the machine's stays unchanged. aiokafka's tests are only in its git repository: none of its
source distributions has them, and Debian does not package it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import patience
from outcome import SuiteMissingError

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "conformance"
BRING_TIMEOUT_S = 300
LOGS_KEPT = 20

# Debian 12's 2.0.2 lacks the tests from 0138 on; Debian 13's version builds on both.
LIBRDKAFKA = "librdkafka=2.8.0-1"
KAFKA_PYTHON = "kafka-python==3.0.12"
AIOKAFKA = "aiokafka==0.14.0"
LIBRDKAFKA_SUITE = "trixie"
APT = Path("/etc/apt")
# The dependencies of the Python suites, and the codecs without which they would skip tests.
PYTHON_PACKAGES = (
    "cramjam",
    "crc32c",
    "lz4",
    "py",
    "pytest",
    "pytest-asyncio",
    "pytest-mock",
    "pytest-timeout",
    "python-snappy",
    "xxhash",
    "zstandard",
)


def _source_line() -> str:
    """The apt line for Debian's source packages, on the mirror that this machine already uses."""
    lists = [APT / "sources.list", *sorted((APT / "sources.list.d").glob("*"))]
    text = "\n".join(path.read_text() for path in lists if path.is_file())
    mirrors = re.findall(
        r"^(?:URIs:|deb(?: \[[^]]*\])?) +(\S+/debian)/?(?:\s|$)", text, re.MULTILINE
    )
    if not mirrors:
        raise SuiteMissingError("this machine's packages come from no Debian mirror: --suite DIR")
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    return f"deb-src [signed-by={key}] {mirrors[0]} {LIBRDKAFKA_SUITE} main\n"


def logs() -> Path:
    """The folder for the suites' output in this run; those of the oldest runs are removed."""
    folder = CACHE / "logs" / str(os.getpid())
    if not folder.is_dir():
        with locked():
            folder.mkdir(parents=True)
            runs = sorted(folder.parent.iterdir(), key=lambda run: run.stat().st_mtime)
            for old in runs[:-LOGS_KEPT]:
                shutil.rmtree(old, ignore_errors=True)
    return folder


def new_log(name: str) -> Path:
    """A new file among the logs: those of a test's first try are kept when it is tried again."""
    path, tries = logs() / f"{name}.log", 1
    while path.exists():
        tries += 1
        path = path.with_name(f"{name}-{tries}.log")
    return path


@contextmanager
def locked() -> Iterator[None]:
    """Hold a lock, so that two runs do not fetch or build the same thing at once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def librdkafka(given: Path | None) -> Path:
    """librdkafka's source folder, writable: a folder that was given is copied first."""
    if given is not None:
        return _copied(given, "librdkafka-given")
    return _arrived(LIBRDKAFKA, _bring_librdkafka)


def kafka_python(given: Path | None) -> Path:
    """kafka-python's source folder, writable: a folder that was given is copied first."""
    if given is not None:
        return _copied(given, "kafka-python-given")
    return _arrived(KAFKA_PYTHON, _bring_kafka_python)


def aiokafka(given: Path | None) -> Path:
    """The folder that holds aiokafka's `tests`."""
    folder = given.resolve() if given is not None else CACHE / "aiokafka"
    if not (folder / "tests" / "test_consumer.py").exists():
        version = AIOKAFKA.partition("==")[2]
        raise SuiteMissingError(
            f"aiokafka's tests are in no registry: put its source of v{version} into"
            f" {CACHE / 'aiokafka'}, or name its folder with --suite DIR"
        )
    return folder


def python() -> str:
    """The Python suites' own interpreter: they need other package versions than kdist does."""
    folder = CACHE / "venv"
    stamp, wanted = folder / ".ready", " ".join((AIOKAFKA, *PYTHON_PACKAGES))
    if not stamp.exists() or stamp.read_text() != wanted:
        _bring(
            "the suites' packages from PyPI", sys.executable, "-m", "venv", "--clear", str(folder)
        )
        pip = (str(folder / "bin" / "pip"), "install", "--quiet")
        _bring("the suites' packages from PyPI", *pip, AIOKAFKA, *PYTHON_PACKAGES)
        stamp.write_text(wanted)
    return str(folder / "bin" / "python")


def _arrived(what: str, bring: Callable[[Path], None]) -> Path:
    folder = CACHE / re.sub("=+", "-", what)
    if not folder.is_dir():
        arriving = CACHE / f"{folder.name}.arriving"
        shutil.rmtree(arriving, ignore_errors=True)
        arriving.mkdir(parents=True)
        bring(arriving)
        (unpacked,) = (path for path in arriving.iterdir() if path.is_dir())
        unpacked.rename(folder)
        shutil.rmtree(arriving)
    return folder


def _copied(given: Path, name: str) -> Path:
    """A copy, updated from the original; make's output in it stays valid for unchanged sources."""
    folder = CACHE / name
    origin = folder / ".copied-from"
    if not origin.exists() or origin.read_text() != str(given.resolve()):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(given, folder, symlinks=True)
        origin.write_text(str(given.resolve()))
    return folder


def _bring_kafka_python(into: Path) -> None:
    options = ["--quiet", "--no-binary", "kafka-python", "--no-deps", "--dest", str(into)]
    _bring(
        f"{KAFKA_PYTHON} from PyPI", sys.executable, "-m", "pip", "download", *options, KAFKA_PYTHON
    )
    (archive,) = into.glob("*.tar.gz")
    shutil.unpack_archive(archive, into)


def _bring_librdkafka(into: Path) -> None:
    apt = _private_apt(into.with_name("apt"))
    _bring("Debian's list of sources", *apt, "update", "--quiet")
    _bring(
        f"{LIBRDKAFKA} from Debian",
        *apt,
        "source",
        "--quiet",
        "--download-only",
        LIBRDKAFKA,
        cwd=into,
    )
    (archive,) = into.glob("*.orig.tar.gz")
    shutil.unpack_archive(archive, into)


def _private_apt(folder: Path) -> tuple[str, ...]:
    """`apt-get` with a sources list, an index and a cache of its own."""
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "sources.list").write_text(_source_line())
    where = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Update::Error-Mode": "any",  # else no network would look like an empty list
        "APT::Sandbox::User": "root",  # apt's unprivileged user may not enter the folder
    }
    options = [option for name, value in where.items() for option in ("-o", f"{name}={value}")]
    return ("apt-get", *options)


def run(problem: str, *command: str, cwd: Path | None = None, idle_s: float) -> None:
    """Run the command; if it fails, `SuiteMissingError` with `problem` and a line of its output.

    `idle_s` is its timeout on an idle machine.
    """
    timeout_s = patience.scaled(idle_s)
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=timeout_s)
    except FileNotFoundError:
        raise SuiteMissingError(f"{problem}: {command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise SuiteMissingError(f"{problem}: not done within {timeout_s:.0f} s") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no reason given"]
        cause = next((line for line in said if "error:" in line), said[-1])  # a compiler's first
        raise SuiteMissingError(f"{problem}: {cause}")


def _bring(what: str, *command: str, cwd: Path | None = None) -> None:
    run(f"{what} could not be brought", *command, cwd=cwd, idle_s=BRING_TIMEOUT_S)
