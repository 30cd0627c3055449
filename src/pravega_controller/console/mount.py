"""The place of the console on the HTTP port.

Owns: its paths, and the import of everything else of the console when somebody opens it.

Invariants:
1. While nobody opens the console, neither its template library nor its pages are imported. Held by
   ``test_until_somebody_opens_it_nothing_is_imported``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from pravega_controller.http.application import HEADERS
from pravega_controller.http.calls import Calls
from pravega_controller.http.health import Health

if TYPE_CHECKING:
    from collections.abc import Collection

ROOT: Final = "/console"


class LazyConsole:
    """The console as an application that is put together for its first request."""

    def __init__(self, calls: Calls, health: Health, hosts: Collection[str]) -> None:
        self._parts = calls, health, hosts
        self._lock = trio.Lock()
        self._console: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._console is None:
            async with self._lock:
                if self._console is None:
                    self._console = await trio.to_thread.run_sync(self._load)
        await self._console(scope, receive, send)

    def _load(self) -> Any:
        from pravega_controller.console.application import make_console

        return make_console(*self._parts)


def console_routes(calls: Calls, health: Health, hosts: Collection[str]) -> list[Mount | Route]:
    """Return the routes of the console, for the port's application.

    ``hosts`` are names of this controller that a browser may use where there are no users.
    """

    async def lead(request: Request) -> Response:
        return RedirectResponse(f"{ROOT}/", 303, headers=HEADERS)

    return [Route("/", lead), Route(ROOT, lead), Mount(ROOT, LazyConsole(calls, health, hosts))]
