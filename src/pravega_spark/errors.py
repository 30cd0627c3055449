"""The errors of the data source alone; ``segstore_client.errors`` has the others.

Owns: the errors of options, of lost data and of tier 2. Each text is one sentence for the user.
"""

from __future__ import annotations

from segstore_client.errors import PravegaError, UsageError


class OptionError(UsageError):
    """A required option is missing, or the value of an option is invalid."""


class DataLossError(PravegaError):
    """Events to read have been truncated."""


class DamagedError(PravegaError):
    """The bytes in tier 2 differ from the stored ones."""


class TierUnreachableError(PravegaError):
    """This process cannot read tier 2."""


class TierMissingError(PravegaError):
    """A file or object of tier 2 does not exist."""


class PlanRefusedError(PravegaError):
    """A server does not answer requests for scan plans."""
