"""The application that answers HTTP requests: what all routes share.

Owns: the reading of bodies, the answers to errors, and the headers of all answers.

Invariants:
1. When a body is longer than ``BODY_BYTES_MAX``, the request is refused with 413, and of a very
   long one at most ``READ_BYTES_MAX`` are received. Held by ``test_a_long_body_is_refused_early``.
2. When a body comes too slowly, the request is refused with 408. Held by
   ``test_a_body_that_comes_slowly_is_refused``.
3. When a request cannot be understood, it gets a 4xx and a sentence; no request ends the server.
   Held by ``test_no_request_is_answered_with_a_traceback``.
4. When a path ends with a slash, it is answered like the path without it. Held by
   ``test_a_trailing_slash_changes_nothing``.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.routing import Route as StarletteRoute

from pravega_controller.errors import InvalidRequestError
from pravega_controller.http import health_routes, metrics_routes, scope_routes, stream_routes
from pravega_controller.http.calls import CallOfRequest, Calls, Refusal, refusal_of
from pravega_controller.http.health import Health
from pravega_controller.http.openapi import describe_routes
from pravega_controller.http.origins import check_foreign_page
from pravega_controller.http.routes import ROUTES, HttpRequest, PlainText, Route

ROUTE_MODULES: Final = (health_routes, metrics_routes, scope_routes, stream_routes)
"""The modules with routes. Importing them filled the table."""
BODY_BYTES_MAX: Final = 1 << 20
READ_BYTES_MAX: Final = 2 * BODY_BYTES_MAX
"""Number of bytes of a body that are received, and those beyond ``BODY_BYTES_MAX`` dropped, before
the connection is closed: a client that is still sending then may not get the answer."""
BODY_SECONDS_MAX: Final = 30.0
"""Time, in seconds, in which a whole body has to come."""
HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
"""The headers of all documents: they are read by programs, and never shown as pages."""
LOGIN_HEADERS: Final = {"WWW-Authenticate": 'Basic realm="segstore", charset="UTF-8"'}
"""The headers by which browsers ask for a user and a password."""
OPENAPI: Final = "/openapi.json"

Endpoint = Callable[[Request], Awaitable[Response]]


def make_application(
    calls: Calls, health: Health, others: Sequence[BaseRoute] = (), hosts: Collection[str] = ()
) -> Starlette:
    """Return the application of a controller.

    ``others`` are routes that are no documents, ``hosts`` names that a browser may use without
    users.
    """
    document = describe_routes(ROUTES)

    async def tell_openapi(request: Request) -> Response:
        return JSONResponse(document, headers=HEADERS)

    routes: list[BaseRoute] = [*others]
    routes += [StarletteRoute(each, tell_openapi) for each in _spellings(OPENAPI)]
    # A path with parameters would hide those that come after it.
    for path in sorted(ROUTES, key=lambda path: (":path" in path, -len(path))):
        # Make one route for all methods of a path: in an answer 405, Starlette names only the
        # methods of the path's first route.
        endpoint, methods = _endpoint(ROUTES[path], calls, health, hosts), list(ROUTES[path])
        routes += [StarletteRoute(each, endpoint, methods=methods) for each in _spellings(path)]
    application = Starlette(
        routes=routes, exception_handlers={HTTPException: _answer_http_exception}
    )
    # Starlette's own redirects have no headers of ours, and an address that the caller chose.
    application.router.redirect_slashes = False
    return application


def _spellings(path: str) -> tuple[str, ...]:
    return (path,) if path.endswith(":path}") else (path, f"{path}/")


def _endpoint(
    routes: Mapping[str, Route], calls: Calls, health: Health, hosts: Collection[str]
) -> Endpoint:
    async def answer(request: Request) -> Response:
        route = routes["GET" if request.method == "HEAD" else request.method]
        try:
            of_request = request_calls(calls, request)
            if request.method not in ("GET", "HEAD"):
                has_users = of_request.authorization is not None
                check_foreign_page(request.headers, hosts, has_users=has_users)
            body = await _read_json(request) if route.request is not None else None
            document = await route.answer(
                HttpRequest(
                    of_request,
                    health,
                    {name: value.strip("/") for name, value in request.path_params.items()},
                    request.query_params,
                    body,
                )
            )
        except Exception as error:
            return _answer_refusal(refusal_of(error))
        if document is None:
            return Response(status_code=route.success, headers=HEADERS)
        if isinstance(document, PlainText):
            told = {**HEADERS, "Content-Type": document.content_type}
            return Response(document.body, status_code=route.success, headers=told)
        return JSONResponse(document, status_code=route.success, headers=HEADERS)

    return answer


def request_calls(calls: Calls, request: Request) -> CallOfRequest:
    """Return what makes the calls of a request. Raises ``Refusal``."""
    headers = [(name.lower(), value) for name, value in request.headers.items()]
    peer = request.client
    address = "" if peer is None else f"{_family(peer.host)}:{peer.host}:{peer.port}"
    return calls.of(headers, address)


def _family(host: str) -> str:
    return "ipv6" if ":" in host else "ipv4"


async def read_body(request: Request) -> bytes:
    """Return the body of a request. Raises ``Refusal`` if it is too long or too slow."""
    received, count = bytearray(), 0
    with trio.move_on_after(BODY_SECONDS_MAX) as whole:
        async with aclosing(request.stream()) as pieces:
            async for piece in pieces:
                count += len(piece)
                if count <= BODY_BYTES_MAX:
                    received += piece
                elif count > READ_BYTES_MAX:
                    break
    if whole.cancelled_caught:
        raise Refusal(408, f"the body did not come within {BODY_SECONDS_MAX:g} s")
    if count > BODY_BYTES_MAX:
        raise Refusal(413, f"the body is longer than {BODY_BYTES_MAX} bytes")
    return bytes(received)


async def _read_json(request: Request) -> Any:
    """Return the JSON of the body. Raises ``Refusal`` and ``InvalidRequestError``."""
    received = await read_body(request)
    try:
        document = json.loads(received, parse_constant=_refuse_constant)
        # Half of a pair of surrogates is a text for json, and can be sent to nobody.
        json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise InvalidRequestError("the body has to be JSON") from None
    return document


def _refuse_constant(name: str) -> None:
    """Raise ``ValueError``: JSON has no NaN and no Infinity."""
    raise ValueError(name)


def _answer_refusal(refusal: Refusal) -> Response:
    headers = {**HEADERS, **(LOGIN_HEADERS if refusal.status == 401 else {})}
    return JSONResponse({"error": refusal.sentence}, status_code=refusal.status, headers=headers)


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentences = {404: "there is no such path", 405: "this path has no such method"}
    sentence = sentences.get(error.status_code, error.detail)
    headers = {**HEADERS, **(error.headers or {})}
    return JSONResponse({"error": sentence}, status_code=error.status_code, headers=headers)
