"""Makes the tables of settings, and of the original's names for them, from their declarations.

Owns: the form of a row, and how a default is shown.
"""

from __future__ import annotations

import inspect
from itertools import groupby
from typing import Any

from pravega_admin.serving.declarations import Declaration, declarations_of

UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def table_of_settings(table: str) -> str:
    """Return the settings of a table, those of each section under a heading of their own."""
    lines = []
    for section, settings in groupby(declarations_of(table), section_of):
        lines.append(f"\n### `[{section}]`\n\n")
        lines.append("| setting | default | meaning |\n| --- | --- | --- |\n")
        lines += [
            f"| `{each.name}` | {show_default(each)} | {explain(each)} |\n" for each in settings
        ]
    return "".join(lines) + "\n"


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


def explain(declaration: Declaration) -> str:
    """Return the meaning of a setting, and the option and the variable in its place."""
    places = [declaration.option or "", declaration.variable or ""]
    named = " or ".join(f"`{place}`" for place in places if place)
    meaning = declaration.meaning.replace("``", "`").replace("|", "\\|")
    if declaration.option is None:
        return meaning
    return f"{meaning} Set by {named or 'whatever starts the server'}, not in a file."


def show_default(declaration: Declaration) -> str:
    """Return the default as a settings file would have it; nothing if there is none."""
    value = declaration.default
    if value in (None, inspect.Parameter.empty, "") or isinstance(value, dict):
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
