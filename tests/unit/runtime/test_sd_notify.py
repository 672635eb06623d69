"""Notifications to systemd."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

from kdist.runtime.sd_notify import ServiceManager


def test_the_watchdog_is_notified_even_without_free_descriptors(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            manager.tell("WATCHDOG=1")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert systemd.recv(100) == b"WATCHDOG=1"
