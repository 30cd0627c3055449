"""Serves the connections of clients: sockets, buffers, and the handler of each command."""
