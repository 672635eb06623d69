"""The simulated disk's directories, and which names survive a power loss.

A change of names is durable once a directory that it touches was synced. Before that it may survive
a power loss or not, independently of other changes, with two exceptions, as on a journaling
filesystem: a change is atomic (a rename leaves the old name or the new, never neither), and it does
not survive without the earlier changes of the same name or the same file.
"""

from __future__ import annotations

import errno
import os
import random
from typing import NamedTuple

from kdist.testing.simulated_content import Content


class Directory:
    """Names and what they refer to: as seen now, and as on the disk."""

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = Content | Directory


class Move(NamedTuple):
    """`name` in `directory` now refers to `node`; with None it is removed."""

    directory: Directory
    name: str
    node: Node | None


class Change(NamedTuple):
    """Moves that happen atomically, and the file or directory that they concern."""

    node: Node
    moves: tuple[Move, ...]


class Names:
    """A tree of directories with the changes that are not durable yet, oldest first."""

    def __init__(self, root: Directory) -> None:
        self.root = root
        self._pending: list[Change] = []

    def find(self, path: str) -> Node:
        """The file or directory at `path`; `FileNotFoundError`, `NotADirectoryError`."""
        node: Node = self.root
        for name in path.split("/"):
            if name in ("", "."):
                continue
            if not isinstance(node, Directory):
                raise os_error(errno.ENOTDIR, path)
            if name not in node.entries:
                raise os_error(errno.ENOENT, path)
            node = node.entries[name]
        return node

    def directory(self, path: str) -> Directory:
        """The directory at `path`."""
        node = self.find(path)
        if not isinstance(node, Directory):
            raise os_error(errno.ENOTDIR, path)
        return node

    def content(self, path: str) -> Content:
        """The file's content at `path`; `IsADirectoryError`."""
        node = self.find(path)
        if not isinstance(node, Content):
            raise os_error(errno.EISDIR, path)
        return node

    def add(self, path: str, node: Node) -> None:
        """Give `node` a name; `FileExistsError`."""
        directory, name = self._place(path)
        if name in directory.entries:
            raise os_error(errno.EEXIST, path)
        self._change(node, Move(directory, name, node))

    def rename(self, old: str, new: str) -> None:
        """As rename(2): a file replaces a file, a directory an empty directory."""
        source, old_name = self._place(old)
        target, new_name = self._place(new)
        node = self.find(old)
        there = target.entries.get(new_name)
        if there is node:
            return
        if new.startswith(f"{old}/"):
            raise os_error(errno.EINVAL, new)
        if old.startswith(f"{new}/"):
            raise os_error(errno.ENOTEMPTY, new)
        if there is not None:
            _check_replaceable(there, node, new)
        self._change(node, Move(source, old_name, None), Move(target, new_name, node))

    def link(self, old: str, new: str) -> None:
        """As link(2): a file gets another name."""
        node = self.find(old)
        directory, name = self._place(new)
        if name in directory.entries:
            raise os_error(errno.EEXIST, new)
        if isinstance(node, Directory):
            raise os_error(errno.EPERM, new)
        self._change(node, Move(directory, name, node))

    def exchange(self, one: str, other: str) -> bool:
        """As renameat2(2) with RENAME_EXCHANGE; False if one is within the other."""
        (directory, name), (there, other_name) = self._place(one), self._place(other)
        node, by = self.find(one), self.find(other)
        if node is not by:
            if one.startswith(f"{other}/") or other.startswith(f"{one}/"):
                return False
            self._change(node, Move(directory, name, by), Move(there, other_name, node))
        return True

    def remove(self, path: str) -> None:
        """Remove a file's name."""
        directory, name = self._place(path)
        self._change(self.content(path), Move(directory, name, None))

    def remove_tree(self, path: str) -> None:
        """Remove a directory's name, after the names of everything in it."""
        directory, name = self._place(path)
        top = self.directory(path)
        for child, node in list(top.entries.items()):
            if isinstance(node, Directory):
                self.remove_tree(f"{path}/{child}")
            else:
                self.remove(f"{path}/{child}")
        self._change(top, Move(directory, name, None))

    def _place(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        return self.directory(parent), name

    def _change(self, node: Node, *moves: Move) -> None:
        for directory, name, moved in moves:
            _move(directory.entries, name, moved)
        self._pending.append(Change(node, moves))

    def sync(self, directory: Directory | None) -> None:
        """Make the changes durable that touch `directory`; with None, all changes."""
        chosen = _with_causes(
            self._pending,
            [
                directory is None or any(move.directory is directory for move in change.moves)
                for change in self._pending
            ],
        )
        for change in chosen:
            for move in change.moves:
                _move(move.directory.durable, move.name, move.node)
        done = {id(change) for change in chosen}
        self._pending = [change for change in self._pending if id(change) not in done]

    def contents(self) -> list[Content]:
        """All files that have a name."""
        found: list[Content] = []
        unseen: list[Node] = [self.root]
        while unseen:
            node = unseen.pop()
            if isinstance(node, Directory):
                unseen.extend(node.entries.values())
            else:
                found.append(node)
        return found

    def survivor(self, rng: random.Random) -> Names:
        """Possible names after a power loss now. These stay as they are."""
        share = rng.choice((0.0, 1.0, rng.random()))  # of pending changes that survive
        chosen = _with_causes(self._pending, [rng.random() < share for _ in self._pending])
        changed: dict[int, dict[str, Node]] = {}
        for change in chosen:
            for directory, name, node in change.moves:
                entries = changed.setdefault(id(directory), dict(directory.durable))
                _move(entries, name, node)
        return Names(_rebuilt(self.root, changed, rng))


def os_error(code: int, path: str) -> OSError:
    """The error that the kernel would give, as Python's subclass for it."""
    return OSError(code, os.strerror(code), path)


def _check_replaceable(there: Node, by: Node, path: str) -> None:
    if isinstance(there, Directory):
        if not isinstance(by, Directory):
            raise os_error(errno.EISDIR, path)
        if there.entries:
            raise os_error(errno.ENOTEMPTY, path)
    elif isinstance(by, Directory):
        raise os_error(errno.ENOTDIR, path)


def _move(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _with_causes(changes: list[Change], is_chosen: list[bool]) -> list[Change]:
    """The chosen changes with the earlier changes that they depend on, oldest first."""
    touched: set[int | tuple[int, str]] = set()
    found: list[Change] = []
    for change, chosen in zip(reversed(changes), reversed(is_chosen), strict=True):
        names = ((id(move.directory), move.name) for move in change.moves)
        touches: set[int | tuple[int, str]] = {id(change.node), *names}
        if chosen or not touched.isdisjoint(touches):
            touched |= touches
            found.append(change)
    found.reverse()
    return found


def _rebuilt(
    directory: Directory, changed: dict[int, dict[str, Node]], rng: random.Random
) -> Directory:
    """A copy of `directory` as on the disk, with `changed` in place of its durable entries."""
    copy = Directory()
    for name, node in changed.get(id(directory), directory.durable).items():
        if isinstance(node, Directory):
            copy.durable[name] = _rebuilt(node, changed, rng)
        else:
            copy.durable[name] = node.survivor(rng)
    copy.entries = dict(copy.durable)
    return copy
