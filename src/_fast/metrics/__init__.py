"""Counters and histograms that cost a hot path some nanoseconds."""
