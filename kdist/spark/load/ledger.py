"""The loads of one topic in an output: those committed, and what failed runs left behind.

A directory with a load's name is a committed load, as it gets that name by a rename once it is
complete. Only `put_back` and `sweep` change loads; the holder of the lock calls them.
"""

from __future__ import annotations

import errno

from kdist.errors import UserError
from kdist.runtime.files import Files, Lock
from kdist.spark.load.layout import (
    LOCK,
    MANIFEST,
    Run,
    is_leftover,
    load_name,
    load_number,
    removed_name,
    run_of,
    run_of_replay,
    superseded_number,
    topic_directory,
)
from kdist.spark.load.manifest import CorruptManifest, Manifest, chain_fault, read_manifest

_FOREIGN_MS = 7 * 86_400_000
"""How old another host's leftover must be: younger ones may be a live run's, whose lock is not
seen from here. That is so on NFS without locks."""


class Ledger:
    """The loads of one topic in one output."""

    def __init__(self, files: Files, output: str, topic: str) -> None:
        self.directory = topic_directory(output, topic)
        self.topic = topic
        self._files = files
        self._output = output.rstrip("/")

    def numbers(self) -> list[int]:
        """The numbers of the committed loads, in order."""
        if not self._files.is_directory(self.directory):
            return []
        found = (load_number(name) for name in self._files.list(self.directory))
        return sorted(number for number in found if number is not None)

    def manifest(self, number: int) -> Manifest:
        """A load's manifest; `CorruptManifest` if it is missing or wrong."""
        return self._manifest_in(load_name(number), number)

    def _manifest_in(self, name: str, number: int) -> Manifest:
        path = f"{self.directory}/{name}/{MANIFEST}"
        try:
            content = self._files.read(path)
        except FileNotFoundError:
            raise CorruptManifest(
                f"{path} is missing: kdist did not make this load, or somebody removed the file"
            ) from None
        found = read_manifest(content, path)
        if (found.load, found.topic) != (number, self.topic):
            raise CorruptManifest(
                f"{path} is of load {found.load} of {found.topic}: it is in the wrong place"
            )
        return found

    def last(self) -> Manifest | None:
        """The newest load; None before the first."""
        numbers = self.numbers()
        return self.manifest(numbers[-1]) if numbers else None

    def lock(self) -> Lock:
        """Take the lock, which one run at a time holds; makes the topic's directory if need be.

        `UserError` if another run holds it.
        """
        self._make(self._output)
        self._make(self.directory)
        try:
            return self._files.lock(f"{self.directory}/{LOCK}")
        except BlockingIOError:
            raise UserError(
                f"another load of {self.topic} is writing to {self._output}: wait for it"
            ) from None

    def _make(self, path: str) -> None:
        """Make a directory durably, if it does not exist."""
        if self._files.is_directory(path):
            return
        parent = path.rpartition("/")[0] or "/"
        try:
            self._files.make_directory(path)
        except FileExistsError:
            if not self._files.is_directory(path):
                raise UserError(f"{path} must be a directory, but is a file") from None
        except FileNotFoundError:
            raise UserError(f"{path} cannot be made: {parent} does not exist") from None
        self._files.sync_directory(parent)

    def put_back(self) -> None:
        """Restore the loads that a failed replay has hidden but not replaced.

        Those that do not continue the last load were replaced: it has their records.
        """
        for name in self._files.list(self.directory):
            number = superseded_number(name)
            if number is None:
                continue
            before = self.last()
            try:
                hidden = self._manifest_in(name, number)
            except CorruptManifest:
                continue  # a run was removing it when it ended
            if before is None or chain_fault(before, hidden) is None:
                self._files.rename(
                    f"{self.directory}/{name}", f"{self.directory}/{load_name(number)}"
                )
                self._files.sync_directory(self.directory)

    def sweep(self, run: Run | None = None) -> int:
        """Remove what earlier runs left behind; returns how many directories.

        Before that, puts back loads that a replay has not replaced. What another host than the
        run's has left stays for a week.
        """
        found = [name for name in self._files.list(self.directory) if is_leftover(name)]
        self.put_back()
        removed = sum(self._remove(name) for name in found if _may_go(run, run_of(name)))
        return removed + self._sweep_replays(run)

    def _sweep_replays(self, run: Run | None) -> int:
        """Remove what replays have made, or replaced, beside the topic's directory."""
        found = [
            name
            for name in self._files.list(self._output or "/")
            if (left_by := run_of_replay(self.topic, name)) and _may_go(run, left_by)
        ]
        if found:  # first what was exchanged: without that, these are the loads
            self._files.sync_directory(self._output or "/")
        for name in found:
            self._files.remove_tree(f"{self._output}/{name}")
        return len(found)

    def _remove(self, name: str) -> bool:
        """Remove a leftover that is there, first its name: its run may be alive after all.

        From then on that run cannot commit. If it has, or if the load was put back, nothing is
        removed.
        """
        path = f"{self.directory}/{removed_name(name)}"
        try:
            if not path.endswith(f"/{name}"):
                self._files.rename(f"{self.directory}/{name}", path)
            self._files.remove_tree(path)
        except OSError as error:
            # An executor has outlived its driver and still writes there: left to the next run.
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
            return error.errno == errno.ENOTEMPTY
        return True


def _may_go(run: Run | None, left_by: Run | None) -> bool:
    """Whether `run`, which holds the lock, may remove what another run left."""
    if run is None or left_by is None or left_by.host in ("", run.host):
        return True
    return run.started_ms - left_by.started_ms > _FOREIGN_MS
