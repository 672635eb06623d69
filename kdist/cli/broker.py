"""`kdist broker`: run one broker, on one disk, until a signal ends it."""

from __future__ import annotations

import os
import sys

import click

from kdist.broker.process import BrokerProcess, WrongDisk, check_marker
from kdist.cli.release import release, release_digest
from kdist.cli.shared.files import read_settings_file
from kdist.cli.shared.options import config_option, level_option
from kdist.config.load import load_broker
from kdist.runtime import diagnostics
from kdist.runtime.disk import Disk


@click.command()
@config_option("broker")
@level_option
def broker(path: str, log_level: str) -> int:
    """Run one broker, on one disk, until SIGTERM or SIGINT.

    Exits with 0 after an orderly stop, 1 if it could not start, 70 after a bug, 74 if the disk
    failed, and 78 if the disk is not this broker's.
    """
    diagnostics.set_up(log_level, sys.stderr, os.environ)
    config = load_broker(read_settings_file(path), path)
    for sentence in config.warnings:
        click.echo(f"kdist: {sentence}", err=True)
    try:
        check_marker(config.disk, config.broker.id, Disk())
    except WrongDisk as error:
        click.echo(f"kdist: {error}", err=True)
        return WrongDisk.EXIT_STATUS
    return BrokerProcess(config, os.environ, release() or "unknown", release_digest()).run()
