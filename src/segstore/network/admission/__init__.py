"""Admission: the limits of connections, and the order in which requests and replies wait."""
