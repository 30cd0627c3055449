"""The version of the package, where looking it up among what is installed would take too long.

Owns: ``VERSION``; a test holds it to the package's own.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
