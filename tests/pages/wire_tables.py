"""Makes the table of the wire protocol's commands from their declarations.

Owns: the names of types, and the form of a row.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pravega_wire.codec import slots_of
from pravega_wire.commands import COMMANDS, Command, Reply, Request
from pravega_wire.fields import Fixed, Framed, Prefixed, Rest

_FIXED = {"b": "int8", "i": "int32", "q": "int64", "?": "bool", "16s": "uuid"}


def type_name(kind: Any) -> str:
    """Return the name of a field's type, as the page explains it."""
    match kind:
        case Fixed(format):
            return _FIXED[format]
        case Prefixed(_, text):
            return "text" if text else "bytes"
        case Rest():
            return "rest"
        case Framed():
            return "Event"
        case [item]:
            return f"{type_name(item)}[]"
    return str(kind.__name__)


def fields_of(cls: type[msgspec.Struct]) -> str:
    """Return the fields of a command or a part, in wire order."""
    described = []
    defaults = {field.name: field.default for field in msgspec.structs.fields(cls)}
    for slot in slots_of(cls):
        default = ""
        if slot.optional and not isinstance(slot.kind, type):
            value = defaults[slot.name]
            default = f" = {'false' if value is False else '[]' if value == () else value}"
            default = ' = ""' if value == "" else default
        described.append(f"{slot.name}: {type_name(slot.kind)}{default}")
    return ", ".join(described)


def direction_of(cls: type[Command]) -> str:
    """Return Q for a request, R for a reply."""
    marks = "Q" * issubclass(cls, Request) + "R" * issubclass(cls, Reply)
    return marks or "-"


def table_of_commands() -> str:
    """Return the table of all commands, by code."""
    rows = [
        f"| {code} | {cls.__name__} | {direction_of(cls)} | {fields_of(cls)} |\n"
        for code, cls in sorted(COMMANDS.items())
    ]
    return "".join(["| code | command | | fields |\n|---|---|---|---|\n", *rows])
