"""For tests only: what a controller can be run against without a segment store process."""
