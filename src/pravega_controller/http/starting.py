"""The application of the HTTP port from the start of the process on.

Owns: ``SwitchedApplication``, and the answers until the controller serves. A start ends when the
metadata can be read, which takes as long as segment stores do.

Invariants:
1. While the controller starts, it is alive and not ready, and says why; its own readings say so,
   too, unless only some users may read them. Everything else is refused with 503. Held by
   ``test_a_controller_that_starts_is_alive_and_not_ready``.
2. When the controller serves, the next request gets the controller's own application. Held by
   ``test_a_controller_that_starts_is_alive_and_not_ready``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

SENTENCE: Final = "the controller starts: it has not read its metadata, which segment stores have"
RETRY_SECONDS: Final = 1
METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")


class SwitchedApplication:
    """An application that answers by itself until ``switch`` was called.

    ``name`` is that of the controller in readings.
    """

    def __init__(self, name: str, *, has_users: bool) -> None:
        self._make: Callable[[], Any] = partial(_make_application, name, has_users=has_users)
        self._made: Any = None
        self._lock = trio.Lock()

    def switch(self, make: Callable[[], Any]) -> None:
        """Answer from now on by the application that ``make`` returns."""
        self._make, self._made = make, None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (application := self._made) is None:
            async with self._lock:
                # Its libraries are imported now. Nothing is lost if a switch comes meanwhile.
                make = self._make
                if self._made is None:
                    made = await trio.to_thread.run_sync(make)
                    if make is self._make:
                        self._made = made
        await application(scope, receive, send)


def _make_application(name: str, *, has_users: bool) -> Any:
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from pravega_controller.http.application import HEADERS
    from pravega_controller.http.metrics import read_own_metrics
    from pravega_metrics.exposition import CONTENT_TYPE, Source, render

    headers = {**HEADERS, "Retry-After": str(RETRY_SECONDS)}

    async def answer(request: Request) -> Response:
        path = request.url.path.rstrip("/")
        if path in ("/live", "/ping"):
            return Response(headers=HEADERS)
        if path in ("/metrics", "/prometheus") and not has_users:
            own = read_own_metrics(is_ready=False)
            body = render([Source("controller", name, own)])
            return Response(body, headers={**HEADERS, "Content-Type": CONTENT_TYPE})
        return JSONResponse({"error": SENTENCE}, status_code=503, headers=headers)

    return Starlette(routes=[Route("/{path:path}", answer, methods=list(METHODS))])
