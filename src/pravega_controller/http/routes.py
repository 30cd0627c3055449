"""The table of HTTP routes: what is declared of each, with the function that answers it.

Owns: ``ROUTES``, and the registration of handlers. Modules whose names end with ``routes`` have the
handlers, and register them when they are imported. The port serves what the table has, and the
document that describes the interface is made of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pravega_controller.errors import InvalidRequestError
from pravega_controller.http.calls import CallOfRequest
from pravega_controller.http.health import Health

NO_CONTENT = 204


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request: the parts of its path, its query, and the JSON object of its body, if any."""

    calls: CallOfRequest
    health: Health
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any = None

    def text(self, field: str) -> str:
        """Return a field of the body. Raises ``InvalidRequestError``."""
        value = self.body.get(field) if isinstance(self.body, dict) else None
        if not isinstance(value, str):
            raise InvalidRequestError(f"{field} has to be a string")
        return value

    def milliseconds(self, name: str) -> int:
        """Return a time of the query. Raises ``InvalidRequestError``."""
        value = self.query.get(name, "")
        if not (value.isascii() and value.isdecimal()) or len(value) > 18:
            raise InvalidRequestError(f"{name} has to be a time in milliseconds since 1970")
        return int(value)


@dataclass(frozen=True, slots=True)
class PlainText:
    """An answer that is no document of JSON."""

    body: bytes
    content_type: str


Handler = Callable[[HttpRequest], Awaitable[Any]]
"""Returns the document of the answer; None for an answer without one."""
H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. ``statuses`` says, for each status but 401, 403 and 5xx, when it is
    answered; the least of them is that of success."""

    method: str
    path: str
    answer: Handler
    summary: str
    statuses: Mapping[int, str]
    request: str | None = None
    """The name of the schema of its body, in ``openapi``."""
    reply: str | None = None
    """The name of the schema of its answer."""
    query: Mapping[str, str] | None = None
    """The parameters of its query, and what they are."""

    @property
    def success(self) -> int:
        """Return the status of success."""
        return min(self.statuses)


ROUTES: dict[str, dict[str, Route]] = {}
"""The routes of each path, by method."""


def route(
    method: str,
    path: str,
    statuses: Mapping[int, str],
    *,
    request: str | None = None,
    reply: str | None = None,
    query: Mapping[str, str] | None = None,
) -> Callable[[H], H]:
    """Return a decorator that declares a handler: see ``Route``. Its docstring is the summary."""

    def enter(handler: H) -> H:
        routes = ROUTES.setdefault(path, {})
        assert method not in routes
        summary = " ".join((handler.__doc__ or "").split())
        routes[method] = Route(method, path, handler, summary, statuses, request, reply, query)
        return handler

    return enter
