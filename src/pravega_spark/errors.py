"""What can go wrong in the data source alone: the rest is in ``pravega_blocking.errors``.

Owns: the errors of options and of lost data. An error's text is one sentence for the user.
"""

from __future__ import annotations

from pravega_blocking.errors import PravegaError, UsageError


class OptionError(UsageError):
    """An option is missing or makes no sense."""


class DataLossError(PravegaError):
    """Events that were to be read have been truncated away."""
