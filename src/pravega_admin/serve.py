"""Runs one server in this process, until it is told to end.

Owns: the one place where servers are started: which exist, how their settings are read, signals,
and what a failed start means to a user.

Invariants:
1. SIGTERM or SIGINT ends a server the gentle way, once; a second one ends the process at once.
2. A server that cannot start as configured raises ``ConfigurationError`` with one sentence.
"""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import trio

from pravega_admin.errors import EXIT_INTERRUPTED, ConfigurationError, leaf_errors

Serve: TypeAlias = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Server:
    """A kind of server; ``load`` imports it and returns its configuration type and function."""

    title: str
    load: Callable[[], tuple[Any, Serve]]


def _load_segment_store() -> tuple[Any, Serve]:
    from segstore.server import serve

    from segstore.config import SegmentStoreConfig

    return SegmentStoreConfig, serve


def _load_controller() -> tuple[Any, Serve]:
    from pravega_controller.server import serve

    from pravega_controller.config import ControllerConfig

    return ControllerConfig, serve


SEGMENT_STORE = "segment-store"
CONTROLLER = "controller"
SERVERS: Mapping[str, Server] = {
    SEGMENT_STORE: Server("segment store", _load_segment_store),
    CONTROLLER: Server("controller", _load_controller),
}


def run_server(
    server: Server, settings: Mapping[str, Any], *, on_ready: Callable[[], None]
) -> None:
    """Serve until a signal says to end. ``settings`` are the fields of its configuration.

    Raises ``ConfigurationError`` when it cannot start as told.
    """
    config_type, serve = server.load()
    try:
        config = msgspec.convert(settings, config_type)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigurationError(f"the {server.title}'s settings are wrong: {error}") from error
    try:
        trio.run(_serve_until_signal, serve, config, on_ready)
    except (OSError, BaseExceptionGroup) as group:
        for error in leaf_errors(group):
            _raise_if_configuration(error, config)
        raise


async def _serve_until_signal(serve: Serve, config: Any, on_ready: Callable[[], None]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_on_signal, signals, nursery.cancel_scope)
            async with trio.open_nursery() as server:
                await server.start(serve, config)
                on_ready()
            nursery.cancel_scope.cancel()


async def _end_on_signal(signals: Any, scope: trio.CancelScope) -> None:
    """The first signal cancels the server; its drain is its own matter."""
    async for _ in signals:
        scope.cancel()
        # From now on the default applies again: a second signal ends the process.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, _exit_interrupted)
        return


def _exit_interrupted(number: int, frame: object) -> None:
    raise SystemExit(EXIT_INTERRUPTED)


def _raise_if_configuration(error: BaseException, config: Any) -> None:
    """Raise ``ConfigurationError`` if this is what a wrong setting leads to."""
    if isinstance(error, ConfigurationError):
        raise error
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        raise ConfigurationError(
            f"port {config.port} on {config.host} is in use by another process"
        ) from error
    if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
        raise ConfigurationError(f"{config.host} is not an address of this machine") from error
    if isinstance(error, socket.gaierror):
        raise ConfigurationError(f"{config.host} is not a known host") from error
    if type(error).__name__ == "DataDirectoryError":
        raise ConfigurationError(str(error)) from error
