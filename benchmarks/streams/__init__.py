"""Whole servers under a load of streams: the rows, the runs, and the report of one comparison."""
