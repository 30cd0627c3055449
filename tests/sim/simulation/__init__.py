"""A deterministic simulation of a segment container: one seed is one run, the same every time."""
