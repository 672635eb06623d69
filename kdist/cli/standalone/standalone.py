"""`kdist standalone`: a real ZooKeeper and some brokers on this machine, until an interrupt."""

from __future__ import annotations

import click

from kdist.cli.shared.files import complete_files
from kdist.cli.shared.options import json_option, not_empty
from kdist.cli.shared.settings import parse_settings, settings_option

DEFAULT_DATA = "./kdist-data"
DEFAULT_PORT = 9092


@click.command()
@click.option(
    "--brokers",
    type=click.IntRange(1, 99),
    help="How many brokers; by default as many as DIR has data of, or 1. May be more than before.",
)
@click.option(
    "--data",
    "directory",
    metavar="DIR",
    callback=not_empty,
    shell_complete=complete_files,
    default=DEFAULT_DATA,
    show_default=True,
    help="Where all data is kept. A later start with the same DIR goes on with this data.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port of the first broker; the others take the next ones.",
)
@click.option(
    "--zookeeper-port",
    type=click.IntRange(1, 65535),
    help="ZooKeeper's port; by default the one below --port, or a free one if that is taken.",
)
@click.option(
    "--secure",
    "is_secured",
    is_flag=True,
    help="Let in by TLS and password alone. Once begun, DIR stays so; it has files for clients.",
)
@settings_option("--config", "A setting for all brokers")
@json_option
def standalone(
    brokers: int | None,
    directory: str,
    port: int,
    zookeeper_port: int | None,
    is_secured: bool,
    texts: tuple[str, ...],
    as_json: bool,
) -> int:
    """Run ZooKeeper and brokers on this machine, for development, demos and tests.

    All listen on 127.0.0.1 only. Ctrl-C stops the brokers and then ZooKeeper; a second Ctrl-C
    kills the brokers. A broker that dies is started again. If one cannot start, or ZooKeeper ends,
    all are stopped, and the command exits with its status. Their logs are in DIR/logs.

    With three brokers or more, topics get three replicas, and min.insync.replicas is 2: a broker
    may die, and producers and consumers go on. --config changes that.

    With --secure, clients log in by SCRAM over TLS, and ACLs say who may do what. Passwords and a
    certificate are made at the first start. They are in files for clients in DIR, which are read by
    you alone; nothing shows them. ZooKeeper is not secured.

    ZooKeeper needs Java 17 or newer, and its jars come with PySpark: pip install '.[spark]' in
    kdist's tree.

    \b
    Examples:
      kdist standalone
      kdist standalone --brokers 3 --data /tmp/try --port 19092
      kdist standalone --secure --data ./secured
    """
    settings = parse_settings(texts, "--config")
    from kdist.cli.standalone.run import StandaloneOptions, run  # takes 0.2 s

    options = StandaloneOptions(brokers, port, zookeeper_port, settings, as_json, is_secured)
    return run(directory, options)
