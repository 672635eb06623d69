"""Atomic and durable replacement of a small file, in terms of the calls of `files.py`.

The real and the simulated disk both take `replace` from here, so that tests that lose power between
two of its steps test the steps that production takes:

    create <path>.tmp, write, sync     the new content is on the disk under a name nobody reads
    rename over <path>                 readers see the old or the new content
    sync the directory                 and so they do after a power loss

Without `durable` there is no sync: the caller follows with one `sync_filesystem`.
"""

from __future__ import annotations

import os

from kdist.errors import KdistError
from kdist.runtime.files import File, Files


def replace(files: Files, path: str, content: bytes, *, durable: bool, is_secret: bool) -> None:
    """Implements `Files.replace` with the other methods of `files`."""
    temporary = f"{path}.tmp"
    file = _create_anew(files, temporary, is_secret)
    try:
        try:
            file.write((content,), 0)
            if durable:
                file.sync()
        finally:
            file.close()
        files.rename(temporary, path)
    except Exception:
        _remove_leftover(files, temporary)
        raise
    if durable:
        files.sync_directory(os.path.dirname(path))


def _create_anew(files: Files, path: str, is_secret: bool) -> File:
    try:
        return files.create(path, is_secret=is_secret)
    except FileExistsError:  # a crash left it behind
        files.remove(path)
        return files.create(path, is_secret=is_secret)


def _remove_leftover(files: Files, path: str) -> None:
    try:
        files.remove(path)
    except (OSError, KdistError):
        pass  # the error being raised matters more, and the next `replace` removes the leftover
