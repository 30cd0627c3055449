"""The version of the package, because looking up the installed one would take too long.

Owns: ``VERSION``; a test compares it with the package's own.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.3.0.dev0"
