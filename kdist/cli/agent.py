"""`kdist agent`: publish this host's operational data until a signal ends it."""

from __future__ import annotations

import os
import sys

import click

from kdist.agent.process import run_agent
from kdist.cli.shared.files import read_settings_file
from kdist.cli.shared.options import config_option, level_option
from kdist.config.agent import load_agent
from kdist.runtime import diagnostics


@click.command()
@config_option("agent")
@level_option
def agent(path: str, log_level: str) -> None:
    """Publish this host's operational data until SIGTERM or SIGINT.

    Writes one JSON record to a topic at each interval. While no broker accepts them, records are
    queued; when the queue is full, the oldest are dropped. Exits with 0 after an orderly stop.
    """
    diagnostics.set_up(log_level, sys.stderr, os.environ)
    settings = load_agent(read_settings_file(path), path)
    run_agent(settings, os.environ)
