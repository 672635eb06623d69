"""One run of `kdist standalone`: the order of starts and stops, and what it prints."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple

import click

from kdist.cli.shared.client_settings import DEFAULT_BROKER
from kdist.cli.shared.options import print_json
from kdist.cli.shared.show import show_count
from kdist.cli.shared.table import Column, Row, print_table
from kdist.cli.standalone.certificate import require_cryptography
from kdist.cli.standalone.children import Children, Death, Supervision
from kdist.cli.standalone.first_users import store_first_users
from kdist.cli.standalone.home import HOST, BrokerPlan, Home
from kdist.cli.standalone.security import ADMIN, CLIENT, Making, Security
from kdist.cli.standalone.zookeeper_server import ServerSettings, find_jars, start_server
from kdist.client.cluster import Address, Cluster, NoBroker
from kdist.client.zookeeper_session import zookeeper_at
from kdist.errors import ApiError, UserError
from kdist.network.client import ClientSettings
from kdist.network.network import AsyncioNetwork
from kdist.runtime.clock import SystemClock
from kdist.runtime.disk import Disk
from kdist.runtime.process import secure_rng
from kdist.runtime.programs import find_java

READY_TIMEOUT_S = 60.0
_POLL_S = 0.05

_COLUMNS = (Column("NAME"), Column("ADDRESS"), Column("PID", is_number=True), Column("DATA"))


class StandaloneOptions(NamedTuple):
    """The command line's options; None where a default depends on the directory or on ports."""

    brokers: int | None
    port: int
    zookeeper_port: int | None
    settings: Mapping[str, str]
    as_json: bool
    is_secured: bool = False


def run(directory: str, options: StandaloneOptions) -> int:
    """Run until an interrupt; the exit status. `UserError` if it cannot start."""
    files = Disk()
    find_java(files, os.environ, "ZooKeeper")  # before anything is written
    find_jars(files)
    if options.is_secured:
        require_cryptography()
    path = os.path.abspath(directory)
    if not path.isprintable():  # bytes that are no UTF-8 are not, and Java cannot open them
        raise UserError(f"ZooKeeper cannot use {path!r}: it must be UTF-8 and printable")
    home = Home(files, path)
    try:
        return asyncio.run(Standalone(home, files, options).run())
    finally:
        home.close()


