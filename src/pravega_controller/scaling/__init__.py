"""Scaling by load: the events of segment stores, and the scales that they cause."""
