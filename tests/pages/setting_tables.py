"""Makes the tables of settings, and of the original's names for them, from their declarations.

Owns: the form of a row, and how a default is shown.
"""

from __future__ import annotations

import inspect
import types
from itertools import groupby
from pathlib import Path
from typing import Any, get_args, get_origin

from pravega_admin.serving.declarations import Declaration, declarations_of

UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
COLUMNS = ("setting", "default", "unit", "minimum", "maximum", "set by", "meaning")
NUMBERS = {
    "bytes": "bytes",
    "seconds": "s",
    "percent": "%",
    "port": "port",
}
"""The units of numbers, by a word of the setting's name; the first that is there counts."""
KINDS = {
    bool: "true, false",
    str: "text",
    Path: "path",
    tuple: "list",
    dict: "table",
}
"""The words for values that are no numbers."""


def table_of_settings(table: str) -> str:
    """Return the settings of a table, those of each section under a heading of their own."""
    lines = []
    for section, settings in groupby(declarations_of(table), section_of):
        lines.append(f"\n### `[{section}]`\n\n")
        lines.append(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}\n")
        lines += [f"| {' | '.join(cells_of(each))} |\n" for each in settings]
    return "".join(lines) + "\n"


def cells_of(declaration: Declaration) -> tuple[str, ...]:
    """Return the row of a setting."""
    return (
        f"`{declaration.name}`",
        show_default(declaration),
        unit_of(declaration),
        show_least(declaration),
        show_bound(declaration, declaration.most),
        show_place(declaration),
        declaration.meaning.replace("``", "`").replace("|", "\\|"),
    )


def table_of_names(table: str) -> str:
    """Return the original's names for the settings of a table."""
    lines = ["| property | other names | here |\n| --- | --- | --- |\n"]
    for each in declarations_of(table):
        if each.original:
            current, *others = each.original.split()
            written = ", ".join(f"`{name}`" for name in others) or "-"
            lines.append(f"| `{current}` | {written} | `{each.option or each.path}` |\n")
    return "".join(lines)


def section_of(declaration: Declaration) -> str:
    """Return the table and the sections of a setting, as a settings file has them."""
    return declaration.path.rpartition(".")[0]


def show_place(declaration: Declaration) -> str:
    """Return the option and the environment variable of a setting that no file has."""
    if declaration.option is None:
        return "file"
    places = [declaration.option, declaration.variable or ""]
    return ", ".join(f"`{place}`" for place in places if place) or "what starts the server"


def unit_of(declaration: Declaration) -> str:
    """Return the unit of a number, which its name has, or the kind of another value."""
    kind = declaration.kind
    if isinstance(kind, types.UnionType):
        [kind] = [each for each in get_args(kind) if each is not types.NoneType]
    if kind in (int, float):
        words = declaration.name.split("_")
        unit = next((unit for word, unit in NUMBERS.items() if word in words), "number")
        return unit + "/s" * declaration.name.endswith("_per_second")
    if kind == tuple[str, int]:
        return "host and port"
    return KINDS[get_origin(kind) or kind]


def show_least(declaration: Declaration) -> str:
    """Return the minimum of a number, or the value above which it has to be."""
    if declaration.above is not None:
        return f"> {declaration.above:g}"
    return show_bound(declaration, declaration.least)


def show_bound(declaration: Declaration, bound: float | None) -> str:
    """Return a bound as the default is shown; nothing if there is none."""
    if bound is None:
        return ""
    return f"{bound}{count_bytes(declaration.name, bound)}"


def show_default(declaration: Declaration) -> str:
    """Return the default as a settings file would have it; nothing if there is none."""
    value = declaration.default
    if value is inspect.Parameter.empty:
        return "required"
    if repr(value) == "<factory>":
        return "`{}`"
    if value in (None, "") or isinstance(value, dict):
        return ""
    return f"`{write_value(value)}`{count_bytes(declaration.name, value)}"


def write_value(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(write_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def count_bytes(name: str, value: Any) -> str:
    """Return a number of bytes in the unit that people use for it."""
    if "bytes" not in name or not isinstance(value, int):
        return ""
    for factor, unit in UNITS:
        if value >= factor and value % factor == 0:
            return f" ({value // factor} {unit})"
    return ""
