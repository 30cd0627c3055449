"""A controller process: a controller, its gRPC server, its HTTP port, and the order of their ends.

Owns: starting and stopping.

Calls are accepted only when the metadata can be read and every unfinished workflow is known. The
HTTP port answers from the start on, as ``http/starting.py`` says. A stop first drains the calls,
then ends the workflows, which continue after the next start, and then closes connections.

Invariants:
1. A call that is being executed when the controller stops is still answered. Held by
   ``test_a_call_under_way_is_answered_before_the_end``.
2. Without a segment store, the start fails with ``StartupError`` after ``startup_seconds_max``.
   Held by ``test_without_a_segment_store_it_gives_up_in_words``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog
import trio

from pravega_controller.clocks import wall_clock_ms
from pravega_controller.config import ConfigurationError, ControllerConfig
from pravega_controller.controller import Controller, Environment, StartupError, open_controller
from pravega_controller.http.port import HttpPort
from pravega_controller.http.starting import SwitchedApplication
from pravega_controller.rpc.audit_log import AuditLog
from pravega_controller.rpc.service import ControllerServer, ListenError
from pravega_metrics.process_metrics import measure_loop_lag
from pravega_security.delegation_tokens import TokenMinter, TokenVerifier
from pravega_security.resources import Level
from pravega_security.signing_keys import SigningKeys

if TYPE_CHECKING:
    from pravega_controller.rpc.authorization import Authorization
    from pravega_controller.rpc.secure_port import PortCertificate
    from pravega_security.tls import TlsSettings

__all__ = ["Environment", "ListenError", "StartupError", "serve"]

log = structlog.get_logger(__name__)

E = TypeVar("E", bound=BaseException)


async def serve(
    config: ControllerConfig,
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
    environment: Environment | None = None,
) -> None:
    """Serve until cancelled; then running calls may finish for ``config.drain_seconds``.

    ``task_status.started`` gets the listening host and port. Raises ``ListenError`` when the port
    cannot be opened, ``ConfigurationError`` when its certificate cannot be used,
    ``SigningKeysError`` when there are no keys to sign tokens with, and ``StartupError`` when no
    segment store answers in time.
    """
    certificate = None if config.tls is None else _load_certificate(config.tls)
    environment = _with_tokens(config, environment or Environment())
    with _open_authorization(config, environment) as authorization:
        server = ControllerServer(
            config.host,
            config.port,
            published_address=config.published_address,
            certificate=certificate,
            authorization=authorization,
        )
        watchers = [] if certificate is None else [certificate.watch]
        if authorization is not None:
            watchers.append(authorization.tell_failures)
        http = _open_http(config, certificate)
        run = partial(_run, http=http, authorization=authorization)
        await _serve(config, server, watchers, environment, run, task_status)


async def _serve(
    config: ControllerConfig,
    server: ControllerServer,
    watchers: Sequence[Callable[[], Awaitable[None]]],
    environment: Environment,
    run: Callable[..., Awaitable[None]],
    task_status: trio.TaskStatus[tuple[str, int]],
) -> None:
    port = server.listen()
    stop = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            known = replace(config, port=port)
            await nursery.start(run, known, server, stop, environment)
            try:
                task_status.started((config.host, port))
                log.info("controller serves", host=config.host, port=port)
                if config.tls is not None:
                    log.info("clients are served over TLS alone", port=port)
                for watch in watchers:
                    nursery.start_soon(watch)
                await trio.sleep_forever()
            finally:
                stop.set()
    except BaseExceptionGroup as group:
        if (error := _first(group, StartupError)) is not None:
            raise error from error.__cause__
        raise


def _load_certificate(settings: TlsSettings) -> PortCertificate:
    # A server without TLS starts faster without it.
    from pravega_controller.rpc.secure_port import PortCertificate

    return PortCertificate(settings)


def _open_http(config: ControllerConfig, certificate: PortCertificate | None) -> HttpPort | None:
    """Listen on the HTTP port if there is one. Raises ``ListenError``."""
    if not config.http_port:
        return None
    shown = None if certificate is None else certificate.certificate
    http = HttpPort(config.host, config.http_port, shown)
    http.listen()
    return http


def _make_application(
    config: ControllerConfig, controller: Controller, authorization: Authorization | None
) -> object:
    # Its libraries are imported when somebody connects.
    from pravega_controller.console.mount import console_routes
    from pravega_controller.http.application import make_application
    from pravega_controller.http.calls import Calls
    from pravega_controller.http.health import Health

    calls, health = Calls(controller, authorization), Health(controller, config)
    names = {config.host, config.published_address or config.host}
    return make_application(calls, health, console_routes(calls, health, names), names)


@contextmanager
def _open_authorization(
    config: ControllerConfig, environment: Environment
) -> Iterator[Authorization | None]:
    """Yield what decides about calls, None where everybody may call everything.

    Raises ``ConfigurationError`` when users cannot be known, or the audit log cannot be written.
    """
    if config.accounts is None and config.bearer is None:
        yield None
        return
    # Their libraries take long to import, and most stores have no users.
    from pravega_controller.rpc.authorization import Authorization
    from pravega_security.accounts_file import AccountsFileError
    from pravega_security.authenticators import load_authenticators
    from pravega_security.identity_provider.bearer import BearerSettingsError

    minter = environment.tokens
    if minter is None or config.token_keys is None:
        raise ConfigurationError(
            "a controller with users needs token_keys: without them segment stores would take the"
            " writes of everybody"
        )
    try:
        authenticators = load_authenticators(config.accounts, bearer=config.bearer)
        audit = AuditLog(
            config.audit_log,
            now_ms=wall_clock_ms,
            file_bytes_max=config.audit_log_bytes_max,
            files_kept=config.audit_logs_kept,
        )
    except (AccountsFileError, BearerSettingsError) as error:
        raise ConfigurationError(str(error)) from error
    except OSError as error:
        raise ConfigurationError(
            f"audit log {config.audit_log} cannot be written: {error.strerror}"
        ) from error
    verifier = TokenVerifier(SigningKeys(config.token_keys), lambda: wall_clock_ms() // 1000)
    level = Level.READ if config.readers_change_groups else Level.READ_UPDATE
    with audit:
        yield Authorization(authenticators, minter, verifier, audit=audit, group_level=level)


def _with_tokens(config: ControllerConfig, environment: Environment) -> Environment:
    """Return the environment with a minter of tokens if the configuration has keys for it."""
    if config.token_keys is None or environment.tokens is not None:
        return environment
    keys = SigningKeys(config.token_keys)
    # Other machines' clocks tell when a token expires: that of records follows them too slowly.
    minter = TokenMinter(keys, config.token_seconds, lambda: wall_clock_ms() // 1000)
    return replace(environment, tokens=minter)


async def _run(
    config: ControllerConfig,
    server: ControllerServer,
    stop: trio.Event,
    environment: Environment,
    *,
    http: HttpPort | None,
    authorization: Authorization | None,
    task_status: trio.TaskStatus[None],
) -> None:
    """Run the controller. Once it serves, only ``stop`` ends it, so that calls can drain."""
    with trio.CancelScope() as scope:
        async with (
            _serving_http(config, http, authorization) as shown,
            open_controller(config, environment) as controller,
        ):
            # Otherwise a task that waits for the start could not be cancelled any more.
            await trio.lowlevel.checkpoint_if_cancelled()
            async with trio.open_nursery() as calls:
                server.start(controller, calls)
                calls.start_soon(measure_loop_lag)
                if shown is not None:
                    make = partial(_make_application, config, controller, authorization)
                    shown.application.switch(make)
                scope.shield = True
                task_status.started()
                await stop.wait()
                await server.stop(calls, drain_seconds=config.drain_seconds)
                if shown is not None:
                    await shown.end()


class _ShownHttp:
    """The HTTP port while it is served, from the start of the process on."""

    def __init__(self, application: SwitchedApplication) -> None:
        self.application = application
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def serve(self, port: HttpPort) -> None:
        """Serve until ``end`` is called."""
        try:
            with self._scope:
                await port.serve(lambda: self.application)
        finally:
            self._ended.set()

    async def end(self) -> None:
        """End all requests: afterwards, none of them uses the controller."""
        self._scope.cancel()
        await self._ended.wait()


@asynccontextmanager
async def _serving_http(
    config: ControllerConfig, port: HttpPort | None, authorization: Authorization | None
) -> AsyncIterator[_ShownHttp | None]:
    """Serve the HTTP port within the block; None if there is none."""
    if port is None:
        yield None
        return
    name = f"{config.published_address or config.host}:{config.port}"
    shown = _ShownHttp(SwitchedApplication(name, has_users=authorization is not None))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shown.serve, port)
        yield shown
        nursery.cancel_scope.cancel()


def _first(group: BaseExceptionGroup[BaseException], kind: type[E]) -> E | None:
    """Return the first error of a kind in a group, however deep."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            if (found := _first(error, kind)) is not None:
                return found
        elif isinstance(error, kind):
            return error
    return None
