"""`kdist end-session`: end the ZooKeeper session that a broker's process left when it died."""

from __future__ import annotations

import click

from kdist.cli.shared.files import read_settings_file
from kdist.cli.shared.options import config_option


@click.command("end-session")
@config_option("broker")
def end_session(path: str) -> None:
    """End the ZooKeeper session that a broker's process left when it died.

    For whoever supervises the process: systemd calls it in ExecStopPost. The cluster then elects
    new leaders at once, and not only after zookeeper.session.timeout.ms. It does nothing after an
    orderly stop, and refuses while the broker runs. Without an answer from ZooKeeper it gives up
    after 5 seconds, with 1.
    """
    import asyncio

    from kdist.broker.session_file import end_last_session
    from kdist.config.load import load_broker
    from kdist.runtime.disk import Disk
    from kdist.runtime.linux import boot_id

    config = load_broker(read_settings_file(path), path)
    click.echo(asyncio.run(end_last_session(config, Disk(), boot_id())))
