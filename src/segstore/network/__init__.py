"""Connections of clients: sockets, buffers, and what each command asks of a container."""
