"""The work of clients between commands, without I/O: from a reply to the next request."""
