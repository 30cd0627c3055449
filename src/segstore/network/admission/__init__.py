"""Admission: the limits of connections, and the order in which they wait at a limit."""
