"""Codecs of the durable log: operations, data frames, journal batches, the pipeline of appends."""
