"""Reads of a stream: which bytes a query needs, where they are, and the events in them."""
