"""Makes the table of the controllers' HTTP routes from their declarations.

Owns: the form of a row.
"""

from __future__ import annotations

from pravega_controller.http import application
from pravega_controller.http.routes import ROUTES, Route


def table_of_routes() -> str:
    """Return the routes, by path."""
    assert application.ROUTE_MODULES, "the routes are declared by their import"
    lines = ["| route | body | answer | statuses | meaning |\n| --- | --- | --- | --- | --- |\n"]
    for path in sorted(ROUTES):
        lines += [f"| {' | '.join(cells_of(each))} |\n" for each in ROUTES[path].values()]
    return "".join(lines)


def cells_of(route: Route) -> tuple[str, ...]:
    """Return the row of a route."""
    query = "".join(f"<br>`?{name}=`: {what}" for name, what in (route.query or {}).items())
    path = route.path.replace(":path", "")
    return (
        f"`{route.method} {path}`{query}",
        f"`{route.request}`" if route.request else "",
        f"`{route.reply}`" if route.reply else "",
        "<br>".join(f"{status}: {what}" for status, what in route.statuses.items()),
        route.summary,
    )
