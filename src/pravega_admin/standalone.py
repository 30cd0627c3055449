"""``segstore standalone``: a whole store on one machine.

Owns: which processes that takes, with which settings, and what the user is told.

Invariants:
1. Without ``allow_insecure`` nothing listens beyond the machine itself: there is no authentication.
2. What can be known to fail before a process is started, fails before.
3. Ready means that the controller answers and every container of the segment store is open.
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
from typing import IO, Any

from pravega_admin.data_directory import open_run_directory
from pravega_admin.errors import ConfigurationError, cannot_start
from pravega_admin.log_options import LogFormat, LogLevel
from pravega_admin.quick_options import PORT_MAX
from pravega_admin.supervisor.child_process import ChildSpec
from pravega_admin.supervisor.child_protocol import CONTROLLER, SEGMENT_STORE
from pravega_admin.supervisor.early_children import child_command, start_child
from pravega_admin.supervisor.supervise import hand_over
from pravega_admin.version import VERSION
from segstore.runtime.refused_files import reason_of

ANY_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class StandaloneSettings:
    """A store on one machine. ``published_address`` is what clients are told to connect to."""

    data_dir: Path
    host: str = "127.0.0.1"
    controller_port: int = 9090
    controllers: int = 1
    """Count of controllers; each has the next port."""
    segment_store_port: int = 12345
    published_address: str | None = None
    container_count: int = 4
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
    """Run the store until it is told to end; ``began`` is when we did, by the monotonic clock.

    Does not return: this process becomes the store's supervisor, with another program. Raises
    ``ConfigurationError`` when it cannot run as told.
    """
    check_exposure(settings.host, allow_insecure=settings.allow_insecure)
    with (
        open_run_directory(
            settings.data_dir, container_count=settings.container_count
        ) as directory,
        _open_log(settings) as log_file,
        contextlib.ExitStack() as first_children,
    ):
        # Only now: the processes of a killed supervisor kept the directory, and their ports, busy.
        for port in _controller_ports(settings):
            check_port(settings.host, port, "--controller-port")
        check_port(settings.host, settings.segment_store_port, "--segment-store-port")
        children = child_specs(settings)
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
        hand_over(
            specs,
            started,
            directory=directory,
            log_file=log_descriptor,
            welcome=_welcome(settings),
            began=began,
            debug=settings.debug,
        )


def check_exposure(host: str, *, allow_insecure: bool) -> None:
    """``ConfigurationError`` if others could reach a store that has no authentication."""
    if allow_insecure or _is_loopback(host):
        return
    raise ConfigurationError(
        f"{host} can be reached from other machines and this store has no authentication yet;"
        " say --allow-insecure if that is what you want"
    )


def check_port(host: str, port: int, option: str) -> None:
    """``ConfigurationError`` if the port cannot be listened on now."""
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
    ports = range(settings.controller_port, settings.controller_port + settings.controllers)
    if ports[-1] > PORT_MAX:
        raise ConfigurationError(
            f"{settings.controllers} controllers from port {settings.controller_port} on: "
            f"the last port is {PORT_MAX}"
        )
    if settings.segment_store_port in ports:
        raise ConfigurationError(
            f"port {settings.segment_store_port} of the segment store is one of the controllers' "
            f"{ports[0]} to {ports[-1]}; choose another with --segment-store-port"
        )
    return ports


def child_specs(settings: StandaloneSettings) -> list[tuple[str, ChildSpec]]:
    """The processes of the store, each with what kind it is."""
    reached_host = ANY_ADDRESSES.get(settings.host, settings.host)
    segment_store = {
        "host": settings.host,
        "port": settings.segment_store_port,
        "data_dir": str(settings.data_dir),
        "container_count": settings.container_count,
        "controller": [reached_host, settings.controller_port],
        **settings.segment_store,
    }
    controller = {
        "host": settings.host,
        "segment_stores": [[reached_host, settings.segment_store_port]],
        "container_count": settings.container_count,
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
            # The first has the name that it has alone.
            "controller" if index == 0 else f"controller-{index}",
            CONTROLLER,
            {"port": port, **controller},
        )
        for index, port in enumerate(_controller_ports(settings))
    ]
    return [spec("segment-store-0", SEGMENT_STORE, segment_store), *controllers]


def _welcome(settings: StandaloneSettings) -> str:
    host = settings.published_address or ANY_ADDRESSES.get(settings.host, settings.host)
    host = f"[{host}]" if ":" in host else host
    uri = "tcp://" + ",".join(f"{host}:{port}" for port in _controller_ports(settings))
    return f"""segstore {VERSION}, data in {settings.data_dir.resolve()}

  controller     {uri}
  segment store  {host}:{settings.segment_store_port}

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
