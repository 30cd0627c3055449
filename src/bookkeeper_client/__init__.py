"""A client of Apache BookKeeper: formats and protocols without I/O, and connections on trio."""
