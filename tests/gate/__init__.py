"""Runs pytest for ``make test``, and once more, alone, what failed by chance."""
