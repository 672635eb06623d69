"""The processes of the demo: each a `kdist` command as a user would type it, with a log of its own.

Each starts in its own session, so that Ctrl-C in the terminal reaches only the demo, which then
stops them in reverse order of their start. If one exits by itself, the demo fails and reports the
last line of its log.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from kdist.errors import UserError

HOST = "127.0.0.1"
STOP_TIMEOUT_S = 30.0
READY_TIMEOUT_S = 90.0
_POLL_S = 0.1

KDIST = (sys.executable, "-m", "kdist.cli")


class Actor(NamedTuple):
    """A process that runs until the demo ends."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


class Stage:
    """The demo's directory and its running processes. Use it as a context manager."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._actors: list[Actor] = []

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def path(self, *names: str) -> Path:
        """A place below the demo's directory."""
        return self.home.joinpath(*names)

    def write_settings(self, name: str, settings: Mapping[str, str]) -> Path:
        """A .properties file with these settings."""
        path = self.path("conf", f"{name}.properties")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def start(self, name: str, *arguments: str | Path) -> Actor:
        """Start `kdist` with these arguments; its output goes to `logs/NAME.log`."""
        log = self.path("logs", f"{name}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*KDIST, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        actor = Actor(name, process, log)
        self._actors.append(actor)
        return actor

    def check(self) -> None:
        """Raise `UserError` if a process that should be running has ended."""
        for actor in self._actors:
            if actor.process.poll() is not None:
                raise UserError(
                    f"{actor.name} ended with status {actor.process.returncode}:"
                    f" {_last_words(actor.log)} (log: {actor.log})"
                )

    def wait_for_answer(self, actor: Actor) -> Any:
        """Wait until a `--json` command is ready; return the JSON that it then prints."""
        end_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < end_s:
            self.check()
            try:
                return json.loads(actor.log.read_bytes())
            except ValueError:
                self.pause()
        raise UserError(f"{actor.name} was not ready in {READY_TIMEOUT_S:g} s (log: {actor.log})")

    def pause(self) -> None:
        """Wait for one poll interval."""
        time.sleep(_POLL_S)

    def clear(self) -> None:
        """Stop all processes, in reverse order; after a Ctrl-C meanwhile, kill the rest."""
        interrupt: KeyboardInterrupt | None = None
        while self._actors:
            try:
                self.stop(self._actors[-1], 0 if interrupt else STOP_TIMEOUT_S)
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt:
            raise interrupt

    def stop(self, actor: Actor, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Terminate a process; kill it if it has not ended within the timeout."""
        actor.process.send_signal(signal.SIGTERM)
        try:
            actor.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _kill_with_children(psutil.Process(actor.process.pid))
            actor.process.wait()
        self._actors.remove(actor)


def _kill_with_children(process: psutil.Process) -> None:
    """Kill the process and all its descendants: brokers are in sessions of their own."""
    process.suspend()  # so that it starts no more children meanwhile
    for each in (*process.children(recursive=True), process):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            each.kill()


def call(*arguments: str | Path) -> str:
    """Run `kdist` and return what it printed; if it fails, `UserError` with its last line."""
    done = subprocess.run(
        [*KDIST, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise UserError(f"`{shown(arguments)}` failed: {words[-1].removeprefix('kdist: ')}")
    return done.stdout


def shown(arguments: Sequence[str | Path]) -> str:
    """A command as one would type it."""
    return " ".join(("kdist", *map(str, arguments)))


def free_ports(count: int, start: int) -> int:
    """The first of `count` consecutive free ports, searched from `start` upwards."""
    for first in range(start, 60_000, count):
        if all(_is_free(first + number) for number in range(count)):
            return first
    raise UserError(f"there are no {count} free ports in a row on {HOST}")


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError:
            return False
        return True


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("kdist: ") if lines else "it said nothing"
