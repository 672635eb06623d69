"""`kdist log`: the commands that inspect a log on disk, and those that change it."""

from __future__ import annotations

import click

from kdist.cli.shared.click_groups import LazyGroup

_COMMANDS = {
    "dump": ("kdist.cli.log.dump:dump", "Show batches, records, indexes and the other files."),
    "verify": (
        "kdist.cli.log.verify:verify_log",
        "Check every byte; exit with 1 if there is damage.",
    ),
    "find": ("kdist.cli.log.find:find", "Find the record of an offset or a time."),
    "trim": ("kdist.cli.log.repair:trim", "Cut off the end of a partition's log."),
    "clean": ("kdist.cli.log.repair:clean", "Compact partitions, or show what would go."),
    "rebuild-indexes": (
        "kdist.cli.log.repair:rebuild_indexes",
        "Rebuild the indexes from the log.",
    ),
}


@click.group(cls=LazyGroup, commands_by_name=_COMMANDS)
def log() -> None:
    """Inspect and repair a log on disk, kdist's own or Apache Kafka's.

    PATH is a broker's log directory, a partition's directory, or a file in it. dump, verify and
    find change nothing and need no lock: a broker may run on the directory, as for clean --dry-run.
    trim, clean and rebuild-indexes take the directory's lock, and refuse while a broker runs.
    """
