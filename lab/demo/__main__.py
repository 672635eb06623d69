"""`make demo`: kdist's main job on real input, on this machine, in a few minutes.

It runs two datacenters (each with a real ZooKeeper and three brokers, one of which is killed) and a
mirror from the first to the second, and loads the mirrored topics into Parquet files: every flight
that left New York City in 2013, and this host's operational data. Everything is in one directory,
which is emptied first and locked against a second demo. Ctrl-C stops all processes; a second Ctrl-C
kills them.
Exits with 1 if something failed, or if the number of rows differs from the flights of any day.
"""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from kdist.cli.shared.show import show_error
from kdist.errors import KdistError, UserError
from kdist.runtime.unix import INTERRUPTED
from lab.demo.page import differing_days, print_page
from lab.demo.play import Play
from lab.demo.stage import Stage
from lab.lock import held
from lab.place import ROOT

HOME = ROOT / ".cache" / "demo"
_MARKER = "made-by-the-demo"


@click.command()
@click.option("--keep", is_flag=True, help="Leave everything running until Ctrl-C.")
@click.option(
    "--limit", type=click.IntRange(1), help="Take only so many flights, for a quick look."
)
@click.option(
    "--home",
    default=HOME,
    type=click.Path(file_okay=False, path_type=Path),
    help="The demo's directory, emptied first [.cache/demo].",
)
def demo(keep: bool, limit: int | None, home: Path) -> None:
    """Mirror a year of flights between two datacenters here, and load them with Spark."""
    console = Console()
    with _emptied(home), Stage(home) as stage:
        play = Play(stage, console)
        outcome = play.run(limit)
        print_page(console, play, outcome, is_kept=keep)
        if keep:
            console.print("\n  Everything runs on; Ctrl-C stops it.")
            while True:
                stage.check()
                stage.pause()
    if differing_days(outcome.sent, outcome.loaded):
        raise UserError("the files are not what was sent")


@contextmanager
def _emptied(home: Path) -> Iterator[None]:
    """Empty the directory of an earlier demo's files, and hold its lock while the body runs."""
    marker = home / _MARKER
    if home.exists() and any(home.iterdir()) and not marker.is_file():
        raise UserError(f"{home} holds something else than a demo: name another directory")
    with held(marker, "the demo"):
        for each in home.iterdir():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            elif each != marker:
                each.unlink()
        yield


def main() -> None:
    """Run the demo; an error is printed as one line."""
    # SIGINT too: a shell without job control makes its background processes ignore it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        demo(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("\nStopped.", err=True)
        sys.exit(INTERRUPTED)
    except (KdistError, OSError) as error:
        click.echo(f"demo: {show_error(error)}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
