"""Parts of the benchmark of Spark's data sources."""
