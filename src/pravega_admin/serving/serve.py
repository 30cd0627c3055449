"""Runs one server in this process, until a signal ends it.

Owns: the one place where servers are started: their kinds, the reading of their settings, signals,
and the messages about a failed start.

Invariants:
1. The first SIGTERM or SIGINT lets a server finish its work and end with exit code 0. Held by
   ``test_server_and_controller_run_one_by_one``. A second one ends the process at once. Held by
   ``test_a_second_interrupt_ends_it_at_once``.
2. When a server cannot start as configured, it ends with one sentence and exit code 78. Held by
   ``test_a_port_in_use_is_one_sentence_and_exit_code_78``.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec
import trio

from pravega_admin.errors import (
    EXIT_INTERRUPTED,
    AdminError,
    ConfigurationError,
    DataLostError,
    cannot_start,
)
from pravega_admin.supervisor.child_protocol import (
    CONTROLLER,
    SEGMENT_STORE,
    Verdict,
    announce,
)
from segstore.errors import leaf_errors
from segstore.ownership.holders import HeldError, wait_for_port
from segstore.runtime.event_loop import run_event_loop
from segstore.runtime.refused_files import is_refusal, reason_of
from segstore_client.errors import PravegaError

if TYPE_CHECKING:
    from segstore.process.store_shares import Shares

C = TypeVar("C")
Serve: TypeAlias = Callable[..., Awaitable[Any]]
"""``serve(config, *, shutdown, task_status)``: serves until ``shutdown`` is set, then drains."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a server that are needed to run it."""

    config_type: Any
    serve: Serve
    refusals: tuple[type[Exception], ...]
    """Errors after which no start with this configuration succeeds."""
    failures: tuple[type[Exception], ...] = ()
    """Errors of this one start. Like refusals, each is one sentence."""
    is_loss: Callable[[BaseException], bool] = lambda error: False
    """Return whether an error means damaged or missing data, so that another start cannot help."""


@dataclass(frozen=True, slots=True)
class Server:
    """A kind of server; ``load`` imports it."""

    title: str
    load: Callable[[], Parts]


def _load_segment_store() -> Parts:
    from pravega_security.signing_keys import SigningKeysError
    from pravega_security.tls import CertificateError
    from segstore.errors import (
        DataDirectoryError,
        DataLogError,
        IdentityError,
        IdentityProblem,
        PermanentError,
        StorageConfigurationError,
        StorageUnreachableError,
        TooFewDescriptorsError,
    )
    from segstore.network.server import AddressInUseError, serve
    from segstore.ownership.tier_two_identity import TIER_2
    from segstore.process.assembly import open_containers
    from segstore.process.config import SegmentStoreConfig

    async def serve_with_containers(
        config: SegmentStoreConfig, *, shutdown: trio.Event, task_status: trio.TaskStatus[int]
    ) -> None:
        if config.cluster is not None:
            # The commands that need its clients import them.
            from segstore.network.cluster import serve_in_cluster

            await serve_in_cluster(config, shutdown=shutdown, task_status=task_status)
            return
        async with open_containers(config) as open_container:
            await serve(config, open_container, shutdown=shutdown, task_status=task_status)

    def is_loss(error: BaseException) -> bool:
        if isinstance(error, IdentityError):
            wrong = error.problem in (IdentityProblem.MISSING, IdentityProblem.CLAIMED)
            return wrong and error.tier != TIER_2
        return isinstance(error, PermanentError)

    return Parts(
        SegmentStoreConfig,
        serve_with_containers,
        refusals=(
            DataDirectoryError,
            AddressInUseError,
            CertificateError,
            StorageConfigurationError,
            TooFewDescriptorsError,
            SigningKeysError,
        ),
        failures=(StorageUnreachableError, DataLogError),
        is_loss=is_loss,
    )


def _load_controller() -> Parts:
    from pravega_controller.config import ConfigurationError as ControllerConfigurationError
    from pravega_controller.config import ControllerConfig
    from pravega_controller.rpc.service import ListenError
    from pravega_controller.server import StartupError, serve
    from pravega_security.signing_keys import SigningKeysError

    async def serve_until(
        config: ControllerConfig,
        *,
        shutdown: trio.Event,
        task_status: trio.TaskStatus[tuple[str, int]],
    ) -> None:
        async with trio.open_nursery() as nursery:
            task_status.started(await nursery.start(serve, config))
            await shutdown.wait()
            nursery.cancel_scope.cancel()

    return Parts(
        ControllerConfig,
        serve_until,
        refusals=(ListenError, ControllerConfigurationError, SigningKeysError),
        failures=(StartupError,),
    )


