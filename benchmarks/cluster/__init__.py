"""Clusters beside the original: the rows with their targets, the works, the runs and the report."""
