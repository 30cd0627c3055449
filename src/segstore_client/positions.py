"""The positions at which reading a stream begins.

Owns: the words for a stream's two ends. This module has no imports of the product, because the
command line needs the words at each start.
"""

from __future__ import annotations

import enum
from typing import Literal, TypeAlias


class Position(enum.StrEnum):
    """The ends of a stream, where a reader begins or ends."""

    HEAD = "head"
    TAIL = "tail"


End: TypeAlias = Position | Literal["head", "tail"]
"""An end of a stream, as a program says it."""
