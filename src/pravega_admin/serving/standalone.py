"""``segstore standalone``: a whole store on one machine.

Owns: the processes of the store, their settings, and the messages to the user.

The start checks everything that it can before it starts a process. The store is ready when the
controller answers and every container of every segment store is open.

Invariants:
1. Unless the store is ``secure``, or ``allow_insecure`` is set, an address that other machines can
   reach is refused. Held by ``test_a_host_that_others_reach_is_refused``.
2. Each container is in one segment store, the controller sends clients there, and other stores
   refuse them. Held by ``test_clients_are_sent_to_the_store_of_each_segment_and_others_refuse_it``.
3. When a journal of a store is missing, no store is started. Held by
   ``test_stores_without_their_journals_are_refused``.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pravega_admin.errors import ConfigurationError, cannot_start
from pravega_admin.output.log_options import LogFormat, LogLevel
from pravega_admin.output.output import print_message
from pravega_admin.serving.data_directory import open_run_directory, tell_wait
from pravega_admin.serving.security_files import (
    ADMINISTRATOR,
    PASSWORD_VARIABLE,
    SecurityFiles,
    is_secure,
    open_security_files,
)
from pravega_admin.serving.version import VERSION
from pravega_admin.supervisor.child_process import ChildSpec
from pravega_admin.supervisor.child_protocol import CONTROLLER, SEGMENT_STORE
from pravega_admin.supervisor.early_children import child_command, start_child
from pravega_admin.supervisor.run_directory import SUPERVISOR
from pravega_admin.supervisor.supervise import become_supervisor
from segstore.errors import DataDirectoryError
from segstore.ownership.data_directory import DataDirectory
from segstore.ownership.holders import HeldError, wait_for_port
from segstore.runtime.refused_files import reason_of
from segstore_client.addresses import PORT_MAX

if TYPE_CHECKING:
    from segstore.process.store_shares import Shares

CONTAINER_COUNT = 4
_CALLERS_KNOWN_BY = {CONTROLLER: ("accounts", "bearer"), SEGMENT_STORE: ("token_keys",)}
"""By kind of server: the settings of which one makes it ask who calls."""
CONSOLE_PATH = "/console/"
"""The path of the console on the port of HTTP."""
ANY_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class StandaloneSettings:
    """A store on one machine. ``published_address`` is the address that clients get."""

    data_dir: Path
    host: str = "127.0.0.1"
    controller_port: int = 9090
    controllers: int = 1
    """Count of controllers; each has the next port."""
    http_port: int = 0
    """The port of HTTP of the first controller; each other one has the next port. 0 for none."""
    segment_store_port: int = 12345
    stores: int = 1
    """Count of segment stores; each has the next port."""
    published_address: str | None = None
    container_count: int = CONTAINER_COUNT
    secure: bool = False
    """Speak TLS alone, and serve users by their rights: see ``security_files``."""
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
    if not settings.secure:
        check_exposure(settings.host, allow_insecure=settings.allow_insecure)
        _check_tls_of_both(settings)
        if is_secure(settings.data_dir) and not settings.allow_insecure:
            raise ConfigurationError(
                f"the store in {settings.data_dir} is a secure one; say --secure, or"
                " --allow-insecure to serve everybody without TLS"
            )
    if settings.stores > settings.container_count:
        raise ConfigurationError(
            f"{settings.container_count} containers are too few for {settings.stores} segment"
            " stores: each hosts one at least, and their number never changes"
        )
    if not DataDirectory.exists(settings.data_dir):
        # When the first start is refused, no directory should be left.
        _check_ports(settings)
    with (
        open_run_directory(
            settings.data_dir,
            container_count=settings.container_count,
            journal_count=settings.stores,
        ) as directory,
        _open_log(settings) as log_file,
        contextlib.ExitStack() as first_children,
    ):
        # Processes of a killed supervisor that have not ended yet may use the ports.
        _check_ports(settings)
        security = None
        if settings.secure:
            hosts = (settings.published_address, _reached_host(settings))
            security = open_security(settings.data_dir, names=[each for each in hosts if each])
            settings = _with_security(settings, security)
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
            welcome=describe_clients(settings, security),
            began=began,
            debug=settings.debug,
        )


def open_security(data_dir: Path, *, names: Sequence[str] = ()) -> SecurityFiles:
    """Make the missing files of a secure store; show the administrator's password if it was made.

    ``names`` are hosts and addresses that clients may be sent to, for the certificate. Raises
    ``ConfigurationError``.
    """
    security = open_security_files(data_dir, names=tuple(names))
    if security.first_password is not None:
        # The password is not printed with the welcome, because that text is an argument of the
        # supervisor's program.
        print_message(
            f"segstore: the password of the user {ADMINISTRATOR}, shown this once:"
            f" {security.first_password}\n"
            f"segstore: to change it: segstore user passwd {ADMINISTRATOR}"
            f" --file {security.accounts}"
        )
    # Children and the supervisor need no password.
    os.environ.pop(PASSWORD_VARIABLE, None)
    return security


def _with_security(settings: StandaloneSettings, security: SecurityFiles) -> StandaloneSettings:
    """Return the settings with those of security; what the user has set goes before them."""
    return replace(
        settings,
        segment_store={**security.store_settings, **settings.segment_store},
        controller={**security.controller_settings, **settings.controller},
    )


def check_settings(settings: StandaloneSettings) -> None:
    """Raise ``ConfigurationError`` if a server cannot run with its settings."""
    from pravega_admin.serving.declarations import configuration_of
    from pravega_admin.serving.serve import read_config

    store = _store_settings(settings)
    read_config("segment store", configuration_of("segment_store"), store)
    read_config("controller", configuration_of("controller"), settings.controller)


def _check_tls_of_both(settings: StandaloneSettings) -> None:
    """Raise ``ConfigurationError`` if TLS is spoken by one kind of server alone: an official client
    speaks it with both or with neither."""
    spoken = (
        bool(settings.controller.get("tls")),
        bool(settings.controller.get("store_tls")),
        bool(settings.segment_store.get("tls")),
    )
    if any(spoken) and not all(spoken):
        raise ConfigurationError(
            "clients speak TLS with controller and segment store alike: set tls and store_tls of"
            " controller and tls of segment_store, or none of them; --secure does it by itself"
        )


def _check_ports(settings: StandaloneSettings) -> None:
    """Raise ``ConfigurationError`` unless all ports can be opened now."""
    for port in _controller_ports(settings):
        check_port(settings.host, port, "--controller-port")
    for port in _store_ports(settings):
        check_port(settings.host, port, "--segment-store-port")
    for port in _http_ports(settings):
        check_port(settings.host, port, "--http-port")


def check_exposure(
    host: str,
    *,
    allow_insecure: bool,
    kind: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Raise ``ConfigurationError`` if other machines could reach an unprotected server.

    ``settings`` are those of a server of a ``kind``: with TLS, and with users or tokens, it is
    protected. Without a kind it is a store that is not secure.
    """
    given = settings or {}
    known_by = _CALLERS_KNOWN_BY.get(kind or "", ())
    if allow_insecure or (given.get("tls") and any(map(given.get, known_by))) or _is_loopback(host):
        return
    protection = "say --secure for TLS and users"
    if known_by:
        protection = f"name tls and {' or '.join(known_by)} in a settings file (--config FILE)"
    raise ConfigurationError(
        f"{host} can be reached from other machines, and anybody there could read, change and"
        f" delete everything; {protection}, or say --allow-insecure if that is what you want"
    )


