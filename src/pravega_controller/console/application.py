"""The application that answers requests for the console.

Owns: what all pages share: who asks, forms, the page that shows an error, and the files.

Invariants:
1. When there are users, no page is shown to somebody who has not proved to be one. Held by
   ``test_with_users_each_page_asks_who_it_is``.
2. When a page cannot be shown, the answer is a page that says why. Held by
   ``test_what_is_refused_is_a_page_that_says_why``.
3. When a page is refused, it has a link to what is above it. Held by
   ``test_a_refusal_leads_back_to_what_is_above_the_page``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from pravega_controller.console.looks import Looks
from pravega_controller.console.pages import (
    change_pages,
    cluster_pages,
    entry_pages,
    event_pages,
    group_pages,
    overview_pages,
    scope_pages,
    stream_pages,
    table_pages,
    transaction_pages,
)
from pravega_controller.console.places import find_places
from pravega_controller.console.rendering import FILE_HEADERS, PAGE_HEADERS, render, static_files
from pravega_controller.console.routes import (
    PAGES,
    Lead,
    Numbers,
    PageAnswer,
    PageHandler,
    PageRequest,
)
from pravega_controller.errors import InvalidRequestError, UnauthenticatedError
from pravega_controller.http.application import LOGIN_HEADERS, read_body, request_calls
from pravega_controller.http.calls import Calls, Refusal, refusal_of
from pravega_controller.http.health import Health
from pravega_controller.http.origins import check_host, check_origin

PAGE_MODULES: Final = (
    change_pages,
    cluster_pages,
    entry_pages,
    event_pages,
    group_pages,
    overview_pages,
    scope_pages,
    stream_pages,
    table_pages,
    transaction_pages,
)
"""The modules with pages. Importing them filled the table."""
FIELDS_MAX: Final = 64
"""Maximum number of fields of a form."""


def make_console(calls: Calls, health: Health, hosts: Collection[str]) -> Starlette:
    """Return the application; ``hosts`` are names that a browser may use without users."""
    looks = Looks()

    def endpoint(path: str, handler: PageHandler) -> Any:
        async def answer(request: Request) -> Response:
            user = None
            try:
                asked = await _understand(request, calls, health, looks, hosts)
                user = asked.user
                return _show(await handler(asked), user, request.url.path)
            except Exception as error:
                return _show_refusal(refusal_of(error), user, request, path)

        return answer

    routes = [
        Route(path, endpoint(path, each), methods=[method])
        for (path, method), each in PAGES.items()
    ]
    routes.append(Route("/static/{hash}/{name:path}", _send_file))

    async def answer_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path
        if error.status_code == 404 and request.method in ("GET", "HEAD") and path.endswith("/"):
            return RedirectResponse(path.rstrip("/"), 303, headers=PAGE_HEADERS)
        sentence = {404: "There is no such page.", 405: "This page has no such method."}
        refusal = Refusal(error.status_code, sentence.get(error.status_code, error.detail))
        return _show_refusal(refusal, None, request, headers=error.headers)

    console = Starlette(routes=routes, exception_handlers={HTTPException: answer_http_exception})
    # Starlette's own redirects have no headers of ours, and an address that the browser chose.
    console.router.redirect_slashes = False
    return console


async def _understand(
    request: Request, calls: Calls, health: Health, looks: Looks, hosts: Collection[str]
) -> PageRequest:
    """Return a request of a user. Raises ``Refusal`` and what a call would raise."""
    if request.method == "POST":
        check_origin(request.headers)
    of_request = request_calls(calls, request)
    if of_request.authorization is None:
        check_host(request.headers, hosts)
    user = await of_request.identify()
    if of_request.authorization is not None and user is None:
        raise UnauthenticatedError("The console needs a user and a password.")
    # Somebody unknown has no body read.
    form = _read_form(await read_body(request)) if request.method == "POST" else {}
    return PageRequest(
        of_request, health, looks, request.path_params, request.query_params, form, user
    )


def _read_form(body: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=FIELDS_MAX,
        )
    except ValueError:
        raise InvalidRequestError("the form cannot be read") from None
    return dict(pairs)


def _show(answer: PageAnswer, user: str | None, path: str) -> Response:
    if isinstance(answer, Lead):
        query = f"?{urlencode(answer.query)}" if answer.query else ""
        return RedirectResponse(answer.path + query, 303, headers=PAGE_HEADERS)
    if isinstance(answer, Numbers):
        return JSONResponse(answer.document, headers=PAGE_HEADERS)
    return _html(answer.template, {**answer.values, "user": user, "here": path}, answer.status)


def _show_refusal(
    refusal: Refusal,
    user: str | None,
    request: Request,
    path: str = "",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Show why the page at a path of the table is refused; "" if there is no such page."""
    places = find_places(PAGES.keys(), request.method, path, request.path_params)
    values = {"refusal": refusal, "user": user, "here": request.url.path, "places": places}
    login = LOGIN_HEADERS if refusal.status == 401 else {}
    return _html("refusal.html", values, refusal.status, {**login, **(headers or {})})


def _html(
    template: str, values: Mapping[str, Any], status: int, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(
        render(template, values),
        status,
        headers={**PAGE_HEADERS, **(headers or {})},
        media_type="text/html",
    )


async def _send_file(request: Request) -> Response:
    found = static_files().get(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    content, kind = found
    return Response(content, headers={**FILE_HEADERS, "Content-Type": kind})
