"""The supervisor of a standalone store: starts, watches and ends its server processes."""
