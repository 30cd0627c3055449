"""The positions at which reading a stream begins.

Owns: the words for its two ends. Imports nothing, so that a command line can offer them quickly.
"""

from __future__ import annotations

import enum


class Start(enum.StrEnum):
    """Positions at which a reader begins."""

    HEAD = "head"
    TAIL = "tail"
