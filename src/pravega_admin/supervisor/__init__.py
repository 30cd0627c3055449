"""The supervisor of a standalone store: how its server processes are started, watched and ended."""
