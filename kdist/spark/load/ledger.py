"""The loads of one topic that an output has: what is committed, and what runs have left behind.

A load counts if its directory has a load's name, for that name was given in one rename when all
else was there. Only `put_back` and `sweep` change anything; the holder of the lock calls them.
"""

from __future__ import annotations

import errno

from kdist.errors import UserError
from kdist.runtime.files import Files, Lock
from kdist.spark.load.layout import (
    LOCK,
    MANIFEST,
    is_leftover,
    load_name,
    load_number,
    superseded_number,
    topic_directory,
)
from kdist.spark.load.manifest import CorruptManifest, Manifest, chain_fault, read_manifest


class Ledger:
    """Of one topic in one output."""

    def __init__(self, files: Files, output: str, topic: str) -> None:
        self.directory = topic_directory(output, topic)
        self.topic = topic
        self._files = files
        self._output = output.rstrip("/")

    def numbers(self) -> list[int]:
        """The loads there are, in order."""
        if not self._files.is_directory(self.directory):
            return []
        found = (load_number(name) for name in self._files.list(self.directory))
        return sorted(number for number in found if number is not None)

    def manifest(self, number: int) -> Manifest:
        """What a load is; `CorruptManifest`."""
        return self._manifest_in(load_name(number), number)

    def _manifest_in(self, name: str, number: int) -> Manifest:
        path = f"{self.directory}/{name}/{MANIFEST}"
        try:
            content = self._files.read(path)
        except FileNotFoundError:
            raise CorruptManifest(
                f"{path} is missing: kdist made no such load, or someone has removed it"
            ) from None
        found = read_manifest(content, path)
        if (found.load, found.topic) != (number, self.topic):
            raise CorruptManifest(
                f"{path} is of load {found.load} of {found.topic}: it was put in a wrong place"
            )
        return found

    def last(self) -> Manifest | None:
        """The newest load; None before the first."""
        numbers = self.numbers()
        return self.manifest(numbers[-1]) if numbers else None

    def lock(self) -> Lock:
        """The right to write, for one run at a time; makes the directories it is in.

        `UserError` if another run has it.
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
        """Make a directory that is not there, so that it lasts."""
        if self._files.is_directory(path):
            return
        parent = path.rpartition("/")[0] or "/"
        try:
            self._files.make_directory(path)
        except FileExistsError:
            if not self._files.is_directory(path):
                raise UserError(f"{path} is to be a directory, and is a file") from None
        except FileNotFoundError:
            raise UserError(f"{path} cannot be made, as {parent} is not there") from None
        self._files.sync_directory(parent)

    def put_back(self) -> None:
        """Give loads their names again that a replay took away and then did not replace.

        It did, if they do not follow on the last load: that one has their records.
        """
        for name in self._files.list(self.directory):
            number = superseded_number(name)
            if number is None:
                continue
            before = self.last()
            try:
                hidden = self._manifest_in(name, number)
            except CorruptManifest:
                continue  # it was being removed
            if before is None or chain_fault(before, hidden) is None:
                self._files.rename(
                    f"{self.directory}/{name}", f"{self.directory}/{load_name(number)}"
                )
                self._files.sync_directory(self.directory)

    def sweep(self) -> int:
        """Remove what runs that have ended left behind; how many directories that were.

        Loads that a replay did not replace are put back.
        """
        self.put_back()
        left = [name for name in self._files.list(self.directory) if is_leftover(name)]
        for name in left:
            try:
                self._files.remove_tree(f"{self.directory}/{name}")
            except OSError as error:
                # An executor outlived its driver and still writes there: the next run's to remove.
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                    raise
        return len(left)
