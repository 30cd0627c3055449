"""The options of ``segstore standalone``, read without the command line's parser.

Owns: this reading. The parser, its help and its messages are in ``commands.servers``; importing and
setting it up takes longer than all other work of the command before the servers start.

This module has few imports, because it is read before the servers can start.

Invariants:
1. Arguments that this module accepts give the same settings as the parser. Held by
   ``test_what_is_read_quickly_is_what_the_parser_reads``.
2. For every other argument, such as an unknown name, a wrong value or ``--help``, this module
   returns nothing and the parser reads all arguments. Held by
   ``test_doubtful_arguments_are_left_to_the_parser``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from pravega_admin.output.log_options import LogFormat, LogLevel
from segstore_client.addresses import PORT_MAX

ORIGINAL_NAMES = "SEGSTORE_ORIGINAL_NAMES"
"""The variable that makes the verbs read the original's names for settings."""
CONTROLLERS_MAX = 16
CONTAINERS_DIGITS_MAX = 9
ALL_CORES = "auto"
"""The value of ``--stores`` that chooses the number by this machine's cores."""


def _number_to(maximum: int) -> Callable[[str], int | None]:
    def read(value: str) -> int | None:
        if not (value.isascii() and value.isdecimal()) or len(value) > CONTAINERS_DIGITS_MAX:
            return None
        number = int(value)
        return number if 1 <= number <= maximum else None

    return read


def _one_of(values: type[LogLevel | LogFormat]) -> Callable[[str], object]:
    return lambda value: next((each for each in values if each.value == value), None)


_port = _number_to(PORT_MAX)
_count = _number_to(10**CONTAINERS_DIGITS_MAX - 1)

READERS: dict[str, Callable[[str], object]] = {
    "data_dir": str,
    "host": str,
    "controller_port": _port,
    "controllers": _number_to(CONTROLLERS_MAX),
    "http_port": lambda value: 0 if value == "0" else _port(value),
    "segment_store_port": _port,
    "stores": lambda value: value if value == ALL_CORES else _count(value),
    "published_address": str,
    "container_count": _count,
    "tier2": str,
    "s3_endpoint": str,
    "s3_region": str,
    "log_level": _one_of(LogLevel),
    "log_format": _one_of(LogFormat),
    "log_file": str,
    "config": str,
}
"""Functions that read the values of options; each returns None for an uncertain value."""
FLAGS = frozenset({"allow_insecure", "secure"})
VARIABLES = {
    "data_dir": "SEGSTORE_DATA_DIR",
    "tier2": "SEGSTORE_TIER2",
    "config": "SEGSTORE_CONFIG",
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
