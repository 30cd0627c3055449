"""The look of the console's pages: templates, numbers as people read them, headers.

Owns: the template environment, the filters, and the headers of pages and of files.

Invariants:
1. When a value has characters of HTML, they are shown as characters. Held by
   ``test_names_with_any_characters_make_paths_and_text``.
2. When a browser shows a page, it runs no script and uses no style but the files of the console,
   and asks no other server. Held by ``test_pages_forbid_everything_that_is_not_theirs``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

FOLDER: Final = Path(__file__).parent
STATIC: Final = FOLDER / "static"
CONTENT_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
PAGE_HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
}
FILE_HEADERS: Final = {
    # A file's address has a part of its hash.
    "Cache-Control": "public, max-age=31536000, immutable",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
NOTHING: Final = "–"
"""The sign for what is not known."""

_BYTES: Final = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_COUNTS: Final = ("", "k", "M", "G", "T")


def _scale(value: float, units: tuple[str, ...]) -> str:
    step = 0
    while abs(value) >= 999.5 and step < len(units) - 1:
        value /= 1000
        step += 1
    digits = 0 if step == 0 and value == int(value) else 2 if abs(value) < 10 else 1
    return f"{value:.{digits if abs(value) < 100 else 0}f} {units[step]}".rstrip()


def show_bytes(value: float | None) -> str:
    """Return a number of bytes as text, with a unit that suits it."""
    return NOTHING if value is None else _scale(value, _BYTES)


def show_count(value: float | None) -> str:
    """Return a count as text, with a unit that suits it."""
    return NOTHING if value is None else _scale(value, _COUNTS)


def show_seconds(value: float | None) -> str:
    """Return a duration as text."""
    if value is None:
        return NOTHING
    if math.isinf(value):
        return "endless"
    for limit, factor, unit in (
        (1e-3, 1e6, "µs"),
        (1.0, 1e3, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 1 / 60, "min"),
        (172800.0, 1 / 3600, "h"),
    ):
        if value < limit:
            return f"{value * factor:.3g} {unit}" if value else "0 s"
    return f"{value / 86400:.3g} d"


def show_trend(value: float | None) -> str:
    """Return as text how many bytes are added or removed each second."""
    if value is None:
        return NOTHING
    if abs(value) < 1:
        return "steady"
    return f"{'+' if value > 0 else '−'}{show_bytes(abs(value))}/s"


def show_time(milliseconds: int) -> str:
    """Return a time since 1970 as text, in UTC."""
    return f"{moment_of(milliseconds):%Y-%m-%d %H:%M:%S} UTC"


def moment_of(milliseconds: int) -> datetime:
    """Return a time since 1970; the last one that there is for those beyond."""
    latest = 253_402_300_799_000
    return datetime.fromtimestamp(max(0, min(milliseconds, latest)) / 1000, UTC)


def path_to(*parts: str) -> str:
    """Return the address of a page of the console; each part may have any characters."""
    return "/console/" + "/".join(quote(part, safe="") for part in parts)


def name_file(name: str) -> str:
    """Return the address of a file of the console."""
    return f"/console/static/{_hash(name)}/{name}"


@cache
def _hash(name: str) -> str:
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]


@cache
def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Return the files of the console by name, with their kinds of content."""
    return {
        str(path.relative_to(STATIC)): (path.read_bytes(), CONTENT_TYPES[path.suffix])
        for path in sorted(STATIC.rglob("*"))
        if path.suffix in CONTENT_TYPES
    }


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": show_bytes,
        "count": show_count,
        "seconds": show_seconds,
        "time": show_time,
        "trend": show_trend,
    }
    environment.globals |= {"path": path_to, "file": name_file, "nothing": NOTHING}
    return environment


def render(template: str, values: Mapping[str, Any]) -> str:
    """Return the HTML of a template."""
    return _templates().get_template(template).render(values)