class Standalone:
    """One run. Owner: the command."""

    def __init__(self, home: Home, files: Disk, options: StandaloneOptions) -> None:
        self._home = home
        self._files = files
        self._options = options
        self._clock = SystemClock()
        self._start_ns = self._clock.monotonic_ns()

    async def run(self) -> int:
        """Start, print the addresses, wait for an interrupt, stop; the exit status."""
        self._interrupt, self._hurry = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._heard)
        self._network = AsyncioNetwork(asyncio.get_running_loop())
        home, options = self._home, self._options
        making = Making(secure_rng(), self._clock.now_ms()) if options.is_secured else None
        count = home.claim(options.brokers, making)
        settings = ServerSettings(
            home.zookeeper,
            await self._find_ports(count),
            log=home.zookeeper_log,
            umask=home.umask,
        )
        plans = home.prepare(count, options.port, settings.address, options.settings)
        security = home.security
        self._connections = security.own_connections if security else ClientSettings("kdist")
        zookeeper = await start_server(settings, self._files, os.environ)
        children = Children(self._home, count, zookeeper)
        death: Death | None = None
        unclean: Sequence[Death] = ()
        try:
            death = await self._live(children, plans)
            if not self._options.as_json:
                click.echo("Stopping.")
        finally:  # also if an `echo` fails, as nobody reads standard output any more
            unclean = await children.stop(self._hurry.wait())
            self._home.record(len(plans), {})
        return self._report(death, unclean)

    def _heard(self) -> None:
        if self._interrupt.is_set():
            self._hurry.set()
        self._interrupt.set()

    async def _find_ports(self, brokers: int) -> int:
        """ZooKeeper's port. `UserError` if a port that was asked for is taken."""
        options = self._options
        if options.port + brokers - 1 > 65535:
            raise UserError(f"{brokers} brokers from port {options.port} on go beyond 65535")
        ports = range(options.port, options.port + brokers)
        if options.zookeeper_port in ports:
            raise UserError(f"port {options.zookeeper_port} is a broker's: give ZooKeeper another")
        for port in ports:
            await self._try_port(port, "--port")
        if options.zookeeper_port is not None:
            return await self._try_port(options.zookeeper_port, "--zookeeper-port")
        try:
            return await self._try_port(max(1, options.port - 1), "")
        except UserError:
            return await self._try_port(0, "")

    async def _try_port(self, port: int, option: str) -> int:
        """The port, if it is free; for 0, a free one. `UserError` if it is taken."""
        try:
            server = await self._network.listen(asyncio.Protocol, HOST, port)
        except UserError as error:
            raise UserError(f"{error}; choose another with {option}") from None
        found = server.port
        server.close()
        return found

    async def _live(self, children: Children, plans: Sequence[BrokerPlan]) -> Death | None:
        """Run from the first start until an interrupt, or a death that ends all: returns that."""
        if not await self._uninterrupted(children.zookeeper.wait_until_ready()):
            return None
        if self._home.security is not None:
            async with zookeeper_at(children.zookeeper.settings.address) as zookeeper:
                await store_first_users(zookeeper, self._home.security.passwords)
        for plan in plans:
            await children.start_broker(plan)
        supervision = Supervision(
            children, self._home, self._files, self._network, self._connections
        )
        death = asyncio.ensure_future(supervision.first_end(plans))
        ready = asyncio.ensure_future(self._await_ready(plans))
        try:
            if await self._uninterrupted(_first(ready, death)) and not death.done():
                ready.result()
                self._announce(children, plans)
                await self._uninterrupted(_first(death))
            return death.result() if death.done() else None
        finally:
            death.cancel()
            ready.cancel()

    async def _uninterrupted(self, work: Awaitable[object]) -> bool:
        """Wait for `work` or an interrupt; whether `work` was done without an interrupt."""
        working = asyncio.ensure_future(work)
        interrupted = asyncio.ensure_future(self._interrupt.wait())
        await _first(working, interrupted)
        interrupted.cancel()
        if working.done():
            working.result()
            return not self._interrupt.is_set()
        working.cancel()
        return False

    async def _await_ready(self, plans: Sequence[BrokerPlan]) -> None:
        """Wait until each broker knows all brokers and the controller.

        `UserError` after `READY_TIMEOUT_S`.
        """
        end_s = self._network.loop.time() + READY_TIMEOUT_S
        for plan in plans:
            address = Address(HOST, plan.port)
            cluster = Cluster(self._network, [address], self._connections)
            try:
                while not await _is_complete(cluster, len(plans)):
                    if self._network.loop.time() > end_s:
                        raise UserError(
                            f"broker {plan.name} was not ready in {READY_TIMEOUT_S:g} s:"
                            f" {plan.log} may say why"
                        )
                    await asyncio.sleep(_POLL_S)
            finally:
                cluster.close()

    def _announce(self, children: Children, plans: Sequence[BrokerPlan]) -> None:
        taken_s = (self._clock.monotonic_ns() - self._start_ns) / 1e9
        zookeeper, pids = children.zookeeper, children.pids
        rows = [
            ("zookeeper", zookeeper.settings.address, pids["zookeeper"], self._home.zookeeper),
            # None of a broker that has died since it was ready, and starts again.
            *((plan.name, plan.address, pids.get(plan.name), plan.data) for plan in plans),
        ]
        if self._options.as_json:
            titles = ("name", "address", "pid", "data")
            services = [dict(zip(titles, row, strict=True)) for row in rows]
            security = self._home.security
            secured = {"client_files": security.client_files} if security else {}
            print_json({"data": self._home.path, "services": services, **secured})
            return
        click.echo(
            f"ZooKeeper and {show_count(len(plans), 'broker')} are ready, after {taken_s:.1f} s,"
            f" with their data in {self._home.path}\n"
        )
        print_table(_COLUMNS, (Row([str(cell or "-") for cell in row]) for row in rows), indent=2)
        security = self._home.security
        click.echo(_secured_steps(security) if security else _next_steps(plans[0].address))

    def _report(self, death: Death | None, unclean: Sequence[Death]) -> int:
        if death is not None:
            click.echo(f"kdist: {death}", err=True)
            return death.exit_status
        for each in unclean:
            click.echo(f"kdist: as it stopped, {each}", err=True)
        if unclean:
            return unclean[0].exit_status
        if not self._options.as_json:
            click.echo("Stopped.")
        return 0


async def _is_complete(cluster: Cluster, brokers: int) -> bool:
    """Whether the broker's metadata has that many brokers, and one of them as the controller."""
    try:
        answer = await cluster.metadata()
    except (NoBroker, ApiError):
        return False
    return len(answer.brokers) == brokers and cluster.controller_id in cluster.brokers


async def _first(*waits: Awaitable[object]) -> None:
    await asyncio.wait(
        [asyncio.ensure_future(each) for each in waits], return_when=asyncio.FIRST_COMPLETED
    )


def _next_steps(address: str) -> str:
    export = "" if address == DEFAULT_BROKER else f"  export KDIST_BROKER={address}\n"
    return (
        f"\nIn another terminal:\n{export}"
        "  kdist topics create clicks --partitions 3\n"
        "  echo hello | kdist produce clicks\n"
        "  kdist consume clicks --from-beginning\n"
        "\nCtrl-C stops everything and keeps the data."
    )


def _secured_steps(security: Security) -> str:
    client, admin = (shlex.quote(security.file_of(each)) for each in (CLIENT, ADMIN))
    librdkafka = shlex.quote(security.file_of_librdkafka)
    return (
        "\nOnly who has a password gets in, by TLS: these files have them. In another terminal:\n"
        f"  client={client}\n"
        '  kdist topics create clicks --partitions 3 --command-config "$client"\n'
        '  echo hello | kdist produce clicks --config "$client"\n'
        '  kdist consume clicks --from-beginning --config "$client"\n'
        f"  kcat -F {librdkafka} -C -t clicks\n"
        "In Python:\n"
        f"  lines = open({security.file_of(CLIENT)!r}).read().splitlines()\n"
        '  settings = dict(line.split("=", 1) for line in lines if "=" in line)\n'
        "  producer = kdist.Producer(**settings)\n"
        "The admin may do everything, such as allow others something:\n"
        f"  kdist acls list --config {admin}\n"
        "\nCtrl-C stops everything and keeps the data."
    )