SERVERS: Mapping[str, Server] = {
    SEGMENT_STORE: Server("segment store", _load_segment_store),
    CONTROLLER: Server("controller", _load_controller),
}


def run_server(
    server: Server, settings: Mapping[str, Any], *, on_ready: Callable[[], None]
) -> None:
    """Serve until a signal ends the server. ``settings`` are the fields of its configuration.

    Raises ``ConfigurationError`` when it cannot start as configured, and reports the error to the
    supervisor, too.
    """
    parts = server.load()
    raise_descriptor_limit()
    try:
        config = read_config(server.title, parts.config_type, settings)
        with _explaining_errors(parts, config):
            _wait_for_ports(config)
            run_event_loop(_serve_until_signal, parts.serve, config, on_ready)
    except PravegaError as error:
        is_final = isinstance(error, DataLostError)
        announce(Verdict(is_ready=False, error=str(error), is_final=is_final))
        raise


def _wait_for_ports(config: Any) -> None:
    """Wait for ports that are in use. Raises ``HeldError``."""
    for port in (config.port, getattr(config, "http_port", 0)):
        # If an address cannot be used, the server reports it when it listens.
        with suppress(OSError):
            if port:
                wait_for_port(config.host, port)


def share_out_containers(settings: Mapping[str, Any], store_count: int) -> Shares:
    """Assign containers, with their logs, to each of several segment stores; no store may run.

    ``settings`` are those of any of them. Raises like ``run_server``.
    """
    from segstore.process.log_moves import share_out_logs

    server = SERVERS[SEGMENT_STORE]
    parts = server.load()
    raise_descriptor_limit()
    config = read_config(server.title, parts.config_type, settings)
    with _explaining_errors(parts, config):
        return trio.run(share_out_logs, config, store_count)


def read_config(title: str, config_type: type[C], settings: Mapping[str, Any]) -> C:
    """Return the configuration of a kind of server. Raises ``ConfigurationError``."""
    try:
        return msgspec.convert(settings, config_type, dec_hook=decode_path)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigurationError(f"the {title}'s settings are wrong: {error}") from error


@contextmanager
def _explaining_errors(parts: Parts, config: Any) -> Iterator[None]:
    """Convert errors that users can resolve into one sentence each."""
    try:
        yield
    except Exception as failure:
        for leaf in leaf_errors(failure):
            if (meaning := _meaning(leaf, parts, config)) is not None:
                raise meaning from failure
        raise


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard one, if the system allows it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # If the system refuses, the server works with the present limit.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def decode_path(kind: type, value: Any) -> Any:
    """Return a path from text; msgspec calls this for types that it does not know."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(kind)


async def _serve_until_signal(serve: Serve, config: Any, on_ready: Callable[[], None]) -> None:
    shutdown = trio.Event()
    starting = trio.CancelScope()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as watch:
            watch.start_soon(_end_on_signal, signals, starting, shutdown)
            async with trio.open_nursery() as server:
                with starting:
                    await server.start(partial(serve, config, shutdown=shutdown))
                    on_ready()
            watch.cancel_scope.cancel()


async def _end_on_signal(signals: Any, starting: trio.CancelScope, shutdown: trio.Event) -> None:
    """Wait for the first signal and ask the server to end; the server then drains."""
    async for _ in signals:
        if shutdown.is_set():
            os._exit(EXIT_INTERRUPTED)
        shutdown.set()
        # A server that still starts has nothing to drain, and may take long.
        starting.cancel()


def _meaning(error: BaseException, parts: Parts, config: Any) -> AdminError | None:
    """Return a sentence about an error that users can resolve; None for others."""
    if parts.is_loss(error):
        return DataLostError(
            f"{error}. Keep a copy of the data before you change anything; 'segstore recover"
            f" --data-dir {config.data_dir}' tells what can be saved"
        )
    if isinstance(error, parts.refusals):
        return cannot_start(str(error), error.__cause__)
    if isinstance(error, parts.failures):
        cause = error.__cause__
        return cannot_start(str(error), cause) if is_refusal(cause) else AdminError(str(error))
    if isinstance(error, socket.gaierror):
        return ConfigurationError(f"{config.host} is not a known host")
    if isinstance(error, HeldError):
        return ConfigurationError(str(error))
    if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
        return ConfigurationError(f"{config.host} is not an address of this machine")
    if is_refusal(error) and error.filename:
        path = Path(os.fsdecode(error.filename))
        return cannot_start(f"{path} cannot be used: {reason_of(error, path)}", error)
    return None
