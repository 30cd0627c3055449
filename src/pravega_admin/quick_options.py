"""The options of ``segstore standalone``, read without the command line's parser.

Owns: this reading. The parser, its help and its messages are in ``serve_commands``; importing and
setting it up takes longer than all other work of the command before the servers start.

Invariants:
1. This module reads only arguments that the parser would read alike. It leaves every doubt to the
   parser: a name or a value that is not plainly right, and every request for help.
2. This module imports almost nothing: it is read before the servers can start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from pravega_admin.log_options import LogFormat, LogLevel

PORT_MAX = 65535
ORIGINAL_NAMES = "SEGSTORE_ORIGINAL_NAMES"
"""The variable that makes the verbs read the original's names for settings."""
CONTROLLERS_MAX = 16
CONTAINERS_DIGITS_MAX = 9
ALL_CORES = "auto"
"""The value of ``--stores`` that chooses the number by this machine's cores."""


def _text(value: str) -> object:
    return value


def _port(value: str) -> object:
    return _number(value, PORT_MAX)


def _count(value: str) -> object:
    return _number(value, 10**CONTAINERS_DIGITS_MAX - 1)


def _number(value: str, maximum: int) -> int | None:
    if not (value.isascii() and value.isdecimal()) or len(value) > CONTAINERS_DIGITS_MAX:
        return None
    number = int(value)
    return number if 1 <= number <= maximum else None


def _controllers(value: str) -> object:
    return _number(value, CONTROLLERS_MAX)


def _stores(value: str) -> object:
    return value if value == ALL_CORES else _count(value)


def _level(value: str) -> object:
    return next((level for level in LogLevel if level.value == value), None)


def _format(value: str) -> object:
    return next((format for format in LogFormat if format.value == value), None)


READERS: dict[str, Callable[[str], object]] = {
    "data_dir": _text,
    "host": _text,
    "controller_port": _port,
    "controllers": _controllers,
    "segment_store_port": _port,
    "stores": _stores,
    "published_address": _text,
    "container_count": _count,
    "tier2": _text,
    "s3_endpoint": _text,
    "s3_region": _text,
    "log_level": _level,
    "log_format": _format,
    "log_file": _text,
    "config": _text,
}
"""Functions that read the values of options; each returns None for an uncertain value."""
FLAGS = frozenset({"allow_insecure"})
VARIABLES = {
    "data_dir": "SEGSTORE_DATA_DIR",
    "tier2": "SEGSTORE_TIER2",
    "allow_insecure": "SEGSTORE_ALLOW_INSECURE",
}
"""Environment variables in place of options that are not given."""


def read_options(arguments: Sequence[str]) -> dict[str, object] | None:
    """Return the given options by name; None when only the full parser can read the arguments."""
    if os.environ.get(ORIGINAL_NAMES):
        return None
    options: dict[str, object] = {}
    rest = iter(arguments)
    for argument in rest:
        written, equals, value = argument.partition("=")
        name = written.removeprefix("--").replace("-", "_")
        if written != "--" + name.replace("_", "-"):
            return None
        if name in FLAGS and not equals:
            options[name] = True
            continue
        if not equals:
            value = next(rest, "")
        found = _read(name, value)
        if found is None:
            return None
        options[name] = found
    for name, variable in VARIABLES.items():
        if name not in options and (value := os.environ.get(variable, "")):
            if name in FLAGS:
                return None
            options[name] = value
    return options


def _read(name: str, value: str) -> object:
    reader = READERS.get(name)
    if reader is None or not value or value.startswith("-"):
        return None
    return reader(value)
