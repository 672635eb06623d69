"""Waits until a broker is fully back, for as long as it gets nearer, and says how far it is.

No length of time is right for that: a new disk of 4 TB fills for ten hours, one of 100 GB for
minutes. So the wait ends once the broker has got no nearer for a while: it has neither fewer bytes
nor fewer partitions to go. The host is asked again and again by a short command, so that a
connection that breaks costs one answer; what is waited for goes on in the cluster by itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

_PAUSE_S_MAX = 60
_RATE_OVER_S = 300


class Look(NamedTuple):
    """What one answer says: how many partitions and bytes are to go, None where it is not said."""

    at_s: float
    partitions: int | None
    bytes: int | None


class Approach:
    """How a broker gets nearer, from one look to the next (pure)."""

    def __init__(self, began_s: float) -> None:
        self.nearer_s = began_s
        self._nearest: dict[str, int] = {}
        self._looks: list[Look] = []

    def see(self, look: Look) -> None:
        """Take an answer in."""
        for name in ("partitions", "bytes"):
            left = getattr(look, name)
            if left is not None and left < self._nearest.get(name, left + 1):
                self._nearest[name] = left
                self.nearer_s = look.at_s
        self._looks.append(look)
        while look.at_s - self._looks[0].at_s > _RATE_OVER_S:
            del self._looks[0]

    def sentence(self) -> str:
        """`3412.0 GB of 218 partitions to go, 148 MB/s, 6 h 24 min`."""
        last = self._looks[-1]
        if last.partitions is None:
            return "it does not answer"
        if not last.partitions:
            return "in sync with all its partitions"
        of = f"{last.partitions} partition{'s' * (last.partitions != 1)} to go"
        if last.bytes is None:
            return of
        sized = f"{last.bytes / 1e9:.1f} GB of {of}"
        first = next(each for each in self._looks if each.bytes is not None)
        seconds, got = last.at_s - first.at_s, (first.bytes or 0) - last.bytes
        if seconds <= 0 or got <= 0:
            return sized
        minutes = round(last.bytes / (got / seconds) / 60)
        return f"{sized}, {got / seconds / 1e6:.0f} MB/s, {minutes // 60} h {minutes % 60} min"


def read(result: Mapping[str, Any], at_s: float) -> tuple[Look, list[str]]:
    """What the gate's answer says: how far it is, and the reasons why it is not back."""
    try:
        said = json.loads(result.get("stdout") or "")
        lack = said.get("lack") or {}
        return Look(at_s, lack.get("partitions"), lack.get("bytes")), list(said["reasons"])
    except (ValueError, KeyError, AttributeError):
        told = result.get("stderr") or result.get("msg") or "no answer"
        return Look(at_s, None, None), [str(told)]


class ActionModule(ActionBase):
    """Arguments: `argv`, the command; `name`, whom it is about; `poll_s`; `stall_s`."""

    TRANSFERS_FILES = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        outcome: dict[str, Any] = super().run(tmp, task_vars)
        arguments = self._task.args
        began_s = time.monotonic()
        approach = Approach(began_s)
        while True:
            result = self._ask(arguments["argv"], task_vars)
            now_s = time.monotonic()
            if result.get("rc") == 0:
                return outcome | {"changed": False, "msg": f"{arguments['name']} is fully back"}
            look, reasons = read(result, now_s)
            approach.see(look)
            said = f"{arguments['name']}: {approach.sentence()}"
            self._display.display(said)
            if now_s - approach.nearer_s >= float(arguments["stall_s"]):
                stalled = (
                    f"{said}, and no nearer for {arguments['stall_s']} s: {'; '.join(reasons)}"
                )
                return outcome | {"failed": True, "changed": False, "msg": stalled}
            # Every minute in the end, and more often where all is over in one.
            longest = max(float(arguments["poll_s"]), (now_s - began_s) / 10)
            time.sleep(min(longest, _PAUSE_S_MAX))

    def _ask(self, argv: list[str], task_vars: dict[str, Any] | None) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = self._execute_module(
                module_name="ansible.legacy.command",
                module_args={"argv": argv, "_uses_shell": False},
                task_vars=task_vars,
            )
        except AnsibleConnectionFailure as error:
            return {"msg": str(error)}
        return found
