"""The commit of a load: what Spark has staged becomes visible, in one rename.

The order is essential. Files, manifest and directory entries are synced before the rename, so a
directory with a load's name is always complete; a directory is renamed, so readers see all of its
files or none. The rename fails if the load's directory exists, so of two runs that both believe
they hold the lock only one commits. A replay makes a second directory for the topic, with its load
and hard links to the files of the loads that stay, and exchanges the two. Where that is not
supported, it hides the loads that it replaces, from the last to the first, and syncs after each:
after a crash the loads before are left, without a gap, and the next run puts the hidden ones back.
docs/formats/load-output.md has the full argument.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator

from kdist.config.load_job import Step
from kdist.errors import UserError
from kdist.runtime.files import Files
from kdist.spark.load.layout import (
    COUNTS,
    LOCK,
    MANIFEST,
    Run,
    load_name,
    load_number,
    replay_name,
    staging_name,
    superseded_name,
)
from kdist.spark.load.manifest import Manifest, write_manifest

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.ENOSYS)
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
        output, _, name = directory.rpartition("/")
        self._output = output or "/"
        self._beside = f"{output}/{replay_name(name.partition('=')[2], run)}"
        self._is_exchanged = False

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
        replaced = set(supersedes)
        if replaced and self._exchange(replaced):
            return
        for number in sorted(replaced, reverse=True):
            hidden = f"{self._directory}/{superseded_name(number, self._run)}"
            files.rename(f"{self._directory}/{load_name(number)}", hidden)
            files.sync_directory(self._directory)
            self._on_step("superseded")
        self._rename()
        self._on_step("renamed")
        files.sync_directory(self._directory)
        self._on_step("committed")

    def _exchange(self, replaced: set[int]) -> bool:
        """Replace loads by exchanging the topic's directory; False if that is not supported."""
        files, beside = self._files, self._beside
        staying = [
            name
            for name in files.list(self._directory)
            if name == LOCK or load_number(name) not in (None, *replaced)
        ]
        files.make_directory(beside)
        try:
            for name in staying:
                self._link(f"{self._directory}/{name}", f"{beside}/{name}")
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            files.remove_tree(beside)
            return False
        new = f"{beside}/{load_name(self.number)}"
        files.rename(self.staging, new)
        files.sync_filesystem(self._output)
        self._on_step("superseded")
        if not files.exchange(self._directory, beside):
            files.rename(new, self.staging)
            files.remove_tree(beside)
            return False
        self._is_exchanged = True
        self._on_step("renamed")
        files.sync_directory(self._output)
        self._on_step("committed")
        return True

    def _link(self, old: str, new: str) -> None:
        """Give a file another name, or each in a directory."""
        files = self._files
        if not files.is_directory(old):
            files.link(old, new)
            return
        files.make_directory(new)
        for name in files.list(old):
            self._link(f"{old}/{name}", f"{new}/{name}")

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
        """Remove what is staged, as the load has failed; not what has become the old directory."""
        for path in (self.staging, self._beside):
            if self._files.is_directory(path) and not self._is_exchanged:
                self._files.remove_tree(path)

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
