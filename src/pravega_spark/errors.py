"""What can go wrong between Spark and a store. An error's text is one sentence for the user.

Owns: the error tree of this package.
"""

from __future__ import annotations


class PravegaError(Exception):
    """Something failed; the text says what and what to do."""


class OptionError(PravegaError):
    """An option is missing or makes no sense."""


class NotFoundError(PravegaError):
    """A scope, stream or segment does not exist."""


class UnavailableError(PravegaError):
    """A server cannot be reached, or stayed away for too long."""


class DataLossError(PravegaError):
    """Events that were to be read have been truncated away."""


class RefusedError(PravegaError):
    """A server refused a request, and would do so again."""
