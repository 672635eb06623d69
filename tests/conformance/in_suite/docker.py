"""A fake of the `docker` package for aiokafka's suite: a container is a broker process of ours.

The fixtures start a "container" with the port to serve in its environment; KDIST_SERVE holds the
command (as JSON) that runs brokers until SIGTERM. Kafka's security tools, which the fixtures would
run inside the container, do not exist: such a command fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

STOP_TIMEOUT_S = 60
SESSION_TIMEOUT = "group.min.session.timeout.ms=6000"  # the default: a test tries a shorter one


class Container:
    """Running brokers."""

    def __init__(self, environment: Mapping[str, Any]) -> None:
        command = json.loads(os.environ["KDIST_SERVE"])
        self._directory = tempfile.TemporaryDirectory(prefix="aiokafka-")
        command += [f"{self._directory.name}/data", "--port", str(environment["ADVERTISED_PORT"])]
        command += ["--set", f"num.partitions={environment['NUM_PARTITIONS']}"]
        command += ["--set", SESSION_TIMEOUT]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError("the broker did not start")

    def exec_run(self, command: Any, **options: Any) -> tuple[int, bytes]:
        """Always fails: commands cannot be run inside."""
        return 1, f"not in this container: {command}".encode()

    def stop(self) -> None:
        """Stop the brokers."""
        self._process.terminate()
        self._process.wait(STOP_TIMEOUT_S)
        self._directory.cleanup()


class Client:
    """The client that `from_env` returns."""

    def __init__(self) -> None:
        self.images = SimpleNamespace(pull=lambda image: None)
        self.containers = SimpleNamespace(run=self._run)

    def close(self) -> None:
        """Does nothing: no connection is open."""

    def _run(self, *, environment: Mapping[str, Any], **options: Any) -> Container:
        return Container(environment)


from_env = Client
models = SimpleNamespace(containers=SimpleNamespace(Container=Container))
