"""The choices of format and level for the logs of a server process.

Owns: the names of these choices. Server processes read them without the command line's parser.
"""

from __future__ import annotations

import enum


class LogFormat(enum.StrEnum):
    """Lines for people or for programs; AUTO checks whether stderr is a terminal."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """The least important lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
