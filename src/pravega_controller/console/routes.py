"""The table of the console's pages, and what a page is asked and answers.

Owns: ``PAGES``, and the registration of pages. Modules whose names end with ``pages`` have them,
and register them when they are imported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pravega_controller.console.looks import Looks
from pravega_controller.errors import InvalidRequestError
from pravega_controller.http.calls import CallOfRequest
from pravega_controller.http.health import Health


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page; ``form`` has the fields of a change, else nothing."""

    calls: CallOfRequest
    health: Health
    looks: Looks
    path: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str]
    user: str | None = None
    """The user who asks; None where there are no users."""

    def number(self, name: str, default: int, largest: int) -> int:
        """Return a number of the query, from 1 to ``largest``. Raises ``InvalidRequestError``."""
        text = self.query.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdecimal()) or not 1 <= int(text[:18]) <= largest:
            raise InvalidRequestError(f"{name} has to be a number from 1 to {largest}")
        return int(text)


@dataclass(frozen=True, slots=True)
class HtmlPage:
    """An answer that is shown: a template, and the values that it needs."""

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class Numbers:
    """An answer for a chart: a document of JSON."""

    document: Any


@dataclass(frozen=True, slots=True)
class Lead:
    """An answer that leads to another page of the console, after a change."""

    path: str
    query: Mapping[str, str] = field(default_factory=dict)


PageAnswer = HtmlPage | Numbers | Lead
PageHandler = Callable[[PageRequest], Awaitable[PageAnswer]]
P = TypeVar("P", bound=PageHandler)

PAGES: dict[tuple[str, str], PageHandler] = {}
"""The pages by path and method."""


def page(method: str, path: str) -> Callable[[P], P]:
    """Return a decorator that declares the page at a path below that of the console."""

    def enter(handler: P) -> P:
        assert (path, method) not in PAGES
        PAGES[path, method] = handler
        return handler

    return enter
