"""A client of Apache BookKeeper: its bytes and its protocols without I/O, then sockets on trio."""
