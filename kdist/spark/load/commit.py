"""The commit of a load: what Spark has staged becomes visible, in one rename.

The order is essential. Files, manifest and directory entries are synced before the rename, so a
directory with a load's name is always complete; a directory is renamed, so readers see all of its
files or none. The rename fails if the load's directory exists, so of two runs that both believe
they hold the lock only one commits. A replay first hides the loads that it replaces, from the last
to the first, and syncs after each: after a crash the loads before are left, without a gap, and the
next run puts the hidden ones back. docs/formats/load-output.md has the full argument.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator

from kdist.config.load_job import Step
from kdist.errors import UserError
from kdist.runtime.files import Files
from kdist.spark.load.layout import COUNTS, MANIFEST, Run, load_name, staging_name, superseded_name
from kdist.spark.load.manifest import Manifest, write_manifest

OnStep = Callable[[Step], object]
"""Called with each step of a load as it is reached: tests and drills kill the load there."""


class Commit:
    """Commits one load into a topic's directory. The caller holds the ledger's lock."""

    def __init__(
        self, files: Files, directory: str, number: int, run: Run, on_step: OnStep
    ) -> None:
        self.number = number
        self.staging = f"{directory}/{staging_name(number, run)}"
        self._files = files
        self._directory = directory
        self._run = run
        self._on_step = on_step

    def begin(self) -> None:
        """Make the staging directory, for Spark to write to, and one in it for counts."""
        self._files.make_directory(self.staging)
        self._files.make_directory(self.counts)
        self._on_step("staging")

    @property
    def counts(self) -> str:
        """Where the tasks note how many records they have read."""
        return f"{self.staging}/{COUNTS}"

    def staged(self) -> list[tuple[str, int]]:
        """The files in the staging directory: paths relative to it, and sizes in bytes."""
        return [
            (path.removeprefix(f"{self.staging}/"), self._files.size(path))
            for path in self._walk(self.staging)
        ]

    def publish(self, manifest: Manifest, supersedes: Iterable[int] = ()) -> None:
        """Commit what is staged, which `manifest` describes, and replace the loads `supersedes`.

        `UserError` if another run has committed this load meanwhile.
        """
        files, staging = self._files, self.staging
        files.remove_tree(self.counts)
        for path in self._walk(staging):
            _sync(files, path)
        self._on_step("files-synced")
        _write(files, f"{staging}/{MANIFEST}", write_manifest(manifest))
        self._on_step("manifest-written")
        for directory in self._directories(staging):
            files.sync_directory(directory)
        files.sync_directory(self._directory)
        self._on_step("directories-synced")
        self._require_there(manifest)
        for number in sorted(supersedes, reverse=True):
            hidden = f"{self._directory}/{superseded_name(number, self._run)}"
            files.rename(f"{self._directory}/{load_name(number)}", hidden)
            files.sync_directory(self._directory)
            self._on_step("superseded")
        self._rename()
        self._on_step("renamed")
        files.sync_directory(self._directory)
        self._on_step("committed")

    def _require_there(self, manifest: Manifest) -> None:
        """`UserError` unless the staged files still are what the manifest says."""
        for path, _, size_bytes in manifest.files:
            staged = f"{self.staging}/{path}"
            if not self._files.exists(staged) or self._files.size(staged) != size_bytes:
                raise UserError(
                    f"another run has removed {staged}, as it does not see this run's lock: this"
                    " load is dropped, and the next goes on from there"
                )

    def _rename(self) -> None:
        try:
            self._files.rename(self.staging, f"{self._directory}/{load_name(self.number)}")
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise UserError(
                f"another run has committed load {self.number} in {self._directory}: this one is"
                " dropped, and the next goes on from there"
            ) from None

    def abandon(self) -> None:
        """Remove what is staged, as the load has failed."""
        if self._files.is_directory(self.staging):
            self._files.remove_tree(self.staging)

    def _walk(self, directory: str) -> Iterator[str]:
        """The files under a directory, in order."""
        for name in self._files.list(directory):
            path = f"{directory}/{name}"
            if self._files.is_directory(path):
                yield from self._walk(path)
            else:
                yield path

    def _directories(self, directory: str) -> Iterator[str]:
        """The directories under one, and then that one itself."""
        for name in self._files.list(directory):
            if self._files.is_directory(f"{directory}/{name}"):
                yield from self._directories(f"{directory}/{name}")
        yield directory


def _sync(files: Files, path: str) -> None:
    file = files.open(path)
    try:
        file.sync()
    finally:
        file.close()


def _write(files: Files, path: str, content: bytes) -> None:
    file = files.create(path)
    try:
        file.write((content,), 0)
        file.sync()
    finally:
        file.close()


def go_on(_: Step) -> None:
    """Do nothing at a step: the default of `OnStep`."""
