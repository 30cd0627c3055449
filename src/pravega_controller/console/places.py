"""The places above a page: those to which the page of a refusal leads back.

Owns: ``find_places``. A page's place follows from its path and from the table of pages: what a
shorter path names, then the scope, then the pages of the whole store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pravega_controller.console.rendering import path_to


@dataclass(frozen=True, slots=True)
class PagePlace:
    """A page to which a link leads."""

    title: str
    path: str


def find_places(
    pages: Collection[tuple[str, str]], method: str, path: str, values: Mapping[str, str]
) -> list[PagePlace]:
    """Return the places above a page, the nearest one last.

    ``pages`` are the paths and methods that there are, ``path`` is one of them with names in
    braces, or "" for a page that there is not. What is sent by a form has the form's page above.
    """
    found = [PagePlace("Overview", path_to(""))] if path != "/" else []
    if "scope" in values:
        found.append(PagePlace("Scopes", path_to("scopes")))
        if path != "/scopes/{scope}":
            found.append(PagePlace(values["scope"], path_to("scopes", values["scope"])))
    parts = path.strip("/").split("/")
    lengths = range(2, len(parts) + (method == "POST"))
    for length in lengths:
        above = "/" + "/".join(parts[:length])
        if (above, "GET") in pages and above != "/scopes/{scope}":
            names = [values[each[1:-1]] if each[0] == "{" else each for each in parts[:length]]
            found.append(PagePlace(names[-1], path_to(*names)))
    return found