def check_port(host: str, port: int, option: str) -> None:
    """Wait for a port that is in use. Raises ``ConfigurationError`` if it cannot be opened."""
    try:
        wait_for_port(host, port, remark=f"; choose another with {option}", tell=tell_wait)
    except HeldError as error:
        raise ConfigurationError(str(error)) from error
    except socket.gaierror as error:
        raise ConfigurationError(f"{host} is not a known host") from error
    except OSError as error:
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


def _http_ports(settings: StandaloneSettings) -> Sequence[int]:
    """Return the port of HTTP of each controller, none if there is no HTTP. Raises
    ``ConfigurationError``."""
    if not settings.http_port:
        return ()
    ports = _ports("controllers with HTTP", settings.http_port, settings.controllers)
    others = {*_controller_ports(settings), *_store_ports(settings)}
    if taken := sorted(others.intersection(ports)):
        raise ConfigurationError(
            f"port {taken[0]} is that of a controller or a segment store; choose another with"
            " --http-port"
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
    # These imports are slow, and only a start that moves logs needs them.
    from pravega_admin.output.logs import configure_logs
    from pravega_admin.serving.serve import share_out_containers

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

    http_ports = _http_ports(settings)
    controllers = [
        spec(
            # The first of several controllers has the same name as an only controller.
            "controller" if index == 0 else f"controller-{index}",
            CONTROLLER,
            # One process at a time uses the data directory, whatever the ports of its controllers.
            {
                **controller,
                "port": port,
                "http_port": http_ports[index] if http_ports else 0,
                "place": f"standalone-{index}",
            },
        )
        for index, port in enumerate(_controller_ports(settings))
    ]
    stores = []
    for index, port in enumerate(store_ports):
        share = {} if shares is None else {"container_ids": shares.containers[index]}
        config = {**_store_settings(settings), "port": port, **share}
        stores.append(spec(f"segment-store-{index}", SEGMENT_STORE, config))
    return [*stores, *controllers]


def describe_clients(settings: StandaloneSettings, security: SecurityFiles | None) -> str:
    """Return what a start prints: where the store is, who reaches it, and lines for clients."""
    host = settings.published_address or ANY_ADDRESSES.get(settings.host, settings.host)
    has_tls = bool(settings.controller.get("tls"))
    if has_tls and settings.published_address is None and _is_loopback(host):
        # The official Python client takes no IP address over TLS.
        host = "localhost"
    host = f"[{host}]" if ":" in host else host
    scheme = "tls" if has_tls else "tcp"
    uri = f"{scheme}://" + ",".join(f"{host}:{port}" for port in _controller_ports(settings))
    stores = ", ".join(f"{host}:{port}" for port in _store_ports(settings))
    http = ""
    for port in _http_ports(settings)[:1]:
        address = f"{'https' if has_tls else 'http'}://{host}:{port}"
        http = f"  REST           {address}\n  console        {address}{CONSOLE_PATH}\n"
    head = f"""segstore {VERSION}, data in {settings.data_dir.resolve()}

  controller     {uri}
  segment store  {stores}
{http}
"""
    if security is not None:
        return head + describe_secure_clients(uri, security)
    if not has_tls and not _is_loopback(settings.host):
        head = f"""{head}\
  everybody who reaches this machine can read, change and delete everything:
  --secure in place of --allow-insecure asks who calls

"""
    return f"""\
{head}  Java           ClientConfig.builder().controllerURI(URI.create("{uri}")).build()
  OpenMessaging  client: {{controllerURI: "{uri}", scopeName: examples}}
  Python         the program below

{_python_program(uri)}"""


def describe_secure_clients(uri: str, security: SecurityFiles) -> str:
    """Return lines to paste, by which clients reach a secure store."""
    return f"""  user           {ADMINISTRATOR}
  clients trust  {security.ca}

  Shell          export SEGSTORE_CONTROLLER={uri}
                 export SEGSTORE_CA={security.ca} SEGSTORE_USER={ADMINISTRATOR}
  Java           ClientConfig.builder().controllerURI(URI.create("{uri}"))
                     .trustStore("{security.ca}")
                     .credentials(new DefaultCredentials(password, "{ADMINISTRATOR}")).build()
  Spark          .option("controller", "{uri}").option("ca", "{security.ca}")
                     .option("user", "{ADMINISTRATOR}").option("passwordFile", "...")
  Python         the program below, in this shell, after export SEGSTORE_PASSWORD=...

{_python_program(uri)}"""


def _python_program(uri: str) -> str:
    """Return a whole program. Without an indentation, it can be pasted wherever Python is read."""
    return f"""\
import asyncio, segstore_client

async def main():
    async with segstore_client.connect("{uri}") as store:
        print(await store.list_scopes())

asyncio.run(main())"""


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
