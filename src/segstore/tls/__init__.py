"""Sockets that speak TLS, as a server and as a client, and the handshakes on a port."""
