"""Where the command `kdist` starts: an interrupt is no traceback, even while modules are imported.

That takes 0.1 s, and there is nothing to clean up yet; nor is there any more once all is done.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from kdist.runtime.interrupted import end_interrupted

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


def main() -> None:
    """The entry point that the package installs."""
    before = signal.getsignal(signal.SIGINT)
    is_heard = before is signal.default_int_handler  # in some shells' background it is ignored
    alone = end_interrupted if is_heard else before
    try:
        signal.signal(signal.SIGINT, alone)
        sys.unraisablehook = _end_or_tell
        from kdist.cli.main import main as run

        signal.signal(signal.SIGINT, before)
        run()
    except KeyboardInterrupt:  # before or behind what hears of it
        end_interrupted()
    finally:
        signal.signal(signal.SIGINT, alone)


def _end_or_tell(lost: UnraisableHookArgs) -> None:
    """Python drops what is raised where no line waits for it, as between two imports."""
    if lost.exc_type is KeyboardInterrupt:
        end_interrupted()
    sys.__unraisablehook__(lost)
