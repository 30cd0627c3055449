"""``segstore standalone``: a whole store on one machine.

Owns: the processes of the store, their settings, and the messages to the user.

Invariants:
1. Without ``allow_insecure`` nothing listens beyond the machine itself: there is no authentication.
2. Every failure that can be foreseen happens before a process is started.
3. Ready means that the controller answers and every container of every segment store is open.
4. Each container is in one segment store, controllers send its clients there, and its log is in a
   journal of that store before any store is started.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pravega_admin.data_directory import open_run_directory
from pravega_admin.errors import ConfigurationError, cannot_start
from pravega_admin.log_options import LogFormat, LogLevel
from pravega_admin.output import print_message
from pravega_admin.quick_options import PORT_MAX
from pravega_admin.run_directory import SUPERVISOR
from pravega_admin.supervisor.child_process import ChildSpec
from pravega_admin.supervisor.child_protocol import CONTROLLER, SEGMENT_STORE
from pravega_admin.supervisor.early_children import child_command, start_child
from pravega_admin.supervisor.supervise import become_supervisor
from pravega_admin.version import VERSION
from segstore.errors import DataDirectoryError
from segstore.process.data_directory import DataDirectory
from segstore.runtime.refused_files import reason_of

if TYPE_CHECKING:
    from segstore.process.store_shares import Shares

CONTAINER_COUNT = 4
ANY_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class StandaloneSettings:
    """A store on one machine. ``published_address`` is the address that clients get."""

    data_dir: Path
    host: str = "127.0.0.1"
    controller_port: int = 9090
    controllers: int = 1
    """Count of controllers; each has the next port."""
    segment_store_port: int = 12345
    stores: int = 1
    """Count of segment stores; each has the next port."""
    published_address: str | None = None
    container_count: int = CONTAINER_COUNT
    allow_insecure: bool = False
    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat = LogFormat.AUTO
    log_file: Path | None = None
    debug: bool = False
    """Show a traceback when the store fails."""
    segment_store: Mapping[str, Any] = field(default_factory=dict)
    """More settings of the segment store, by the names of its configuration."""
    controller: Mapping[str, Any] = field(default_factory=dict)
    """More settings of the controller, by the names of its configuration."""


def run_standalone(settings: StandaloneSettings, *, began: float) -> None:
    """Run the store until it is told to end; ``began`` is our start, by the monotonic clock.

    Does not return: this process becomes the store's supervisor, with another program. Raises
    ``ConfigurationError`` when it cannot run as configured.
    """
    check_exposure(settings.host, allow_insecure=settings.allow_insecure)
    if settings.stores > settings.container_count:
        raise ConfigurationError(
            f"{settings.container_count} containers are too few for {settings.stores} segment"
            " stores: each hosts one at least, and their number never changes"
        )
    with (
        open_run_directory(
            settings.data_dir,
            container_count=settings.container_count,
            journal_count=settings.stores,
        ) as directory,
        _open_log(settings) as log_file,
        contextlib.ExitStack() as first_children,
    ):
        # Only now: the processes of a killed supervisor kept the directory, and their ports, busy.
        for port in _controller_ports(settings):
            check_port(settings.host, port, "--controller-port")
        for port in _store_ports(settings):
            check_port(settings.host, port, "--segment-store-port")
        children = child_specs(settings, _shares_of(settings))
        specs = [spec for _, spec in children]
        log_descriptor = None if log_file is None else log_file.fileno()
        started = []
        for kind, spec in children:
            try:
                child = start_child(kind, spec, directory, log_file=log_descriptor)
            except OSError as error:
                raise cannot_start(
                    f"{spec.name} cannot be started in {settings.data_dir}:"
                    f" {reason_of(error, settings.data_dir)}",
                    error,
                ) from error
            first_children.callback(child.abandon)
            started.append(child)
        # The command line uses three times the memory that a supervisor needs.
        become_supervisor(
            specs,
            started,
            directory=directory,
            log_file=log_descriptor,
            welcome=_welcome(settings),
            began=began,
            debug=settings.debug,
        )


def check_exposure(host: str, *, allow_insecure: bool) -> None:
    """Raise ``ConfigurationError`` if other machines could reach the unprotected store."""
    if allow_insecure or _is_loopback(host):
        return
    raise ConfigurationError(
        f"{host} can be reached from other machines and this store has no authentication yet;"
        " say --allow-insecure if that is what you want"
    )


def check_port(host: str, port: int, option: str) -> None:
    """Raise ``ConfigurationError`` if the port cannot be opened now."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except socket.gaierror as error:
        raise ConfigurationError(f"{host} is not a known host") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"port {port} on {host} is in use by another process; choose another with {option}"
            ) from error
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}") from error


def _controller_ports(settings: StandaloneSettings) -> range:
    """Return the ports of the controllers; ``ConfigurationError`` if there are not enough."""
    return _ports("controllers", settings.controller_port, settings.controllers)


