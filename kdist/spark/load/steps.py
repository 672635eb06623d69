"""The steps of a load's commit, in order, and what is true when each is done (pure).

Whoever runs a load is told of each step as it is reached: tests and drills kill it there. Until
`renamed` a crash leaves the output as it was, but for a directory that no reader sees; from then on
the load is there whole.
"""

from __future__ import annotations

from collections.abc import Callable

from kdist.config.load_job import Step

Reached = Callable[[Step], object]

STEPS: dict[Step, str] = {
    "planned": "The lock is held, leftovers are removed, the offsets to load are fixed.",
    "staging": "The staging directory is there, and empty.",
    "staged": "Spark has written every file into it.",
    "counted": "The files' rows are counted, and are no more than the offsets.",
    "files-synced": "The content of every file is on the disk.",
    "manifest-written": "The manifest is beside them, and on the disk.",
    "directories-synced": "The names of all files, and of the manifest, are on the disk.",
    "superseded": "In a replay: the loads it stands for are out of readers' sight, last first.",
    "renamed": "The staging directory has the load's name: readers see all of it.",
    "committed": "That name is on the disk, too.",
    "swept": "What was superseded is removed.",
}


def go_on(step: Step) -> None:
    """What is done at each step where nothing is: the load just goes on."""