def _store_ports(settings: StandaloneSettings) -> range:
    """Return the ports of the segment stores; ``ConfigurationError`` if there are too few, or if a
    controller has one of them."""
    ports = _ports("segment stores", settings.segment_store_port, settings.stores)
    controllers = _controller_ports(settings)
    if taken := sorted(set(ports).intersection(controllers)):
        raise ConfigurationError(
            f"port {taken[0]} of the segment store is one of the controllers' "
            f"{controllers[0]} to {controllers[-1]}; choose another with --segment-store-port"
        )
    return ports


def _ports(what: str, first: int, count: int) -> range:
    ports = range(first, first + count)
    if ports[-1] > PORT_MAX:
        raise ConfigurationError(
            f"{count} {what} from port {first} on: the last port is {PORT_MAX}"
        )
    return ports


def _shares_of(settings: StandaloneSettings) -> Shares | None:
    """Assign the containers to the segment stores; return None for one store, which has them all.

    Logs are moved where necessary. Raises ``AdminError`` when that fails.
    """
    if settings.stores == 1:
        return None
    from segstore.process.store_shares import plan_shares

    try:
        directory = DataDirectory.read(settings.data_dir)
    except DataDirectoryError as error:
        raise cannot_start(str(error), error.__cause__) from error
    shares = plan_shares(directory, settings.stores)
    if shares.journal_count == directory.journal_count:
        return shares
    # Only a start that moves logs pays for these imports.
    from pravega_admin.logs import configure_logs
    from pravega_admin.serve import share_out_containers

    moved = [
        container
        for container, journal in enumerate(shares.journals)
        if journal >= directory.journal_count
    ]
    print_message(
        f"segstore: logs move to other journals, for {settings.stores} segment stores: those of"
        f" containers {', '.join(map(str, moved))}"
    )
    configure_logs(SUPERVISOR, level=LogLevel.WARNING, format=settings.log_format)
    return share_out_containers(_store_settings(settings), settings.stores)


def _store_settings(settings: StandaloneSettings) -> dict[str, Any]:
    """Return the settings that all segment stores have."""
    return {
        "host": settings.host,
        "port": settings.segment_store_port,
        "data_dir": str(settings.data_dir),
        "container_count": settings.container_count,
        "controller": [_reached_host(settings), settings.controller_port],
        **settings.segment_store,
    }


def _reached_host(settings: StandaloneSettings) -> str:
    """Return the host at which processes of this machine reach the store."""
    return ANY_ADDRESSES.get(settings.host, settings.host)


def child_specs(settings: StandaloneSettings, shares: Shares | None) -> list[tuple[str, ChildSpec]]:
    """Return the kind of each process of the store, and how to start it."""
    store_ports = _store_ports(settings)
    controller = {
        "host": settings.host,
        "segment_stores": [[_reached_host(settings), port] for port in store_ports],
        "container_count": settings.container_count,
        "container_stores": None if shares is None else shares.stores,
        "published_address": settings.published_address,
        **settings.controller,
    }

    def spec(name: str, kind: str, config: dict[str, Any]) -> tuple[str, ChildSpec]:
        child = {
            "name": name,
            "log_level": settings.log_level,
            "log_format": settings.log_format,
            "config": config,
        }
        return kind, ChildSpec(name, child_command(kind, json.dumps(child)))

    controllers = [
        spec(
            # The first keeps the name that it has when it is alone.
            "controller" if index == 0 else f"controller-{index}",
            CONTROLLER,
            # One process at a time uses the data directory, whatever the ports of its controllers.
            {**controller, "port": port, "place": f"standalone-{index}"},
        )
        for index, port in enumerate(_controller_ports(settings))
    ]
    stores = []
    for index, port in enumerate(store_ports):
        share = {} if shares is None else {"container_ids": shares.containers[index]}
        config = {**_store_settings(settings), "port": port, **share}
        stores.append(spec(f"segment-store-{index}", SEGMENT_STORE, config))
    return [*stores, *controllers]


def _welcome(settings: StandaloneSettings) -> str:
    host = settings.published_address or ANY_ADDRESSES.get(settings.host, settings.host)
    host = f"[{host}]" if ":" in host else host
    uri = "tcp://" + ",".join(f"{host}:{port}" for port in _controller_ports(settings))
    stores = ", ".join(f"{host}:{port}" for port in _store_ports(settings))
    return f"""segstore {VERSION}, data in {settings.data_dir.resolve()}

  controller     {uri}
  segment store  {stores}

  Java           ClientConfig.builder().controllerURI(URI.create("{uri}")).build()
  Python         pravega_client.StreamManager("{uri}")
  OpenMessaging  client: {{controllerURI: "{uri}", scopeName: examples}}"""


@contextlib.contextmanager
def _open_log(settings: StandaloneSettings) -> Iterator[IO[bytes] | None]:
    if settings.log_file is None:
        yield None
        return
    try:
        # Unbuffered appending: several processes write whole lines into one file.
        log = settings.log_file.open("ab", buffering=0)
    except OSError as error:
        raise cannot_start(
            f"log file {settings.log_file} cannot be written:"
            f" {reason_of(error, settings.log_file)}",
            error,
        ) from error
    with log:
        yield log


def _is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise ConfigurationError(f"{host} is not a known host") from error
    return all(ipaddress.ip_address(item[4][0]).is_loopback for item in found)
